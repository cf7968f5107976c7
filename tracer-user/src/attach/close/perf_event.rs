//! Perf events without a link. A thread closes them some time after they are dropped.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{guard::HeldDescriptors, opening::close};
use crate::sys::Errno;

/// A perf event without a link. After a drop, a thread closes it, because the kernel holds `event_mutex` meanwhile.
/// Until then the event of a tracepoint can be used again ([`reuse`]).
#[derive(Debug)]
pub struct PerfEvent(Option<UnusedEvent>);

#[derive(Debug)]
struct UnusedEvent {
    // In the order of closing.
    held: Option<HeldDescriptors>,
    event: OwnedFd,
    /// The id of its trace event; `None` for other hooks.
    id: Option<u16>,
}

impl PerfEvent {
    pub(crate) fn new(event: OwnedFd) -> Self {
        Self(Some(UnusedEvent { held: None, event, id: None }))
    }

    /// The event of a perf tracepoint, which the guard may hold too.
    pub(crate) fn of_tracepoint(id: u16, event: OwnedFd, held: Option<HeldDescriptors>) -> Self {
        Self(Some(UnusedEvent { held, event, id: Some(id) }))
    }

    /// The descriptor, and what the guard holds of it.
    pub(crate) fn take(mut self) -> Result<(OwnedFd, Option<HeldDescriptors>), Errno> {
        self.0.take().map(|unused| (unused.event, unused.held)).ok_or(Errno::BADF)
    }

    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.0.as_ref().map(|unused| unused.event.as_fd()).ok_or(Errno::BADF)
    }
}

impl Drop for PerfEvent {
    fn drop(&mut self) {
        if let Some(unused) = self.0.take() {
            UNUSED.close(vec![unused]);
        }
    }
}

/// Perf events that were opened but not used, or that were used and lost their links. A thread closes them one by one.
#[derive(Debug)]
struct Unused {
    state: Mutex<UnusedState>,
}

#[derive(Debug)]
struct UnusedState {
    events: VecDeque<UnusedEvent>,
    /// Whether the thread runs.
    closes: bool,
}

impl UnusedState {
    /// Takes an event of a tracepoint.
    fn take(&mut self, id: u16) -> Option<UnusedEvent> {
        let at = self.events.iter().position(|unused| unused.id == Some(id))?;
        self.events.swap_remove_back(at)
    }
}

static UNUSED: Unused = Unused { state: Mutex::new(UnusedState { events: VecDeque::new(), closes: false }) };

impl Unused {
    fn lock(&self) -> MutexGuard<'_, UnusedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&'static self, events: Vec<UnusedEvent>) {
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

    fn next(&self) -> Option<UnusedEvent> {
        let mut state = self.lock();
        let event = state.events.pop_front();
        state.closes = event.is_some();
        event
    }
}

/// Takes an unused event of a tracepoint. This is quicker than to open one, and it limits the unused events while
/// events are enabled and disabled again and again.
pub(crate) fn reuse(id: u16) -> Option<PerfEvent> {
    UNUSED.lock().take(id).map(|unused| PerfEvent(Some(unused)))
}

/// Takes the unused perf events that are not closed yet, except those that are left to the guard. At the end of a
/// process the kernel would close them one by one.
pub fn take_unused() -> Vec<OwnedFd> {
    let unused: Vec<UnusedEvent> = UNUSED.lock().events.drain(..).collect();
    let is_left = |unused: &UnusedEvent| unused.held.as_ref().is_some_and(HeldDescriptors::is_left);
    unused.into_iter().filter(|unused| !is_left(unused)).map(|unused| unused.event).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, Instant},
    };

    use super::{super::opening::Opening, *};

    #[test]
    fn an_event_is_used_again_for_its_tracepoint_only() {
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let event = |id| UnusedEvent { held: None, event: file(), id };
        let events = [Some(7), None, Some(8), Some(7)].map(event).into();
        let mut state = UnusedState { events, closes: false };
        assert!(state.take(9).is_none());
        let taken: Vec<Option<u16>> = (0..2).filter_map(|_| state.take(7)).map(|unused| unused.id).collect();
        assert_eq!(taken, [Some(7), Some(7)]);
        assert!(state.take(7).is_none() && state.take(8).is_some() && state.events.len() == 1);
    }

    #[test]
    fn unused_events_are_closed_or_given_out() {
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let files =
            || (0..64).map(|_| UnusedEvent { held: None, event: file(), id: None }).collect::<Vec<_>>();
        // A tracer that opens many events pauses the closing thread, if this machine has the lock file.
        let opening = Opening::begin();
        UNUSED.close(files());
        let given = take_unused().len();
        assert!(given <= 64 && (!opening.is_held() || given >= 62), "{given}");
        drop(opening);
        UNUSED.close(files());
        let start = Instant::now();
        while UNUSED.lock().closes {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(take_unused().is_empty());
    }
}
