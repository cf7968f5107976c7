//! Attaching and detaching probes in the background.
//!
//! To insert or remove a uprobe, the kernel takes the `mmap_lock` of each process that has the file mapped, and waits
//! for it uninterruptibly. A process can hold its own lock indefinitely. So a thread makes the links, and the caller
//! can stop waiting for it ([`Job`](crate::attach::Job)). Background threads close the links.
//!
//! The kernel holds `event_mutex` while it closes a perf event of a probe: some 30 to 60 ms, and for a file until it
//! gets each `mmap_lock`. So events close one after the other. Links need no such lock. At most two of the threads
//! close events, and only while no link waits. An event without its link runs no program.

use std::{
    any::Any,
    collections::{BTreeSet, VecDeque},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{attach::Cause, sys::perf::event_mutex};

/// Largest number of threads that close.
const THREADS: usize = 32;
/// Largest number of these threads that close perf events.
const EVENT_THREADS: usize = 2;
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

    /// The link. Before [`FileHook::linked`], the perf event if there is one.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.fds.first().map(AsFd::as_fd)
    }
}

impl Drop for FileHook {
    fn drop(&mut self) {
        let has_event = self.is_event || self.fds.len() > 1;
        let event = if has_event { self.fds.pop() } else { None };
        let event = event.map(|event| ProbeEvent { event, of_file: true });
        CLOSER.close(Left { link: self.fds.pop(), event, with: self.with.take() });
    }
}

/// Makes a background thread drop a value that closes a link or a perf event. The thread does not pause for tracers
/// that open events, because the caller of [`closed_since`] waits for it.
pub(crate) fn close_later(with: impl Any + Send + Sync) {
    CLOSER.close(Left { link: None, event: None, with: Some(Box::new(with)) });
}

/// Makes background threads close the link of a kernel probe, then its perf event, and then drop a value. Before Linux
/// 6.13, only closing the event waits for programs that run at the probe.
pub(crate) fn close_probe(link: OwnedFd, event: OwnedFd, with: impl Any + Send + Sync) {
    let event = ProbeEvent { event, of_file: false };
    CLOSER.close(Left { link: Some(link), event: Some(event), with: Some(Box::new(with)) });
}

/// What a thread closes, in this order.
struct Left {
    link: Option<OwnedFd>,
    event: Option<ProbeEvent>,
    with: Option<Box<dyn Any + Send + Sync>>,
}

/// The perf event of a probe.
struct ProbeEvent {
    event: OwnedFd,
    /// Whether closing it can block without a limit.
    of_file: bool,
}

impl Left {
    /// Closes the event, and drops the value.
    fn end(self) {
        if let Some(ProbeEvent { event, of_file }) = self.event {
            let held = of_file.then(event_mutex::hold);
            drop(event);
            drop(held);
        }
        drop(self.with);
    }
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: VecDeque<(u64, Left)>,
    /// Entries whose link is closed and whose event is not.
    events: VecDeque<(u64, Left)>,
    /// Number of threads that close events.
    event_threads: usize,
    /// Numbers of the entries that are not closed yet.
    open: BTreeSet<u64>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Closer {
    state: Mutex<State>,
    more: Condvar,
    closed: Condvar,
}

static CLOSER: LazyLock<Closer> = LazyLock::new(Closer::default);

impl State {
    /// Number of entries that further threads would take at this moment.
    fn ready(&self) -> usize {
        self.waiting.len() + self.events.len().min(EVENT_THREADS.saturating_sub(self.event_threads))
    }
}

impl Closer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&'static self, left: Left) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        let is_event = left.link.is_none() && left.event.is_some();
        let queue = if is_event { &mut state.events } else { &mut state.waiting };
        queue.push_back((number, left));
        if state.ready() <= state.idle {
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
            if let Some((number, mut left)) = state.waiting.pop_front() {
                drop(state);
                drop(left.link.take());
                if left.event.is_some() {
                    state = self.lock();
                    state.events.push_back((number, left));
                } else {
                    left.end();
                    state = self.lock();
                    self.note_closed(&mut state, number);
                }
                continue;
            }
            if state.event_threads < EVENT_THREADS
                && let Some((number, left)) = state.events.pop_front()
            {
                state.event_threads += 1;
                drop(state);
                left.end();
                state = self.lock();
                state.event_threads -= 1;
                self.note_closed(&mut state, number);
                continue;
            }
            state.idle += 1;
            let (again, waited) = self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.ready() == 0 {
                state.threads -= 1;
                return;
            }
        }
    }

    fn note_closed(&self, state: &mut State, number: u64) {
        state.open.remove(&number);
        self.closed.notify_all();
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
    let is_open = |state: &State| state.open.range(since..).next().is_some();
    let waited = CLOSER.closed.wait_timeout_while(CLOSER.lock(), limit, |state| is_open(state));
    !is_open(&waited.unwrap_or_else(PoisonError::into_inner).0)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::{
        event::{PollFd, PollFlags, poll},
        pipe::{PipeFlags, pipe_with},
        time::Timespec,
    };

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

    #[test]
    fn events_of_probes_close_after_their_links_and_hold_no_link_up() {
        let before = now();
        let events: Vec<_> = (0..2 * THREADS)
            .map(|_| {
                let [(link, link_end), (event, event_end)] =
                    [(); 2].map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap());
                let (go, gone) = channel();
                close_probe(link_end, event_end, std::sync::Mutex::new(Slow(gone)));
                (link, event, go)
            })
            .collect();
        // The read end of a pipe is ready once the other end is closed.
        let closes = |read: &OwnedFd| {
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            poll(&mut [PollFd::new(read, PollFlags::IN)], Some(&limit)).unwrap() == 1
        };
        assert!(events.iter().all(|(link, ..)| closes(link)));
        // Threads that close events wait for the values that are kept until these are closed.
        assert!(CLOSER.lock().event_threads <= EVENT_THREADS);
        let then = now();
        close_later(());
        assert!(closed_since(then, Duration::from_secs(60)));
        let events: Vec<_> = events.into_iter().map(|(_, event, _)| event).collect();
        assert!(closed_since(before, Duration::from_secs(60)));
        assert!(events.iter().all(closes));
    }
}
