//! Attaching and detaching probes in the background.
//!
//! To insert or remove a uprobe, the kernel takes the `mmap_lock` of each process that has the file mapped, and waits
//! for it uninterruptibly. A process can hold its own lock indefinitely. So a thread makes the links, and the caller
//! can stop waiting for it ([`Job`](crate::attach::Job)). Background threads close the links.
//!
//! Closing a perf event of a kernel probe takes some 30 to 60 ms, during which the kernel holds `event_mutex`. These
//! threads do that too ([`close_later`]).

use std::{
    any::Any,
    collections::{BTreeSet, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{attach::Cause, sys::perf::event_mutex};

/// Largest number of threads that close.
const THREADS: usize = 32;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(1);

/// The descriptors that attach a program to a file. After a drop, a background thread closes them.
#[derive(Debug)]
pub struct FileHook {
    /// In the order of closing: the link first, then its perf event, if any.
    fds: Vec<OwnedFd>,
    /// Whether there is a perf event, and no link yet.
    is_event: bool,
    /// A value that is dropped after they are closed.
    with: Option<Box<dyn Any + Send + Sync>>,
}

impl FileHook {
    pub(crate) fn new(fd: OwnedFd, is_event: bool) -> Self {
        Self { fds: vec![fd], is_event, with: None }
    }

    /// Links the perf event, where there is one.
    pub(crate) fn linked(
        mut self,
        link: impl FnOnce(BorrowedFd<'_>) -> Result<OwnedFd, Cause>,
    ) -> Result<Self, Cause> {
        if self.is_event
            && let Some(event) = self.fds.first()
        {
            let link = link(event.as_fd())?;
            self.fds.insert(0, link);
            self.is_event = false;
        }
        Ok(self)
    }

    /// Keeps a value until all descriptors are closed.
    pub(crate) fn keep(mut self, with: impl Any + Send + Sync) -> Self {
        self.with = Some(Box::new(with));
        self
    }

    /// As [`FileHook::keep`], for an optional value.
    pub(crate) fn keep_any(mut self, with: Option<Box<dyn Any + Send + Sync>>) -> Self {
        self.with = with;
        self
    }

    /// The link. Before [`FileHook::linked`], the perf event if there is one.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.fds.first().map(AsFd::as_fd)
    }
}

impl Drop for FileHook {
    fn drop(&mut self) {
        let is_event = self.is_event || self.fds.len() > 1;
        CLOSER.close(Left { fds: std::mem::take(&mut self.fds), is_event, with: self.with.take() });
    }
}

/// Makes a background thread drop a value that closes a link or a perf event. The thread does not pause for tracers that open
/// events, because the caller of [`closed_since`] waits for it.
pub(crate) fn close_later(with: impl Any + Send + Sync) {
    CLOSER.close(Left { fds: Vec::new(), is_event: false, with: Some(Box::new(with)) });
}

/// Descriptors to close.
struct Left {
    fds: Vec<OwnedFd>,
    /// Whether one is a perf event.
    is_event: bool,
    with: Option<Box<dyn Any + Send + Sync>>,
}

struct State {
    next: u64,
    waiting: VecDeque<(u64, Left)>,
    /// Numbers of the entries that are not closed yet.
    open: BTreeSet<u64>,
    threads: usize,
    idle: usize,
}

struct Closer {
    state: Mutex<State>,
    more: Condvar,
    closed: Condvar,
}

static CLOSER: Closer = Closer {
    state: Mutex::new(State {
        next: 0,
        waiting: VecDeque::new(),
        open: BTreeSet::new(),
        threads: 0,
        idle: 0,
    }),
    more: Condvar::new(),
    closed: Condvar::new(),
};

impl Closer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&'static self, left: Left) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        state.waiting.push_back((number, left));
        if state.waiting.len() <= state.idle {
            self.more.notify_one();
        } else if state.threads < THREADS {
            let thread = std::thread::Builder::new().name("unlink".to_owned());
            match thread.spawn(|| self.work()) {
                Ok(_) => state.threads += 1,
                Err(error) => tracing::warn!("no thread to close links: {error}"),
            }
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((number, left)) = state.waiting.pop_front() {
                drop(state);
                let Left { fds, is_event, with } = left;
                let held = is_event.then(event_mutex::hold);
                // One after the other: a link refers to its event.
                fds.into_iter().for_each(drop);
                drop(held);
                drop(with);
                state = self.lock();
                state.open.remove(&number);
                self.closed.notify_all();
                continue;
            }
            state.idle += 1;
            let (again, waited) = self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A point in the order in which background threads get values to close, for [`closed_since`].
#[derive(Clone, Copy, Debug)]
pub struct Moment(u64);

/// The point after all values so far.
pub fn now() -> Moment {
    Moment(CLOSER.lock().next)
}

/// Waits until background threads have closed everything, for at most `limit`. Returns whether they have.
///
/// Call it before the process ends. If a thread is killed while it closes a link, the breakpoint and a raised
/// reference counter stay in programs: the kernel does not change another process's memory for a thread with a
/// pending kill.
pub fn close_files(limit: Duration) -> bool {
    closed_since(Moment(0), limit)
}

/// Waits until background threads have closed everything that they got since `since`, for at most `limit`. Returns
/// whether they have.
pub fn closed_since(Moment(since): Moment, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut state = CLOSER.lock();
    while state.open.range(since..).next().is_some() {
        let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
            return false;
        };
        state = CLOSER.closed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Blocks in its drop.
    struct Slow(std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn what_does_not_close_holds_nobody_up() {
        let hook = || {
            let (end, _) = rustix::pipe::pipe().unwrap();
            FileHook::new(end, false)
        };
        let before = now();
        let (go, gone) = channel();
        drop(hook().keep(std::sync::Mutex::new(Slow(gone))));
        let then = now();
        drop(hook());
        assert!(closed_since(then, Duration::from_secs(60)));
        assert!(!closed_since(before, Duration::from_millis(10)));
        drop(go);
        assert!(closed_since(before, Duration::from_secs(60)));
    }
}
