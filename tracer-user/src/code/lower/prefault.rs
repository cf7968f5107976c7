//! Faults user memory in before it is read: a sleepable program that runs before the recording program.
//!
//! A program that a gate tail-calls cannot wait for pages, but the kernel's own uprobes do. This program follows the
//! same pointers with `bpf_copy_from_user()`, which waits, and discards the data. Memory that is missing for this
//! program is missing for the recording program too.

use super::{
    Lower, LowerError, Uses,
    probe::{self, Whose},
};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, MapRef, Reg, Width},
    lang::fetch::Store,
    plan::{
        probe::{ArgPlan, ProbePlan},
        source::ProgramContext,
    },
};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_touch";

/// Size in bytes of the memory that texts are read to, in order to test whether all of a text is present.
pub const ROOM: usize = 4096;

/// Bits of an address within a page; larger pages are touched more often than necessary.
const PAGE_MASK: i32 = 4095;

/// Lowers the program; None if the record needs no user memory.
///
/// # Errors
/// If a value is not available.
pub fn touch(plan: &ProbePlan) -> Result<Option<Function>, LowerError> {
    let reads = |arg: &ArgPlan| !arg.value.is_own() && (!arg.derefs.is_empty() || arg.store != Store::Raw);
    let args: Vec<&ArgPlan> =
        plan.args.iter().filter(|arg| reads(arg) && arg.store != Store::SymbolText).collect();
    if !plan.user || args.is_empty() {
        return Ok(None);
    }
    let mut lower = Lower::new(&ProgramContext::Inject, Uses { calls: true, ..Uses::default() });
    lower.asm.mov(Reg::R6, Reg::R1);
    let mut fetch = probe::Fetch::new(plan);
    for arg in args {
        lower.touch_arg(&mut fetch, arg);
    }
    lower.asm.mov(Reg::R0, 0);
    lower.asm.exit();
    Ok(Some(lower.asm.finish(PROGRAM)))
}

impl Lower<'_> {
    fn touch_arg(&mut self, fetch: &mut probe::Fetch<'_>, arg: &ArgPlan) {
        self.asm.note(format!("{}: {}", arg.name, arg.value));
        let next = self.asm.label();
        let slot = fetch.slot(self);
        self.fetch_value(fetch, &arg.value);
        let pointers = arg.is_text() && arg.count > 1;
        let (last, before) = match arg.derefs.split_last() {
            Some((last, before)) if pointers => (Some(last), before),
            _ => (None, &arg.derefs[..]),
        };
        for deref in before {
            self.asm.address(Reg::R3, Reg::R9, deref.offset);
            self.copy(slot, 8);
            self.jump_if(Cond::Ne, Reg::R0, 0, next);
            self.asm.load(Width::D, Reg::R9, Reg::R10, slot);
        }
        match (arg.store, last) {
            (Store::Raw, _) => {}
            (_, Some(last)) => {
                for element in 0..arg.count {
                    let skip = self.asm.label();
                    self.asm.address(Reg::R3, Reg::R9, last.offset.wrapping_add(8 * element.cast_signed()));
                    self.copy(slot, 8);
                    self.jump_if(Cond::Ne, Reg::R0, 0, skip);
                    self.asm.load(Width::D, Reg::R3, Reg::R10, slot);
                    self.touch_text(arg.store_offset, slot);
                    self.bind(skip);
                }
            }
            _ if arg.is_text() => {
                self.asm.mov(Reg::R3, Reg::R9);
                self.touch_text(arg.store_offset, slot);
            }
            _ => {
                for byte in [0, arg.bytes() as i32 - 1] {
                    self.asm.address(Reg::R3, Reg::R9, arg.store_offset + byte);
                    self.copy(slot, 1);
                }
            }
        }
        self.bind(next);
    }

    /// Waits for the memory at R3; R0 is 0 if it is present.
    fn copy(&mut self, slot: i16, size: i32) {
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, size);
        self.call(Helper::CopyFromUser);
    }

    /// Faults the text at R3 plus an offset in: if it cannot be read directly, its page and the next one.
    fn touch_text(&mut self, offset: i32, slot: i16) {
        let done = self.asm.label();
        self.asm.alu(Alu::Add, Reg::R3, offset);
        // R7 holds the address instead of the stack, because R7 is unused here.
        self.asm.mov(Reg::R7, Reg::R3);
        self.asm.map_value(Reg::R1, MapRef::Prefault);
        self.asm.mov(Reg::R2, ROOM as i32);
        self.read(Whose::User, true);
        self.jump_if(Cond::SGe, Reg::R0, 0, done);
        self.asm.mov(Reg::R3, Reg::R7);
        self.copy(slot, 1);
        self.jump_if(Cond::Ne, Reg::R0, 0, done);
        self.asm.mov(Reg::R3, Reg::R7);
        self.asm.alu(Alu::Or, Reg::R3, PAGE_MASK);
        self.asm.alu(Alu::Add, Reg::R3, 1);
        self.copy(slot, 1);
        self.bind(done);
    }
}
