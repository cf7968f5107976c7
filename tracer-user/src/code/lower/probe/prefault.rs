//! Faults user memory in before it is read: a sleepable program that runs before the recording program.
//!
//! A program that a dispatch table tail-calls cannot wait for pages, but the kernel's own uprobes do. This program
//! follows the same pointers with `bpf_copy_from_user()`, which waits, and discards the data. Memory that is missing
//! for this program is missing for the recording program too.

use super::value::{AddressSpace, Fetch, steps};
use crate::{
    code::{
        asm::{Alu, Cond, Function, Helper, MapRef, Reg, Width},
        lower::emitter::Emitter,
    },
    lang::fetch::Store,
    plan::probe::{ArgPlan, ProbePlan, Step},
};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_prefault";

/// Size in bytes of the memory that texts are read to, in order to test whether all of a text is present.
pub const TEXT_SIZE: usize = 4096;

/// Bits of an address within a page; larger pages are read more often than necessary.
const PAGE_MASK: i32 = 4095;

/// Lowers the prefault program; None if the record needs no user memory.
pub fn program(plan: &ProbePlan) -> Option<Function> {
    let reads = |arg: &ArgPlan| !arg.value.is_own() && (!arg.steps.is_empty() || arg.store != Store::Raw);
    let args: Vec<&ArgPlan> =
        plan.args.iter().filter(|arg| reads(arg) && arg.store != Store::SymbolText).collect();
    if !plan.user || args.is_empty() {
        return None;
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    let mut fetch = Fetch::new(plan);
    for arg in args {
        prefault_arg(&mut emit, &mut fetch, arg);
    }
    emit.mov(Reg::R0, 0);
    emit.exit();
    Some(emit.finish(PROGRAM))
}

fn prefault_arg(emit: &mut Emitter, fetch: &mut Fetch<'_>, arg: &ArgPlan) {
    emit.note(format!("{}: {}", arg.name, arg.value));
    let next = emit.label();
    let slot = fetch.slot(emit);
    fetch.value(emit, &arg.value);
    let (last, before) = steps(arg);
    for step in before {
        // A probe in user space has no other steps.
        let Step::Deref(deref) = step else { continue };
        emit.address(Reg::R3, Reg::R9, deref.offset);
        copy(emit, slot, 8);
        emit.jump_if(Cond::Ne, Reg::R0, 0, next);
        emit.load(Width::D, Reg::R9, Reg::R10, slot);
    }
    match (arg.store, last) {
        (Store::Raw, _) => {}
        (_, Some(last)) => {
            for element in 0..arg.count {
                let skip = emit.label();
                emit.address(Reg::R3, Reg::R9, last.offset.wrapping_add(8 * element.cast_signed()));
                copy(emit, slot, 8);
                emit.jump_if(Cond::Ne, Reg::R0, 0, skip);
                emit.load(Width::D, Reg::R3, Reg::R10, slot);
                prefault_text(emit, arg.store_offset, slot);
                emit.bind(skip);
            }
        }
        _ if arg.is_text() => {
            emit.mov(Reg::R3, Reg::R9);
            prefault_text(emit, arg.store_offset, slot);
        }
        _ => {
            for byte in [0, arg.bytes() as i32 - 1] {
                emit.address(Reg::R3, Reg::R9, arg.store_offset + byte);
                copy(emit, slot, 1);
            }
        }
    }
    emit.bind(next);
}

/// Waits for the memory at R3; R0 is 0 if it is present.
fn copy(emit: &mut Emitter, slot: i16, size: i32) {
    emit.address(Reg::R1, Reg::R10, i32::from(slot));
    emit.mov(Reg::R2, size);
    emit.call(Helper::CopyFromUser);
}

/// Faults the text at R3 plus an offset in: if it cannot be read directly, its page and the next one.
fn prefault_text(emit: &mut Emitter, offset: i32, slot: i16) {
    let done = emit.label();
    emit.alu(Alu::Add, Reg::R3, offset);
    // R7 holds the address instead of the stack, because R7 is unused here.
    emit.mov(Reg::R7, Reg::R3);
    emit.map_value(Reg::R1, MapRef::Prefault);
    emit.mov(Reg::R2, TEXT_SIZE as i32);
    AddressSpace::User.read_text(emit);
    emit.jump_if(Cond::SGe, Reg::R0, 0, done);
    emit.mov(Reg::R3, Reg::R7);
    copy(emit, slot, 1);
    emit.jump_if(Cond::Ne, Reg::R0, 0, done);
    emit.mov(Reg::R3, Reg::R7);
    emit.alu(Alu::Or, Reg::R3, PAGE_MASK);
    emit.alu(Alu::Add, Reg::R3, 1);
    copy(emit, slot, 1);
    emit.bind(done);
}
