//! Events that were disabled a moment ago.
//!
//! An event is often enabled again soon after it was disabled. So it stays parked on its hook for a second, where a hit
//! costs the gate's few instructions. Then a thread detaches it, together with others.
//!
//! Some kernels (6.1 and 6.6 among them) close one link after the other, and meanwhile hold a mutex that the next link
//! needs. So the thread begins with one event, and detaches more together only where that takes little longer. It pauses
//! while a tracer enables many events.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    attach::{self, CloseThrottle, Parked},
    event::EventId,
};

/// How long a disabled event stays parked.
const PARKED: Duration = Duration::from_secs(1);
/// Largest number of events that are detached together. While they are, they cannot be resumed.
const BATCH: usize = 256;
/// The factor by which batches grow and shrink, and the smallest batch after the first event.
const FACTOR: usize = 4;
/// A batch that takes no longer than this is quick in any case.
const QUICK: Duration = Duration::from_millis(50);
/// How long the end of a session waits for the events that are being detached.
const END: Duration = Duration::from_secs(1);

/// Parked events, each with the time when it was disabled.
#[derive(Debug, Default)]
struct State {
    parked: HashMap<EventId, (Instant, Parked)>,
    /// Whether the thread runs.
    closing: bool,
    /// Whether it detaches events at this moment.
    detaching: bool,
}

/// The parked events of one instance.
#[derive(Debug, Default)]
pub(crate) struct DeferredClose {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeferredClose {
    /// Takes an event that is still parked.
    pub(crate) fn take(&self, event: EventId) -> Option<Parked> {
        lock(&self.state).parked.remove(&event).map(|(_, parked)| parked)
    }

    /// Removes and returns all parked events. Waits a moment for those that are being detached.
    pub(crate) fn end(&self) -> Vec<Parked> {
        let parked = lock(&self.state).parked.drain().map(|(_, (_, parked))| parked).collect();
        let start = Instant::now();
        while lock(&self.state).detaching && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(2));
        }
        parked
    }

    /// Parks events.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = (EventId, Parked)>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        state.parked.extend(events.into_iter().map(|(event, parked)| (event, (now, parked))));
        if state.closing || state.parked.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.state);
        match std::thread::Builder::new().name("detach".to_owned()).spawn(move || close(&shared)) {
            Ok(_) => state.closing = true,
            Err(error) => tracing::warn!("no thread detaches disabled events yet: {error}"),
        }
    }
}

/// Finds how many events are detached together.
#[derive(Debug)]
struct BatchSize {
    size: usize,
    /// How long a single event took.
    single: Duration,
}

impl Default for BatchSize {
    fn default() -> Self {
        Self { size: 1, single: Duration::ZERO }
    }
}

impl BatchSize {
    /// Notes how long a batch took. Links that the kernel closes one after the other take as many times as long as a
    /// single one.
    fn took(&mut self, took: Duration) {
        if self.size == 1 {
            self.single = took;
        }
        self.size = if took <= QUICK.max(3 * self.single) {
            (FACTOR * self.size).min(BATCH)
        } else {
            (self.size / FACTOR).max(FACTOR)
        };
    }
}

/// Detaches parked events until none is left.
fn close(shared: &Mutex<State>) {
    let mut throttle = CloseThrottle::default();
    let mut batch = BatchSize::default();
    loop {
        let mut state = lock(shared);
        let Some(first) = state.parked.values().map(|(since, _)| *since).min() else {
            state.closing = false;
            return;
        };
        drop(state);
        let left = PARKED.saturating_sub(first.elapsed());
        if !left.is_zero() {
            std::thread::sleep(left);
            continue;
        }
        throttle.wait_for_openers();
        let parked = due(&mut lock(shared), batch.size);
        let start = Instant::now();
        attach::detach_parked(parked);
        lock(shared).detaching = false;
        batch.took(start.elapsed());
    }
}

/// Takes up to this many events that were parked long enough.
fn due(state: &mut State, limit: usize) -> Vec<Parked> {
    let is_due = |(_, (since, _)): &(&EventId, &(Instant, Parked))| since.elapsed() >= PARKED;
    state.detaching = true;
    let due: Vec<EventId> = state.parked.iter().filter(is_due).map(|(event, _)| *event).take(limit).collect();
    due.iter().filter_map(|event| state.parked.remove(event)).map(|(_, parked)| parked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_where_the_kernel_closes_links_together() {
        let sizes = |took: &dyn Fn(u64) -> u64| {
            let mut batch = BatchSize::default();
            let sizes = (0..8).map(|_| {
                batch.took(Duration::from_millis(took(batch.size as u64)));
                batch.size
            });
            sizes.collect::<Vec<usize>>()
        };
        let together = [4, 16, 64, 256, 256, 256, 256, 256];
        assert_eq!(sizes(&|_| 200), together);
        assert_eq!(sizes(&|size| 40 + size / 4), together);
        // After a grace period for each link, and one for the programs.
        let [grace, once] = [30, 30];
        assert_eq!(sizes(&|size| once + size * grace), [4, 16, 4, 16, 4, 16, 4, 16]);
    }
}
