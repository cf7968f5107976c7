//! Bulk operations: opening perf events ahead in a thread, and detaching many events.
//!
//! To close a perf tracepoint's descriptors, the kernel waits for all CPUs twice. At the link to a program, many
//! closers can wait together. At the event itself, the kernel holds a lock that everyone needs who enables or disables
//! an event, and takes some 30 ms for each. Without its link an event does nothing. So links are closed at once, and
//! the events are handed out to be closed later.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    attach::{Cause, Parked, Session, hooks::tracepoint},
    sys::Errno,
};

/// Threads that close links.
const THREADS: usize = 32;
/// The lock file: every tracer on this kernel can open it, whatever its view of the file system.
const MEETING: &str = "/sys/kernel/btf/vmlinux";
/// How many steps a closer waits for tracers that open events.
const PATIENCE: u32 = 400;
const STEP: Duration = Duration::from_millis(5);

/// Detaches events: no program stays attached. Returns the perf events, which do nothing any more.
pub fn take_off(resting: impl IntoIterator<Item = Parked>) -> Vec<OwnedFd> {
    let (links, events): (Vec<OwnedFd>, Vec<OwnedFd>) =
        resting.into_iter().filter_map(Parked::take_apart).map(|[link, event]| (link, event)).unzip();
    close_links(links);
    events
}

/// Closes links in parallel, because the kernel can wait for many of them together.
pub(in crate::attach) fn close_links(mut links: Vec<OwnedFd>) {
    std::thread::scope(|scope| {
        let share = links.len().div_ceil(THREADS).max(1);
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            scope.spawn(|| drop(part));
        }
    });
}

/// Perf events of tracepoints that a thread opens while the engine chooses hooks and makes programs. The thread mostly
/// waits for all CPUs to see the code change of each tracepoint, as the kernel's own tracefs does.
#[derive(Debug)]
pub struct Ahead {
    /// Ids whose events are not received yet.
    due: HashSet<u16>,
    coming: Receiver<(u16, Result<PerfEvent, Cause>)>,
    came: HashMap<u16, Result<PerfEvent, Cause>>,
}

impl Ahead {
    /// Opens the perf events of these ids, in this order.
    pub fn start(ids: Vec<u16>) -> Self {
        let due = ids.iter().copied().collect();
        let (give, coming) = channel();
        std::thread::spawn(move || ids.into_iter().try_for_each(|id| give.send((id, tracepoint::open(id)))));
        Self { due, coming, came: HashMap::new() }
    }

    /// Whether the perf event of an id is not opened yet.
    fn is_due(&mut self, id: u16) -> bool {
        for (other, event) in self.coming.try_iter() {
            self.due.remove(&other);
            self.came.insert(other, event);
        }
        self.due.contains(&id)
    }

    /// Whether the perf event of an id is open or being opened.
    pub(in crate::attach) fn has(&self, id: u16) -> bool {
        self.due.contains(&id) || self.came.contains_key(&id)
    }

    /// Takes the perf event of an id, if this thread opens it; waits until it is open.
    pub(in crate::attach) fn take(&mut self, id: u16) -> Option<Result<PerfEvent, Cause>> {
        if let Some(came) = self.came.remove(&id) {
            return Some(came);
        }
        if !self.due.contains(&id) {
            return None;
        }
        for (other, event) in &self.coming {
            self.due.remove(&other);
            if other == id {
                return Some(event);
            }
            self.came.insert(other, event);
        }
        None
    }
}

/// A perf event without a link. After a drop, a thread closes it, because the kernel holds `event_mutex` meanwhile.
#[derive(Debug)]
pub struct PerfEvent(Option<OwnedFd>);

impl PerfEvent {
    pub(in crate::attach) fn new(event: OwnedFd) -> Self {
        Self(Some(event))
    }

    /// The descriptor.
    pub(in crate::attach) fn take(mut self) -> Result<OwnedFd, Errno> {
        self.0.take().ok_or(Errno::BADF)
    }

    pub(in crate::attach) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.0.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }
}

impl Drop for PerfEvent {
    fn drop(&mut self) {
        if let Some(event) = self.0.take() {
            UNUSED.close(vec![event]);
        }
    }
}

/// Perf events that were opened but not used. A thread closes them one by one.
#[derive(Debug)]
struct Unused {
    state: Mutex<UnusedState>,
}

