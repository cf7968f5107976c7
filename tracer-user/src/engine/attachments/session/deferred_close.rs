//! Events that were disabled a moment ago.
//!
//! To remove a program from a perf tracepoint, the kernel waits for all CPUs, under a lock that every other event
//! needs too. For all events this takes minutes, and often they are enabled again soon. So they stay parked on their
//! hooks, where a hit costs the gate's few instructions. A thread closes them one after the other, once no event was
//! enabled or disabled for a second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    attach::{AttachPoint, CloseThrottle, Parked},
    event::EventId,
};

/// Time without an event being enabled or disabled, after which parked events are closed.
const CALM: Duration = Duration::from_secs(1);

/// Parked events, by number.
#[derive(Debug, Default)]
struct State {
    parked: HashMap<EventId, Parked>,
    touched: Option<Instant>,
    closing: bool,
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
        let mut state = lock(&self.state);
        state.touched = Some(Instant::now());
        state.parked.remove(&event)
    }

    /// Whether an event is parked.
    pub(crate) fn has(&self, event: EventId) -> bool {
        lock(&self.state).parked.contains_key(&event)
    }

    /// Removes and returns all parked events.
    pub(crate) fn end(&self) -> Vec<Parked> {
        lock(&self.state).parked.drain().map(|(_, parked)| parked).collect()
    }

    /// Parks events.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = (EventId, Parked)>) {
        let mut state = lock(&self.state);
        state.parked.extend(events);
        state.touched = Some(Instant::now());
        if !state.closing && !state.parked.is_empty() {
            state.closing = true;
            let shared = Arc::clone(&self.state);
            std::thread::spawn(move || close(&shared));
        }
    }
}

/// Closes parked events until none is left.
fn close(shared: &Mutex<State>) {
    let mut throttle = CloseThrottle::default();
    loop {
        let mut state = lock(shared);
        let left = state.touched.map_or(Duration::ZERO, |touched| CALM.saturating_sub(touched.elapsed()));
        if left.is_zero() {
            let Some(event) = state.parked.keys().next().copied() else {
                state.closing = false;
                return;
            };
            let one = state.parked.remove(&event);
            drop(state);
            if one.as_ref().is_some_and(|parked| matches!(parked.point(), AttachPoint::Tracepoint(_))) {
                throttle.wait_for_openers();
            }
            drop(one);
        } else {
            drop(state);
            std::thread::sleep(left);
        }
    }
}
