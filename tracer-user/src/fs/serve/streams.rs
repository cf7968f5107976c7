//! Streams of pages that are read through the kernel's page cache, and what the kernel is told of them.
//!
//! Since 6.5 splice(2) goes through the page cache, which ends where the file does: so while somebody reads it, a stream ends
//! nowhere. A file can be mapped too (`MAP_PRIVATE` cannot be refused), and its page faults look as splice's reads do: a
//! read that is nobody's. So one is told from the other by its place. Splice reads page after page from the file's beginning,
//! as a stream has no other position; anything else is a mapping's, which gets what is there and never waits.
//!
//! The kernel waits for a page's lock when it is told of a file's contents, and such a lock may wait for our answer to a
//! read. So a thread tells it that nothing else waits for but the caller whose open it is.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use fuser::{INodeNo, Notifier};

/// What the kernel takes a stream's size to be while it is read.
pub(in crate::fs) const SIZE: u64 = 1 << 62;
/// The page by which the kernel is told: nothing that is in it is shown, and no read of it waits.
const LAST: u64 = SIZE - 4096;
/// How long after somebody opened a stream reads of its pages do not wait: the kernel waits for the pages' locks then.
const OPENING: Duration = Duration::from_millis(50);

/// What becomes of a read of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum PageRead {
    /// It is splice's, and may wait.
    Waits,
    /// It gets what is there.
    Now,
    /// There is nothing at this place.
    Nowhere,
}

/// A stream that is open to be read.
#[derive(Debug)]
struct Stream {
    ino: INodeNo,
    /// Where splice reads next.
    next: u64,
}

#[derive(Debug, Default)]
struct State {
    by_handle: HashMap<u64, Stream>,
    opened: HashMap<u64, Instant>,
}

enum Notice {
    /// A stream has no end from now on; then something is done.
    Endless(INodeNo, Box<dyn FnOnce() + Send>),
    /// Its size is what it was.
    Closed(INodeNo),
}

/// All streams.
#[derive(Default)]
pub(in crate::fs) struct Streams {
    state: Mutex<State>,
    notices: OnceLock<Option<Sender<Notice>>>,
}

impl Streams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to tell the kernel by this.
    pub(in crate::fs) fn tell_by(&self, notifier: Notifier) {
        let (notices, taken) = channel();
        let run = move || {
            for notice in taken {
                tell(&notifier, notice);
            }
        };
        let started = std::thread::Builder::new().name("notify".to_owned()).spawn(run);
        let started = started.inspect_err(|error| tracing::warn!("no splice from trace_pipe_raw: {error}"));
        let _ = self.notices.set(started.ok().map(|_| notices));
    }

    fn send(&self, notice: Notice) {
        let unsent = match self.notices.get() {
            Some(Some(notices)) => notices.send(notice).err().map(|error| error.0),
            _ => Some(notice),
        };
        if let Some(Notice::Endless(_, then)) = unsent {
            then();
        }
    }

    /// Lets splice(2) read a stream, and then does something.
    pub(in crate::fs) fn open(&self, handle: u64, ino: INodeNo, then: impl FnOnce() + Send + 'static) {
        self.opens(ino);
        self.state().by_handle.insert(handle, Stream { ino, next: 0 });
        self.send(Notice::Endless(ino, Box::new(then)));
    }

    /// A file is being opened: for a while from now nobody keeps a page of it locked.
    pub(in crate::fs) fn opens(&self, ino: INodeNo) {
        let mut state = self.state();
        state.opened.retain(|_, since| since.elapsed() < OPENING);
        state.opened.insert(ino.0, Instant::now());
    }

    /// Forgets a stream, if it is one.
    pub(in crate::fs) fn close(&self, handle: u64) {
        let closed = self.state().by_handle.remove(&handle);
        if let Some(closed) = closed {
            self.send(Notice::Closed(closed.ino));
        }
    }

    /// Whether somebody reads this file as a stream.
    pub(in crate::fs) fn is_open(&self, ino: u64) -> bool {
        self.state().by_handle.values().any(|stream| stream.ino.0 == ino)
    }

    /// What becomes of a read of a page.
    pub(in crate::fs) fn page_read(&self, handle: u64, offset: u64) -> PageRead {
        let state = self.state();
        match state.by_handle.get(&handle) {
            _ if offset >= LAST => PageRead::Nowhere,
            Some(stream) if stream.next == offset => {
                let opening = state.opened.get(&stream.ino.0).is_some_and(|since| since.elapsed() < OPENING);
                if opening && state.is_shared(stream.ino) { PageRead::Now } else { PageRead::Waits }
            }
            _ => PageRead::Now,
        }
    }

    /// A page was filled.
    pub(in crate::fs) fn filled(&self, handle: u64, offset: u64, length: usize) {
        if let Some(stream) = self.state().by_handle.get_mut(&handle) {
            stream.next = offset.saturating_add(length as u64);
        }
    }
}

impl State {
    fn is_shared(&self, ino: INodeNo) -> bool {
        self.by_handle.values().filter(|stream| stream.ino == ino).count() > 1
    }
}

fn tell(notifier: &Notifier, notice: Notice) {
    match notice {
        Notice::Endless(ino, then) => {
            // The kernel does not ask for the size again by itself; to be given the last byte tells it.
            if let Err(error) = notifier.store(ino, SIZE - 1, &[0]) {
                tracing::debug!("no splice from {ino:?}: {error}");
            }
            then();
        }
        // Attributes alone; nobody may know the file any more.
        Notice::Closed(ino) => drop(notifier.inval_inode(ino, -1, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_that_splice_wants_next_is_waited_for() {
        let streams = Streams::default();
        streams.open(1, INodeNo(7), || {});
        assert!(streams.is_open(7) && !streams.is_open(8));
        assert_eq!(streams.page_read(1, 0), PageRead::Waits);
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
        assert_eq!(streams.page_read(1, LAST), PageRead::Nowhere);
        streams.filled(1, 0, 4096);
        assert_eq!(streams.page_read(1, 4096), PageRead::Waits);
        assert_eq!(streams.page_read(1, 0), PageRead::Now);
        // While somebody else opens it.
        streams.open(2, INodeNo(7), || {});
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
        std::thread::sleep(OPENING);
        assert_eq!(streams.page_read(1, 4096), PageRead::Waits);
        streams.close(2);
        streams.close(1);
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
    }
}
