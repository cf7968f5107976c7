//! Saves the arguments of a function at its entry for use at its return.
//!
//! A program at the entry stores the requested words in a map, and the program at the return reads them. This serves
//! hooks that show no arguments at the return (kretprobe, kprobe.multi).
//!
//! The key is the position of the frame on the stack. It distinguishes a call from all other calls in progress, in
//! other threads and further out in the same thread. A later call at the same position overwrites the words of an
//! earlier one. On x86 it is the stack pointer, which at the return is that of the entry without the return address. On
//! arm64 the return of an fprobe has no stack pointer (`return_to_handler`, arch/arm64/kernel/entry-ftrace.S), so it is
//! the caller's frame pointer.

use super::value::Fetch;
use crate::{
    code::{
        asm::{Alu, Cond, Function, Helper, MapRef, Reg, Width},
        lower::emitter::Emitter,
    },
    lang::facts::Arch,
    plan::probe::{ProbeContext, ProbePlan},
};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_args";

/// Lowers the program at the entry; None if no argument is to be saved.
pub fn program(plan: &ProbePlan) -> Option<Function> {
    let ProbeContext::Registers(arch) = plan.context else { return None };
    if plan.entry_args.is_empty() {
        return None;
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    let words = emit.alloc(8 * plan.entry_args.len());
    let key = emit.alloc(8);
    let mut fetch = Fetch::new(plan);
    for (at, value) in (words..).step_by(8).zip(&plan.entry_args) {
        fetch.value(&mut emit, value);
        emit.store(Width::D, Reg::R10, at, Reg::R9);
    }
    frame_key(&mut emit, arch, key, 0);
    emit.map(Reg::R1, MapRef::EntryArgs);
    emit.address(Reg::R2, Reg::R10, i32::from(key));
    emit.address(Reg::R3, Reg::R10, i32::from(words));
    emit.mov(Reg::R4, 0);
    emit.call(Helper::MapUpdateElem);
    emit.mov(Reg::R0, 0);
    emit.exit();
    Some(emit.finish(PROGRAM))
}

/// Copies the saved words to the stack, or zeroes if there are none, and returns their offset. `done` removes them
/// from the map.
pub(super) fn load(emit: &mut Emitter, arch: Arch, count: usize, done: bool) -> i16 {
    let words = emit.alloc(8 * count);
    let key = emit.alloc(8);
    let [none, copied] = emit.labels();
    // On x86 the return address is no longer on the stack.
    let popped = if arch == Arch::X86_64 { 8 } else { 0 };
    emit.note("what the function was called with");
    frame_key(emit, arch, key, popped);
    emit.look_up(MapRef::EntryArgs, key);
    emit.jump_if(Cond::Eq, Reg::R0, 0, none);
    emit.copy_words((Reg::R10, words), (Reg::R0, 0), 8 * count);
    if done {
        emit.map(Reg::R1, MapRef::EntryArgs);
        emit.address(Reg::R2, Reg::R10, i32::from(key));
        emit.call(Helper::MapDeleteElem);
    }
    emit.jump(copied);
    emit.bind(none);
    for at in (words..).step_by(8).take(count) {
        emit.store(Width::D, Reg::R10, at, 0);
    }
    emit.bind(copied);
    words
}

fn frame_key(emit: &mut Emitter, arch: Arch, key: i16, popped: i32) {
    let register = match arch {
        Arch::X86_64 => "sp",
        Arch::Arm64 => "x29",
    };
    let register = arch.register(register).unwrap_or_default();
    emit.load(Width::D, Reg::R1, Reg::R6, register as i16);
    emit.alu(Alu::Add, Reg::R1, -popped);
    emit.store(Width::D, Reg::R10, key, Reg::R1);
}
