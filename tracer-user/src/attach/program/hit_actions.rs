//! What a program does at a hit in addition to recording it: triggers and stacks.

use std::sync::Arc;

use tracer_abi::{Params, halted, params};

use super::maps::Shared;
use crate::{
    attach::Session,
    plan::trigger::{self, Trigger},
};

/// What a hit does in addition to being recorded; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part of a program by itself")]
pub struct HitActions<'a> {
    /// The event's triggers, in order.
    pub triggers: &'a [Trigger],
    /// Triggers turn the event on and off ([`crate::attach::Session::soft`]).
    pub soft: bool,
    /// The slot that they use, if it is another event's slot: several programs make one event.
    pub soft_slot: Option<u32>,
    /// The event starts turned off in that sense when it is attached.
    pub begins_off: bool,
    /// The program adds a record of the kernel stack after each record.
    pub kernel_stack: bool,
    /// The program adds a record of the thread's user stack after each record.
    pub user_stack: bool,
    /// Kinds of these two records.
    pub stacks: [u16; 2],
    /// The program runs triggers only and records nothing.
    pub no_record: bool,
    /// Several programs make the event and count in the same row.
    pub shared_row: bool,
    /// Histograms run after the triggers, so all triggers read the record.
    pub counted: bool,
}

impl HitActions<'_> {
    pub(in crate::attach) fn wants_stack(&self) -> bool {
        let asks = |trigger: &Trigger| trigger.action == trigger::Action::StackTrace;
        self.kernel_stack || self.user_stack || self.triggers.iter().any(asks)
    }

    /// Sets the corresponding parameters.
    pub(in crate::attach) fn apply(&self, fixed: &mut Params, slot: u32) {
        let triggers = self.triggers;
        for (holds, bit) in [
            (!triggers.is_empty(), params::TRIGGERS),
            (
                trigger::sees_record(triggers) || !triggers.is_empty() && (self.no_record || self.counted),
                params::SEES_RECORD,
            ),
            (trigger::turns_on(triggers), params::TURNS_ON),
            (trigger::stack_first(triggers), params::STACK_FIRST),
            (self.soft, params::SOFT),
            (self.kernel_stack, params::KERNEL_STACK),
            (self.user_stack, params::USER_STACK),
            (self.no_record, params::NO_RECORD),
            (self.shared_row, params::SHARED_ROW),
        ] {
            if holds {
                fixed.bits |= bit;
            }
        }
        if self.soft {
            fixed.soft = self.soft_slot.unwrap_or(slot);
        }
        if self.wants_stack() {
            fixed.stacks = u32::from(self.stacks[0]) | u32::from(self.stacks[1]) << 16;
        }
    }
}

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
    pub fn soft(&self, slot: u32) -> bool {
        self.shared.soft(slot)
    }

    /// Turns an event off or on whose request sets [`HitActions::soft`].
    pub fn set_soft(&self, slot: u32, off: bool) {
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
