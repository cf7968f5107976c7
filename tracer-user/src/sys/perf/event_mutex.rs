//! Tracks whether this process holds the kernel's `event_mutex` for a long time.
//!
//! Before Linux 6.6, uprobes are perf events. While the kernel opens or closes such an event, it holds `event_mutex`
//! and waits for the `mmap_lock` of each process that has the file mapped; a process can hold that lock indefinitely.
//! Every other thread that opens a perf event of the kernel's tracing or reads a file of tracefs then waits for
//! `event_mutex`, uninterruptibly. Threads of this process wait here instead, where waiting has a limit: [`hold`] for
//! operations on uprobes, [`enter`] for all others.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::sys::Errno;

/// How long other operations wait for an operation on a uprobe, from its start.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct State {
    /// Start of the operation on a uprobe that is in progress.
    held: Option<Instant>,
    /// Number of other operations in progress.
    entered: usize,
}

#[derive(Debug)]
struct EventMutex {
    state: Mutex<State>,
    changed: Condvar,
}

static EVENT_MUTEX: EventMutex = EventMutex::new();

/// Guard of an operation on a uprobe, which ends when it is dropped.
#[derive(Debug)]
pub struct Held<'a>(&'a EventMutex);

/// Guard of another operation that needs the mutex for a short time, which ends when it is dropped.
#[derive(Debug)]
pub struct Entered<'a>(&'a EventMutex);

/// Begins an operation on a uprobe's perf event, once no other operation is in progress. May block without a limit.
pub fn hold() -> Held<'static> {
    EVENT_MUTEX.hold()
}

/// Begins another operation that needs the mutex.
///
/// # Errors
/// `ETIMEDOUT` if an operation on a uprobe has been in progress for two seconds.
pub fn enter() -> Result<Entered<'static>, Errno> {
    EVENT_MUTEX.enter(PATIENCE)
}

impl EventMutex {
    const fn new() -> Self {
        Self { state: Mutex::new(State { held: None, entered: 0 }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self) -> Held<'_> {
        let is_busy = |state: &mut State| state.held.is_some() || state.entered > 0;
        let mut state = self.changed.wait_while(self.lock(), is_busy).unwrap_or_else(PoisonError::into_inner);
        state.held = Some(Instant::now());
        Held(self)
    }

    fn enter(&self, patience: Duration) -> Result<Entered<'_>, Errno> {
        let mut state = self.lock();
        while let Some(since) = state.held {
            let left = left(since, patience).ok_or(Errno::TIMEDOUT)?;
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        state.entered += 1;
        Ok(Entered(self))
    }
}

/// How long to wait for an operation that began then; `None` if it has taken too long already.
fn left(since: Instant, patience: Duration) -> Option<Duration> {
    patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock().held = None;
        self.0.changed.notify_all();
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.entered = state.entered.saturating_sub(1);
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn waiting_for_an_operation_on_a_uprobe_is_limited() {
        let mutex = EventMutex::new();
        let both = [mutex.enter(SOON).unwrap(), mutex.enter(SOON).unwrap()];
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| drop(mutex.hold()));
            std::thread::sleep(SHORT);
            assert!(!holder.is_finished(), "others are in it");
            drop(both);
        });
        let held = mutex.hold();
        assert_eq!(mutex.enter(SHORT).unwrap_err(), Errno::TIMEDOUT);
        // A second call does not wait again for an operation already known to be slow.
        assert_eq!(left(mutex.lock().held.unwrap(), SHORT), None);
        assert_eq!(mutex.enter(SHORT).unwrap_err(), Errno::TIMEDOUT);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| mutex.enter(SOON).map(drop));
            drop(held);
            assert_eq!(other.join().unwrap(), Ok(()));
        });
    }
}