#[derive(Debug)]
struct UnusedState {
    events: VecDeque<OwnedFd>,
    /// Whether the thread runs.
    closes: bool,
}

static UNUSED: Unused = Unused { state: Mutex::new(UnusedState { events: VecDeque::new(), closes: false }) };

impl Unused {
    fn lock(&self) -> MutexGuard<'_, UnusedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&'static self, events: Vec<OwnedFd>) {
        let mut state = self.lock();
        state.events.extend(events);
        if state.events.is_empty() || state.closes {
            return;
        }
        // The lock is released while an event is closed.
        let work = || close(std::iter::from_fn(|| self.next()));
        match std::thread::Builder::new().name("unused".to_owned()).spawn(work) {
            Ok(_) => state.closes = true,
            Err(error) => tracing::warn!("no thread closes unused events yet: {error}"),
        }
    }

    fn next(&self) -> Option<OwnedFd> {
        let mut state = self.lock();
        let event = state.events.pop_front();
        state.closes = event.is_some();
        event
    }
}

/// Takes the unused perf events that are not closed yet. At the end of a process the kernel would close them one by one.
pub fn take_unused() -> Vec<OwnedFd> {
    UNUSED.lock().events.drain(..).collect()
}

impl Session {
    /// Stores perf events for [`Session::attach_hook`], until [`Session::forget_ahead`].
    pub fn open_ahead(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
    }

    /// Whether [`Session::attach_hook`] would wait for a perf event that is being opened.
    pub fn is_being_opened(&mut self, id: u16) -> bool {
        self.ahead.as_mut().is_some_and(|ahead| ahead.is_due(id))
    }

    /// Drops perf events and programs that were made ahead and not used.
    pub fn forget_ahead(&mut self) {
        self.ahead = None;
        self.prepared.clear();
    }
}

/// Makes closers of all tracers on this kernel wait while it lives, because this process opens many events.
#[derive(Debug)]
pub struct Opening {
    #[cfg_attr(not(test), expect(dead_code, reason = "the lock ends with it"))]
    meeting: Option<File>,
}

impl Opening {
    /// Makes closers wait. Without the lock, opening takes longer.
    pub fn begin() -> Self {
        Self::waiting(STEP)
    }

    /// The same, but does not sleep if a closer holds the lock at this moment.
    pub fn begin_at_once() -> Self {
        Self::waiting(Duration::ZERO)
    }

    fn waiting(wait: Duration) -> Self {
        let lock = |file: &File| {
            (0..10).any(|_| {
                // A closer holds the lock only for a moment while it checks.
                let locked = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
                if !locked && wait.is_zero() {
                    std::thread::yield_now();
                } else if !locked {
                    std::thread::sleep(wait);
                }
                locked
            })
        };
        Self { meeting: File::open(MEETING).ok().filter(lock) }
    }
}

/// Closes perf events one by one, and pauses while a tracer opens many.
pub fn close(events: impl IntoIterator<Item = OwnedFd>) {
    for event in events {
        make_way();
        drop(event);
    }
}

/// Waits for tracers that open many events, but not for ever, because other processes can hold the same lock.
pub fn make_way() {
    let Ok(file) = File::open(MEETING) else { return };
    for _ in 0..PATIENCE {
        // Dropping the file releases the lock.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return;
        }
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn unused_events_are_closed_or_given_out() {
        let files = || (0..64).map(|_| OwnedFd::from(File::open("/dev/null").unwrap())).collect::<Vec<_>>();
        // A tracer that opens many events pauses the closing thread, if this machine has the lock file.
        let opening = Opening::begin();
        UNUSED.close(files());
        let given = take_unused().len();
        assert!(given <= 64 && (opening.meeting.is_none() || given >= 62), "{given}");
        drop(opening);
        UNUSED.close(files());
        let start = Instant::now();
        while UNUSED.lock().closes {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(STEP);
        }
        assert!(take_unused().is_empty());
    }

    #[test]
    fn closers_wait_for_openers() {
        let opening = Opening::begin();
        if opening.meeting.is_none() {
            return;
        }
        let start = Instant::now();
        let closer = std::thread::spawn(move || {
            make_way();
            start.elapsed()
        });
        std::thread::sleep(8 * STEP);
        drop(opening);
        assert!(closer.join().unwrap() >= 8 * STEP);
    }
}
