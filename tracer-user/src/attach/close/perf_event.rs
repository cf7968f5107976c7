//! Perf events without a link, which a thread closes when they are dropped.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::opening::close;
use crate::sys::Errno;

/// A perf event without a link. After a drop, a thread closes it, because the kernel holds `event_mutex` meanwhile.
#[derive(Debug)]
pub struct PerfEvent(Option<OwnedFd>);

impl PerfEvent {
    pub(crate) fn new(event: OwnedFd) -> Self {
        Self(Some(event))
    }

    /// The descriptor.
    pub(crate) fn take(mut self) -> Result<OwnedFd, Errno> {
        self.0.take().ok_or(Errno::BADF)
    }

    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
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

/// Takes the unused perf events that are not closed yet. At the end of a process the kernel would close them one by
/// one.
pub fn take_unused() -> Vec<OwnedFd> {
    UNUSED.lock().events.drain(..).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, Instant},
    };

    use super::{super::opening::Opening, *};

    #[test]
    fn unused_events_are_closed_or_given_out() {
        let files = || (0..64).map(|_| OwnedFd::from(File::open("/dev/null").unwrap())).collect::<Vec<_>>();
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
