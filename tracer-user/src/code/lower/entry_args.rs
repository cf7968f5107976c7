//! Saves the arguments of a function at its entry for use at its return.
//!
//! A program at the entry stores the requested words in a map, and the program at the return reads them. This serves
//! hooks that show no arguments at the return (kretprobe, kprobe.multi).
//!
//! The key is the position of the frame on the stack. It distinguishes a call from all other calls in progress, in
//! other threads and further out in the same thread. A later call at the same position overwrites the words of an
//! earlier one. At the return, the stack pointer is that of the entry, except that x86 has popped the return address.
//! Kretprobes and rethooks provide the registers in that state (`arch/x86/kernel/rethook.c`,
//! `arch/arm64/kernel/probes/kprobes_trampoline.S`).

use super::{Lower, LowerError, Uses, probe};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, MapRef, Reg, Width},
    lang::facts::Arch,
    plan::{
        probe::{ProbeContext, ProbePlan},
        source::ProgramContext,
    },
};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_keep";

/// Lowers the program at the entry; None if no argument is to be saved.
///
/// # Errors
/// If an argument is not available.
pub fn keep(plan: &ProbePlan) -> Result<Option<Function>, LowerError> {
    let ProbeContext::Registers(arch) = plan.given else { return Ok(None) };
    if plan.kept.is_empty() {
        return Ok(None);
    }
    let mut lower = Lower::new(&ProgramContext::Inject, Uses { calls: true, ..Uses::default() });
    lower.asm.mov(Reg::R6, Reg::R1);
    let words = lower.frame.take(8 * plan.kept.len(), 0);
    let key = lower.frame.take(8, 0);
    let mut fetch = probe::Fetch::new(plan);
    for (at, value) in (words..).step_by(8).zip(&plan.kept) {
        lower.fetch_value(&mut fetch, value);
        lower.asm.store(Width::D, Reg::R10, at, Reg::R9);
    }
    lower.frame_key(arch, key, 0);
    lower.kept_map();
    lower.asm.address(Reg::R2, Reg::R10, i32::from(key));
    lower.asm.address(Reg::R3, Reg::R10, i32::from(words));
    lower.asm.mov(Reg::R4, 0);
    lower.call(Helper::MapUpdateElem);
    lower.asm.mov(Reg::R0, 0);
    lower.asm.exit();
    Ok(Some(lower.asm.finish(PROGRAM)))
}

impl Lower<'_> {
    /// Copies the saved words to the stack, or zeroes if there are none, and returns their offset. `done` removes them
    /// from the map.
    pub(super) fn kept_words(&mut self, arch: Arch, count: usize, done: bool) -> i16 {
        let words = self.frame.take(8 * count, 0);
        let key = self.frame.take(8, 0);
        let [none, copied] = std::array::from_fn(|_| self.asm.label());
        // On x86 the return address is no longer on the stack.
        let popped = if arch == Arch::X86_64 { 8 } else { 0 };
        self.asm.note("what the function was called with");
        self.frame_key(arch, key, popped);
        self.kept_map();
        self.asm.address(Reg::R2, Reg::R10, i32::from(key));
        self.call(Helper::MapLookupElem);
        self.jump_if(Cond::Eq, Reg::R0, 0, none);
        for at in (0..).step_by(8).take(count) {
            self.asm.load(Width::D, Reg::R1, Reg::R0, at);
            self.asm.store(Width::D, Reg::R10, words + at, Reg::R1);
        }
        if done {
            self.kept_map();
            self.asm.address(Reg::R2, Reg::R10, i32::from(key));
            self.call(Helper::MapDeleteElem);
        }
        self.jump(copied);
        self.bind(none);
        for at in (words..).step_by(8).take(count) {
            self.asm.store(Width::D, Reg::R10, at, 0);
        }
        self.bind(copied);
        words
    }

    fn frame_key(&mut self, arch: Arch, key: i16, popped: i32) {
        let sp = arch.register("sp").unwrap_or_default();
        self.asm.load(Width::D, Reg::R1, Reg::R6, sp as i16);
        self.asm.alu(Alu::Add, Reg::R1, -popped);
        self.asm.store(Width::D, Reg::R10, key, Reg::R1);
    }

    /// R1 = the map.
    fn kept_map(&mut self) {
        self.asm.map(Reg::R1, MapRef::EntryArgs);
    }
}
