//! How an instance controls a histogram: whether it is paused, whose hits are left out, and whether a reader waits.
//!
//! The words are in the session's switches, so that triggers, readers and writers of files change them without changing
//! the program. The lists of threads are checked as for events: `trace_event_buffer_reserve()` comes before all
//! triggers that read the record, and histograms read it.

use std::mem::offset_of;

use tracer_abi::{Switches, control, hist, lists};

use super::Request;
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, Label, MapRef, Reg, Width},
        lower::Lower,
    },
    plan::source::{Other, ProgramContext},
};

/// `BPF_RB_FORCE_WAKEUP`
const FORCE_WAKEUP: i32 = 2;

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

impl Lower<'_> {
    /// Jumps to `out` if the hit is not to be counted.
    pub(super) fn stand_by(&mut self, within: &Within, request: &Request<'_>, out: Label) {
        self.asm.note("paused");
        self.asm.map_value(Reg::R1, MapRef::Switches);
        self.asm.load(Width::W, Reg::R2, Reg::R1, within.paused());
        self.jump_if(Cond::Ne, Reg::R2, 0, out);
        if !within.lists {
            return;
        }
        let none = self.asm.label();
        self.asm.load(Width::W, Reg::R2, Reg::R1, offset_of!(Switches, lists) as i16);
        self.jump_if(Cond::Eq, Reg::R2, 0, none);
        let (in_force, mine) = (self.frame.take(8, 0), self.frame.take(8, 0));
        self.asm.store(Width::D, Reg::R10, in_force, Reg::R2);
        if *request.hook == ProgramContext::Inject {
            self.asm.load(Width::W, Reg::R0, Reg::R6, 4);
        } else {
            self.call(Helper::GetCurrentPidTgid);
        }
        let key = self.frame.take(8, 0);
        self.asm.store(Width::W, Reg::R10, key, Reg::R0);
        self.lists_of(key);
        self.asm.store(Width::D, Reg::R10, mine, Reg::R0);
        match within.other {
            Some(Other::InRecord(offset)) => {
                self.asm.load(Width::W, Reg::R0, Reg::R6, offset as i16);
                self.asm.store(Width::W, Reg::R10, key, Reg::R0);
                self.lists_of(key);
            }
            Some(Other::InTask { arg, offset }) => {
                self.asm.load(Width::D, Reg::R3, Reg::R6, 8 * i16::from(arg));
                self.asm.alu(Alu::Add, Reg::R3, offset.cast_signed());
                self.asm.address(Reg::R1, Reg::R10, i32::from(key));
                self.asm.mov(Reg::R2, 4);
                self.call(Helper::ProbeReadKernel);
                self.lists_of(key);
            }
            None => {}
        }
        let (traced, untraced) = (i32::from(lists::TRACED), i32::from(lists::UNTRACED));
        let others = self.asm.label();
        self.asm.load(Width::D, Reg::R1, Reg::R10, mine);
        self.asm.load(Width::D, Reg::R2, Reg::R10, in_force);
        self.asm.mov(Reg::R3, Reg::R2);
        self.asm.alu(Alu::And, Reg::R3, traced);
        self.jump_if(Cond::Eq, Reg::R3, 0, others);
        self.asm.mov(Reg::R3, Reg::R0);
        self.asm.alu(Alu::Or, Reg::R3, Reg::R1);
        self.asm.alu(Alu::And, Reg::R3, traced);
        self.jump_if(Cond::Eq, Reg::R3, 0, out);
        self.bind(others);
        self.asm.alu(Alu::And, Reg::R2, Reg::R1);
        self.asm.alu(Alu::And, Reg::R2, Reg::R0);
        self.asm.alu(Alu::And, Reg::R2, untraced);
        self.jump_if(Cond::Ne, Reg::R2, 0, out);
        self.bind(none);
    }

    /// R0 = the lists that contain the thread whose number is at `key`.
    fn lists_of(&mut self, key: i16) {
        let none = self.asm.label();
        self.asm.map(Reg::R1, MapRef::Pids);
        self.asm.address(Reg::R2, Reg::R10, i32::from(key));
        self.call(Helper::MapLookupElem);
        self.jump_if(Cond::Eq, Reg::R0, 0, none);
        self.asm.load(Width::B, Reg::R0, Reg::R0, 0);
        self.bind(none);
    }

    /// Reports that a hit was counted, if requested: resets the request, and wakes the reader if it waits.
    pub(super) fn tell_who_waits(&mut self, within: &Within) {
        let (lost, done) = (self.asm.label(), self.asm.label());
        self.asm.note("awaited");
        self.asm.map_value(Reg::R1, MapRef::Switches);
        self.asm.load(Width::W, Reg::R2, Reg::R1, within.awaited());
        self.jump_if(Cond::Eq, Reg::R2, 0, done);
        self.asm.mov(Reg::R2, 0);
        self.asm.atomic(Width::W, Atomic::Exchange, Reg::R1, within.awaited(), Reg::R2);
        self.jump_if(Cond::Ne, Reg::R2, hist::WAKE.cast_signed(), done);
        self.control_record(control::HIST, FORCE_WAKEUP, lost);
        self.jump(done);
        self.bind(lost);
        // The next hit tries again.
        self.asm.map_value(Reg::R1, MapRef::Switches);
        self.asm.store(Width::W, Reg::R1, within.awaited(), hist::WAKE.cast_signed());
        self.bind(done);
    }
}
