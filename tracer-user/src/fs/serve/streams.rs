//! Streams of pages that are read through the kernel's page cache (`trace_pipe_raw`), and the notifications about
//! them.
//!
//! Since 6.5 splice(2) reads through the page cache, which ends at the file's size. So a stream has an endless size
//! while it is open for reading. The file can also be mapped (`MAP_PRIVATE` cannot be refused), and page faults make
//! the same requests as splice: reads without a lock owner. The offset distinguishes them. Splice reads page after
//! page from offset 0, because a stream has no other position. All other reads are of a mapping; they get the
//! existing data and never wait.
//!
//! To store data in the page cache, the kernel locks a page, and this lock can depend on our answer to a read. So a
//! separate thread notifies the kernel; only the caller that opens the stream waits for it.
//!
//! From 6.19 on every error of a read by splice is `EIO` for the caller (fuse_read_folio(), fs/fuse/file.c). So a read
//! without data has no bytes there, which the caller sees as such. The kernel takes its offset for the file's end and
//! keeps the empty page. This page is then dropped, and the size made endless again. If the kernel took newer attributes
//! of the file meanwhile, or the caller did not look at the size within 50 ms, the caller gets the page. It has zeros
//! only, which is a page without records, and the caller's next read is that of the next page.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use fuser::{Errno, INodeNo, Notifier, ReplyData};

use crate::{
    engine::quota::Charge,
    fs::threads::{lock, spawn},
    kernel::{self, Change, proc::syscall::CurrentSyscall},
};

/// The size of a stream while it is open for reading.
pub(crate) const SIZE: u64 = 1 << 62;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// The last page. The notification of the size stores a byte there, so reads of this page fail and never wait.
const LAST: u64 = SIZE - PAGE;
/// Time after an open of a stream during which its page reads do not wait, because the kernel locks its pages then.
const OPENING: Duration = Duration::from_millis(50);

/// The system calls that read pages of a stream as splice(2) does.
const SPLICES: [i64; 3] = [libc::SYS_splice, libc::SYS_sendfile, libc::SYS_copy_file_range];

/// How a read of a page is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRead {
    /// It is a read by splice(2) and may wait.
    Waits,
    /// It gets the existing data.
    Now,
    /// It fails.
    Nowhere,
}

/// A stream that is open for reading.
#[derive(Debug)]
struct Stream {
    ino: INodeNo,
    /// The offset of the next read by splice(2).
    next: u64,
    /// Whether the last read there had no bytes.
    was_empty: bool,
}

#[derive(Debug, Default)]
struct State {
    by_handle: HashMap<u64, Stream>,
    /// The last time that each file was opened.
    opened: HashMap<u64, Instant>,
}

enum Notice {
    /// The stream has the size [`SIZE`] from now on; the closure is called afterwards.
    Endless(INodeNo, Box<dyn FnOnce() + Send>),
    /// The stream has its normal size again.
    Closed(INodeNo),
}

#[derive(Default)]
pub(crate) struct Streams {
    state: Arc<Mutex<State>>,
    notices: OnceLock<Option<(Notifier, Sender<Notice>)>>,
}

impl Streams {
    /// Starts the thread that notifies the kernel.
    pub(crate) fn notify_by(&self, notifier: Notifier) {
        let (notices, taken) = channel();
        let own = notifier.clone();
        let run = move || {
            for notice in taken {
                send_notice(&own, notice);
            }
        };
        let started = spawn("notices", run);
        let started = started.inspect_err(|error| tracing::warn!("no splice from trace_pipe_raw: {error}"));
        let _ = self.notices.set(started.ok().map(|_| (notifier, notices)));
    }

    fn send(&self, notice: Notice) {
        let unsent = match self.notices.get() {
            Some(Some((_, notices))) => notices.send(notice).err().map(|error| error.0),
            _ => Some(notice),
        };
        if let Some(Notice::Endless(_, then)) = unsent {
            then();
        }
    }

    /// Adds a stream that splice(2) can read from now on, and then calls `then`.
    pub(crate) fn open(&self, handle: u64, ino: INodeNo, then: impl FnOnce() + Send + 'static) {
        self.opens(ino);
        lock(&self.state).by_handle.insert(handle, Stream { ino, next: 0, was_empty: false });
        self.send(Notice::Endless(ino, Box::new(then)));
    }

    /// Marks a file as being opened. For the time [`OPENING`], page reads of it do not wait if it is open more than
    /// once.
    pub(crate) fn opens(&self, ino: INodeNo) {
        let mut state = lock(&self.state);
        state.opened.retain(|_, since| since.elapsed() < OPENING);
        state.opened.insert(ino.0, Instant::now());
    }

    /// Removes a stream; does nothing for other files.
    pub(crate) fn close(&self, handle: u64) {
        let closed = lock(&self.state).by_handle.remove(&handle);
        if let Some(closed) = closed {
            self.send(Notice::Closed(closed.ino));
        }
    }

    /// Whether the file is open as a stream.
    pub(crate) fn is_open(&self, ino: u64) -> bool {
        lock(&self.state).by_handle.values().any(|stream| stream.ino.0 == ino)
    }

    /// Whether the file is open as a stream more than once.
    pub(crate) fn is_shared(&self, ino: u64) -> bool {
        lock(&self.state).is_shared(INodeNo(ino))
    }

