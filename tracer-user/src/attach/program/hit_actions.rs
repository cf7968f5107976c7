//! Actions of a program at a hit in addition to the record: triggers and stacks.

use tracer_abi::{Params, params};

use crate::{
    event::Slot,
    plan::trigger::{self, Trigger},
};

/// Actions of a hit in addition to its record; none by default.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part of a program by itself")]
pub struct HitActions<'a> {
    /// The event's triggers, in order.
    pub triggers: &'a [Trigger],
    /// Triggers enable and disable the event ([`Switches::set_soft`](crate::attach::Switches::set_soft)).
    pub soft: bool,
    /// The slot whose word triggers change, if it is another event's slot: several programs make one event.
    pub soft_slot: Option<Slot>,
    /// The event is disabled in this sense when it is attached.
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
    pub(crate) fn needs_stack(&self) -> bool {
        let is_stack_trace = |trigger: &Trigger| trigger.action == trigger::Action::StackTrace;
        self.kernel_stack || self.user_stack || self.triggers.iter().any(is_stack_trace)
    }

    pub(crate) fn apply(&self, fixed: &mut Params, slot: Slot) {
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
            fixed.soft = self.soft_slot.unwrap_or(slot).get();
        }
        if self.needs_stack() {
            fixed.stacks = u32::from(self.stacks[0]) | u32::from(self.stacks[1]) << 16;
        }
    }
}
