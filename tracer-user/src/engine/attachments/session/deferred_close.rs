//! Events that were turned off a moment ago.
//!
//! To take a program off a perf tracepoint the kernel waits for all CPUs, under a lock that every other event needs too:
//! all events take minutes. Often they are wanted again soon. So they rest on their hooks, where a hit costs the gate's few
//! instructions, and are closed one after the other by a thread of its own, once nobody turns events on or off.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    attach::{AttachPoint, Parked, WayGiver},
    event::EventId,
};

/// How long nobody must have turned an event on or off before one is closed.
const CALM: Duration = Duration::from_secs(1);

/// Events at rest, by number.
#[derive(Debug, Default)]
struct State {
    resting: HashMap<EventId, Parked>,
    touched: Option<Instant>,
    closing: bool,
}

/// The events at rest of one instance.
#[derive(Debug, Default)]
pub(in crate::engine) struct DeferredClose {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeferredClose {
    /// Takes an event that still rests.
    pub(in crate::engine) fn take(&self, event: EventId) -> Option<Parked> {
        let mut state = lock(&self.state);
        state.touched = Some(Instant::now());
        state.resting.remove(&event)
    }

    /// Whether an event rests.
    pub(in crate::engine) fn has(&self, event: EventId) -> bool {
        lock(&self.state).resting.contains_key(&event)
    }

    /// Gives out all that rests.
    pub(in crate::engine) fn end(&self) -> Vec<Parked> {
        lock(&self.state).resting.drain().map(|(_, resting)| resting).collect()
    }

    /// Lets events rest.
    pub(in crate::engine) fn add(&self, events: impl IntoIterator<Item = (EventId, Parked)>) {
        let mut state = lock(&self.state);
        state.resting.extend(events);
        state.touched = Some(Instant::now());
        if !state.closing && !state.resting.is_empty() {
            state.closing = true;
            let shared = Arc::clone(&self.state);
            std::thread::spawn(move || close(&shared));
        }
    }
}

/// Closes what rests until nothing is left.
fn close(shared: &Mutex<State>) {
    let mut giver = WayGiver::default();
    loop {
        let mut state = lock(shared);
        let left = state.touched.map_or(Duration::ZERO, |touched| CALM.saturating_sub(touched.elapsed()));
        if left.is_zero() {
            let Some(event) = state.resting.keys().next().copied() else {
                state.closing = false;
                return;
            };
            let one = state.resting.remove(&event);
            drop(state);
            if one.as_ref().is_some_and(|resting| matches!(resting.via(), AttachPoint::Tracepoint(_))) {
                giver.make_way();
            }
            drop(one);
        } else {
            drop(state);
            std::thread::sleep(left);
        }
    }
}
