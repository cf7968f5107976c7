//! The switches of a session in memory that its programs read: tracing, soft-disabled events, triggers and histograms.

use std::sync::Arc;

use tracer_abi::halted;

use super::Session;
use crate::{attach::program::maps::Shared, event::Slot};

/// Reads whether a session takes hits.
#[derive(Clone, Debug)]
pub struct TracingSwitch(Arc<Shared>);

impl TracingSwitch {
    /// Whether the session takes hits, as user space or a trigger set it last.
    pub fn is_on(&self) -> bool {
        self.0.halted() & halted::OFF == 0
    }
}

impl Session {
    /// Whether hits are taken, as user space or a trigger set it last.
    pub fn is_tracing(&self) -> bool {
        self.shared.halted() & halted::OFF == 0
    }

    /// A reader of the same state for other threads.
    pub fn switch(&self) -> TracingSwitch {
        TracingSwitch(Arc::clone(&self.shared))
    }

    /// Stops hits independently of [`Session::set_tracing`], while a reader needs it.
    pub fn pause(&self, paused: bool) {
        self.shared.halt(halted::PAUSED, paused);
    }

    /// Whether a trigger or [`Session::set_soft`] turned the event at this slot off.
    pub fn soft(&self, slot: Slot) -> bool {
        self.shared.soft(slot)
    }

    /// Turns an event off or on whose request sets [`HitActions::soft`].
    pub fn set_soft(&self, slot: Slot, off: bool) {
        self.shared.set_soft(slot, off);
    }

    /// How often a trigger may still act; `place` as in [`trigger::Count`].
    pub fn count(&self, place: u16) -> u64 {
        self.shared.count(place)
    }

    /// Sets how often a trigger may act.
    pub fn set_count(&self, place: u16, count: u64) {
        self.shared.set_count(place, count);
    }

    /// Whether a histogram is paused, as user space or a trigger set it last.
    pub fn hist_paused(&self, place: u16) -> bool {
        self.shared.hist_paused(place)
    }

    /// Pauses or continues a histogram.
    pub fn pause_hist(&self, place: u16, paused: bool) {
        self.shared.pause_hist(place, paused);
    }

    /// Sets the request for the next hit that a histogram counts ([`tracer_abi::hist`]). Returns whether a hit was
    /// counted since the last call.
    pub fn await_hist(&self, place: u16, what: u32) -> bool {
        self.shared.await_hist(place, what)
    }

    /// Whether a trigger requested a snapshot while the ring was full, since the last call.
    pub fn lost_snapshot(&self) -> bool {
        self.shared.lost_snapshot()
    }
}
