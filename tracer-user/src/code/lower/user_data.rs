//! User memory that a system call's arguments point to, appended to the record of its entry.
//!
//! The bytes are those that the kernel records (`sys_fault_user()`, kernel/trace/trace_syscalls.c): of a text those
//! before its NUL, with a dot in place of each that cannot be printed, and three dots at the end if more follow; of
//! other data as many bytes as another argument says. The kernel waits for pages that are absent. A program cannot, so
//! such data is empty here, as it is in the kernel where memory is not readable at all.
//!
//! R7 is the record, R8 the offset of the next data.

use std::mem::offset_of;

use tracer_abi::Switches;

use super::{emitter::Emitter, values::Values};
use crate::{
    code::asm::{Alu, Cond, Helper, Label, MapRef, Reg, Width},
    plan::source::{FieldSource, UserData},
};

/// Marks a text that goes on, with its NUL.
const OMISSION: [u8; 4] = *b"...\0";
/// Number of times that a byte is in a word of 64 bits.
const EACH: u64 = 0x0101_0101_0101_0101;

/// Largest number of bytes that a source appends.
pub(super) fn most(data: &UserData) -> usize {
    usize::from(UserData::MAX) + if data.length.is_some() { 0 } else { OMISSION.len() }
}

/// Appends the data of a field, and stores its location. `before` is the largest value of R8, for the verifier.
pub(super) fn append(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    field: &FieldSource,
    data: &UserData,
    before: usize,
) {
    let [empty, done] = emit.labels();
    let mut register = |emit: &mut Emitter, at| {
        // Another register may be read to the same place.
        values.memory.value(emit, data.regs, &[at], 0, Width::D);
        emit.save(Reg::R0)
    };
    let pointer = register(emit, data.pointer);
    let length = data.length.map(|at| register(emit, at));
    let max = max(emit, empty);
    emit.limit(Reg::R8, before);
    emit.mov(Reg::R1, Reg::R7);
    emit.alu(Alu::Add, Reg::R1, Reg::R8);
    emit.load(Width::D, Reg::R3, Reg::R10, pointer);
    match length {
        Some(length) => bytes(emit, length, max, empty),
        None => text(emit, before, max, empty),
    }
    emit.mov(Reg::R1, Reg::R0);
    emit.alu(Alu::Lsh, Reg::R1, 16);
    emit.alu(Alu::Or, Reg::R1, Reg::R8);
    emit.store(Width::W, Reg::R7, field.offset as i16, Reg::R1);
    emit.alu(Alu::Add, Reg::R8, Reg::R0);
    emit.jump(done);
    emit.bind(empty);
    emit.store(Width::W, Reg::R7, field.offset as i16, Reg::R8);
    emit.bind(done);
}

/// The number of bytes that the instance records at most, at this offset of the stack. Jumps to `none` if it is 0.
fn max(emit: &mut Emitter, none: Label) -> i16 {
    let index = emit.save(0);
    emit.look_up(MapRef::Switches, index);
    emit.jump_if(Cond::Eq, Reg::R0, 0, none);
    emit.load(Width::W, Reg::R0, Reg::R0, offset_of!(Switches, user_data) as i16);
    emit.jump_if(Cond::Eq, Reg::R0, 0, none);
    emit.limit(Reg::R0, usize::from(UserData::MAX));
    emit.save(Reg::R0)
}

/// R4 = that number.
fn load_max(emit: &mut Emitter, max: i16) {
    emit.load(Width::D, MAX, Reg::R10, max);
    // It never exceeds this; the check is for the verifier.
    emit.limit(MAX, usize::from(UserData::MAX));
}

/// Register of [`load_max`].
const MAX: Reg = Reg::R4;

/// Reads as many bytes from R3 to R1 as the word at `length` says. R0 = their number.
fn bytes(emit: &mut Emitter, length: i16, max: i16, empty: Label) {
    emit.load(Width::D, Reg::R9, Reg::R10, length);
    emit.limit(Reg::R9, usize::from(UserData::READ));
    emit.mov(Reg::R2, Reg::R9);
    emit.call(Helper::ProbeReadUser);
    emit.jump_if(Cond::Ne, Reg::R0, 0, empty);
    load_max(emit, max);
    let fits = emit.label();
    emit.mov(Reg::R0, Reg::R9);
    emit.jump_if(Cond::Le, Reg::R0, MAX, fits);
    emit.mov(Reg::R0, MAX);
    emit.bind(fits);
}