    pub(crate) fn page_read(&self, handle: u64, offset: u64) -> PageRead {
        let mut state = lock(&self.state);
        if let Some(stream) = state.by_handle.get_mut(&handle) {
            stream.skip_empty(offset);
        }
        match state.by_handle.get(&handle) {
            _ if offset >= LAST => PageRead::Nowhere,
            Some(stream) if stream.next == offset => {
                let opening = state.opened.get(&stream.ino.0).is_some_and(|since| since.elapsed() < OPENING);
                if opening && state.is_shared(stream.ino) { PageRead::Now } else { PageRead::Waits }
            }
            _ => PageRead::Now,
        }
    }

    /// Answers a thread's read of a page, of this handle and offset, with an error. If the error says that there are no data
    /// yet, the read is by splice(2) and the kernel would hide the error, the answer has no bytes, and the page can be
    /// read again. For that a thread is needed, which `charge` pays.
    pub(crate) fn fail(
        &self,
        (handle, offset): (u64, u64),
        thread: u32,
        (reply, charge): (ReplyData, Option<Charge>),
        error: Errno,
    ) {
        let has_no_data = matches!(error, Errno::EAGAIN | Errno::EINTR);
        let hides_errors = Change::PageReadErrors.is_in(kernel::version());
        let ino = lock(&self.state)
            .by_handle
            .get(&handle)
            .filter(|stream| stream.next == offset && has_no_data && hides_errors)
            .map(|stream| stream.ino);
        let notices = self.notices.get().cloned().flatten();
        let (Some(ino), Some((notifier, notices)), Some(charge)) = (ino, notices, charge) else {
            return reply.error(error);
        };
        let state = Arc::clone(&self.state);
        // Another thread looks at the caller, because it may have to wait until the caller sleeps.
        let look = move || {
            let _charge = charge;
            if !CurrentSyscall::is_one_of(thread, &SPLICES) {
                return reply.error(error);
            }
            lock(&state).mark_empty(ino, offset);
            reply.data(&[]);
            // Before the size is raised, the caller should have seen the lower one.
            CurrentSyscall::wait_while_running(thread);
            // This waits while another handle's read of the page does. It fails if the kernel has dropped the page.
            let _ = notifier.inval_inode(ino, offset.cast_signed(), PAGE.cast_signed());
            let _ = notices.send(Notice::Endless(ino, Box::new(|| ())));
        };
        // An answer that is dropped is an error.
        let _ = spawn("look", look);
    }

    /// Advances a stream after a page was filled.
    pub(crate) fn filled(&self, handle: u64, offset: u64, length: usize) {
        if let Some(stream) = lock(&self.state).by_handle.get_mut(&handle) {
            stream.next = offset.saturating_add(length as u64);
            stream.was_empty = false;
        }
    }
}

impl Stream {
    /// Advances if a read of the next page shows that the kernel delivered the page that had no bytes.
    fn skip_empty(&mut self, offset: u64) {
        if self.was_empty && offset == self.next.saturating_add(PAGE) {
            self.next = offset;
            self.was_empty = false;
        }
    }
}

impl State {
    /// Notes that all streams of a file that are at this offset may get an empty page.
    fn mark_empty(&mut self, ino: INodeNo, offset: u64) {
        for stream in self.by_handle.values_mut() {
            stream.was_empty |= stream.ino == ino && stream.next == offset;
        }
    }

    fn is_shared(&self, ino: INodeNo) -> bool {
        self.by_handle.values().filter(|stream| stream.ino == ino).count() > 1
    }
}

fn send_notice(notifier: &Notifier, notice: Notice) {
    match notice {
        Notice::Endless(ino, then) => {
            raise_size(notifier, ino);
            then();
        }
        // This drops only the attributes. It fails if the kernel has forgotten the file.
        Notice::Closed(ino) => drop(notifier.inval_inode(ino, -1, 0)),
    }
}

/// The kernel does not request the size again. A store of the last byte raises it.
fn raise_size(notifier: &Notifier, ino: INodeNo) {
    if let Err(error) = notifier.store(ino, SIZE - 1, &[0]) {
        tracing::debug!("no splice from {ino:?}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_page_of_a_splice_is_waited_for() {
        let streams = Streams::default();
        streams.open(1, INodeNo(7), || {});
        assert!(streams.is_open(7) && !streams.is_open(8));
        assert_eq!(streams.page_read(1, 0), PageRead::Waits);
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
        assert_eq!(streams.page_read(1, LAST), PageRead::Nowhere);
        streams.filled(1, 0, 4096);
        assert_eq!(streams.page_read(1, 4096), PageRead::Waits);
        assert_eq!(streams.page_read(1, 0), PageRead::Now);
        // While another client opens the file.
        streams.open(2, INodeNo(7), || {});
        let open_at = |at: Option<Instant>| lock(&streams.state).opened.insert(7, at.unwrap());
        assert!(open_at(Instant::now().checked_add(Duration::from_secs(600))).is_some(), "the open is noted");
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
        open_at(Instant::now().checked_sub(OPENING));
        assert_eq!(streams.page_read(1, 4096), PageRead::Waits);
        // The kernel delivered a page whose read had no bytes.
        lock(&streams.state).mark_empty(INodeNo(7), 4096);
        assert_eq!(streams.page_read(1, 4 * 4096), PageRead::Now);
        assert_eq!(streams.page_read(1, 2 * 4096), PageRead::Waits);
        assert_eq!(streams.page_read(1, 3 * 4096), PageRead::Now);
        streams.close(2);
        streams.close(1);
        assert_eq!(streams.page_read(1, 4096), PageRead::Now);
    }
}
