//! Control of a histogram by its instance: pause, thread lists, and readers that wait for a hit.
//!
//! The words are in the session's switches. Triggers, readers and writers of files change them without a change of
//! the program. The thread lists apply as for events: `trace_event_buffer_reserve()` checks them before all triggers
//! that read the record, as histogram triggers do.

use std::mem::offset_of;

use tracer_abi::{Switches, control, hist, lists};

use super::control::control_record;
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, Label, MapRef, Reg, Width},
        lower::emitter::Emitter,
    },
    plan::source::{Other, ProgramContext},
};

/// A histogram's place in its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// Its place in [`Switches::paused`] and [`Switches::awaited`].
    pub place: u16,
    /// Whether the instance's lists of threads apply.
    pub lists: bool,
    /// Another thread that the event concerns.
    pub other: Option<Other>,
}

impl Within {
    fn paused(&self) -> i16 {
        (offset_of!(Switches, paused) + 4 * usize::from(self.place)) as i16
    }

    fn awaited(&self) -> i16 {
        (offset_of!(Switches, awaited) + 4 * usize::from(self.place)) as i16
    }
}

/// Jumps to `out` if the hit must not be counted.
pub(super) fn admit(emit: &mut Emitter, within: &Within, context: &ProgramContext, out: Label) {
    emit.note("paused");
    emit.map_value(Reg::R1, MapRef::Switches);
    emit.load(Width::W, Reg::R2, Reg::R1, within.paused());
    emit.jump_if(Cond::Ne, Reg::R2, 0, out);
    if !within.lists {
        return;
    }
    let none = emit.label();
    emit.load(Width::W, Reg::R2, Reg::R1, offset_of!(Switches, lists) as i16);
    emit.jump_if(Cond::Eq, Reg::R2, 0, none);
    let (in_force, mine) = (emit.save(Reg::R2), emit.alloc(8));
    if *context == ProgramContext::Inject {
        emit.load(Width::W, Reg::R0, Reg::R6, 4);
    } else {
        emit.call(Helper::GetCurrentPidTgid);
    }
    let key = emit.alloc(8);
    emit.store(Width::W, Reg::R10, key, Reg::R0);
    lists_of(emit, key);
    emit.store(Width::D, Reg::R10, mine, Reg::R0);
    match within.other {
        Some(Other::InRecord(offset)) => {
            emit.load(Width::W, Reg::R0, Reg::R6, offset as i16);
            emit.store(Width::W, Reg::R10, key, Reg::R0);
            lists_of(emit, key);
        }
        Some(Other::InTask { arg, offset }) => {
            emit.load(Width::D, Reg::R3, Reg::R6, 8 * i16::from(arg));
            emit.alu(Alu::Add, Reg::R3, offset.cast_signed());
            emit.read_kernel((Reg::R10, key), 4);
            lists_of(emit, key);
        }
        None => {}
    }
    let (traced, untraced) = (i32::from(lists::TRACED), i32::from(lists::UNTRACED));
    let others = emit.label();
    emit.load(Width::D, Reg::R1, Reg::R10, mine);
    emit.load(Width::D, Reg::R2, Reg::R10, in_force);
    emit.mov(Reg::R3, Reg::R2);
    emit.alu(Alu::And, Reg::R3, traced);
    emit.jump_if(Cond::Eq, Reg::R3, 0, others);
    emit.mov(Reg::R3, Reg::R0);
    emit.alu(Alu::Or, Reg::R3, Reg::R1);
    emit.alu(Alu::And, Reg::R3, traced);
    emit.jump_if(Cond::Eq, Reg::R3, 0, out);
    emit.bind(others);
    emit.alu(Alu::And, Reg::R2, Reg::R1);
    emit.alu(Alu::And, Reg::R2, Reg::R0);
    emit.alu(Alu::And, Reg::R2, untraced);
    emit.jump_if(Cond::Ne, Reg::R2, 0, out);
    emit.bind(none);
}

/// R0 = the lists that contain the thread with the number at `key`.
fn lists_of(emit: &mut Emitter, key: i16) {
    let none = emit.label();
    emit.look_up(MapRef::Pids, key);
    emit.jump_if(Cond::Eq, Reg::R0, 0, none);
    emit.load(Width::B, Reg::R0, Reg::R0, 0);
    emit.bind(none);
}

/// Reports that a hit was counted, if requested: resets the request, and wakes the reader if it waits.
pub(super) fn notify_reader(emit: &mut Emitter, within: &Within) {
    let done = emit.label();
    emit.note("awaited");
    emit.map_value(Reg::R1, MapRef::Switches);
    emit.load(Width::W, Reg::R2, Reg::R1, within.awaited());
    emit.jump_if(Cond::Eq, Reg::R2, 0, done);
    emit.mov(Reg::R2, 0);
    emit.atomic(Width::W, Atomic::Exchange, Reg::R1, within.awaited(), Reg::R2);
    emit.jump_if(Cond::Ne, Reg::R2, hist::WAKE.cast_signed(), done);
    // If the record is lost, the next hit tries again.
    control_record(emit, control::HIST, (within.awaited(), hist::WAKE.cast_signed()));
    emit.bind(done);
}