/// Reads the text at R3 to R1. R0 = its length, NUL included.
fn text(emit: &mut Emitter, before: usize, max: i16, empty: Label) {
    let [counted, short, done] = emit.labels();
    emit.mov(Reg::R2, i32::from(UserData::READ) + 1);
    emit.call(Helper::ProbeReadUserStr);
    emit.jump_if(Cond::SLt, Reg::R0, 0, empty);
    // For an empty text the helper of some kernels returns 0 and does not count the NUL.
    emit.jump_if(Cond::Ne, Reg::R0, 0, counted);
    emit.mov(Reg::R0, 1);
    emit.bind(counted);
    // R9 = length without NUL; the limits are for the verifier.
    emit.mov(Reg::R9, Reg::R0);
    emit.alu(Alu::Sub, Reg::R9, 1);
    emit.limit(Reg::R9, usize::from(UserData::READ));
    emit.limit(Reg::R8, before);
    emit.mov(Reg::R2, Reg::R7);
    emit.alu(Alu::Add, Reg::R2, Reg::R8);
    replace_unprintable(emit);
    load_max(emit, max);
    emit.jump_if(Cond::Le, Reg::R9, MAX, short);
    emit.alu(Alu::Add, Reg::R2, MAX);
    for (at, byte) in (0..).zip(OMISSION) {
        emit.store(Width::B, Reg::R2, at, i32::from(byte));
    }
    emit.address(Reg::R0, MAX, OMISSION.len() as i32);
    emit.jump(done);
    emit.bind(short);
    emit.alu(Alu::Add, Reg::R2, Reg::R9);
    emit.store(Width::B, Reg::R2, 0, 0);
    emit.address(Reg::R0, Reg::R9, 1);
    emit.bind(done);
}

/// Replaces bytes of the text at R2, R9 bytes long, by dots: those that are not printable in Latin-1 (`isprint()`,
/// lib/ctype.c). Works on words of eight bytes, so that up to seven bytes after the text change too.
///
/// A byte is printable if bit 5 or 6 is set, except 0x7f.
fn replace_unprintable(emit: &mut Emitter) {
    let end = emit.label();
    for at in (0..UserData::READ.cast_signed()).step_by(8) {
        let next = emit.label();
        emit.jump_if(Cond::Le, Reg::R9, i32::from(at), end);
        emit.load(Width::D, Reg::R0, Reg::R2, at);
        // R3: bit 7 of each byte that has neither bit 5 nor bit 6
        emit.mov(Reg::R3, Reg::R0);
        emit.alu(Alu::Lsh, Reg::R3, 1);
        emit.alu(Alu::Or, Reg::R3, Reg::R0);
        emit.constant(Reg::R5, 0x40 * EACH);
        emit.alu(Alu::And, Reg::R3, Reg::R5);
        emit.alu(Alu::Xor, Reg::R3, Reg::R5);
        emit.alu(Alu::Lsh, Reg::R3, 1);
        // R4: bit 7 of each byte that is 0x7f
        emit.constant(Reg::R5, 0x7f * EACH);
        emit.mov(Reg::R1, Reg::R0);
        emit.alu(Alu::Xor, Reg::R1, Reg::R5);
        emit.mov(Reg::R4, Reg::R1);
        emit.alu(Alu::And, Reg::R4, Reg::R5);
        emit.alu(Alu::Add, Reg::R4, Reg::R5);
        emit.alu(Alu::Or, Reg::R4, Reg::R1);
        emit.alu(Alu::Or, Reg::R4, Reg::R5);
        emit.alu(Alu::Xor, Reg::R4, -1);
        emit.alu(Alu::Or, Reg::R3, Reg::R4);
        emit.jump_if(Cond::Eq, Reg::R3, 0, next);
        // R4: all bits of these bytes
        emit.mov(Reg::R4, Reg::R3);
        emit.alu(Alu::Rsh, Reg::R4, 7);
        emit.mov(Reg::R1, Reg::R3);
        emit.alu(Alu::Sub, Reg::R1, Reg::R4);
        emit.alu(Alu::Or, Reg::R1, Reg::R3);
        emit.constant(Reg::R5, u64::from(b'.') * EACH);
        emit.alu(Alu::Xor, Reg::R5, Reg::R0);
        emit.alu(Alu::And, Reg::R5, Reg::R1);
        emit.alu(Alu::Xor, Reg::R0, Reg::R5);
        emit.store(Width::D, Reg::R2, at, Reg::R0);
        emit.bind(next);
    }
    emit.bind(end);
}
