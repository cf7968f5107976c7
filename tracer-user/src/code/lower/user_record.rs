//! Records that a user program passes: copied from its memory unchanged, after the common fields.
//!
//! R6 is the `pt_regs` of the hook, R7 the payload or the filter's memory, R8 the common word, R9 the length of a
//! record that varies. A filter reads a copy, which then replaces the context, as for a dynamic event
//! ([`super::probe`]). If the filter reads only numbers near the record's beginning, the copy is on the stack, from
//! the first to the last of them. Otherwise it is where the record will be built, and has only the fixed part unless
//! the filter reads data after it.
//!
//! The program's data is untrusted: unreadable bytes become zero, and the length is limited to the largest record.

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD};

use super::{
    emitter::Emitter,
    image::{self, IMAGE_MAX, ReadBytes},
    output::LowerError,
};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        source::UserRecord,
    },
};

/// Copies the record to R7; returns the register with its length if that varies.
pub(super) fn copy(emit: &mut Emitter, record: UserRecord) -> Option<Reg> {
    if record.varies {
        copy_whole(emit, record);
        return Some(Reg::R9);
    }
    copy_fixed_part(emit, record);
    None
}

/// Copies the bytes that filters read and makes the copy the context.
pub(super) fn image(emit: &mut Emitter, record: UserRecord, filter: &Filter) -> Result<(), LowerError> {
    let read = ReadBytes::by(filter);
    let short = short(&read, filter);
    image::build(emit, &read, short, |emit| {
        if short.is_some() {
            let (from, to) = read.span().unwrap_or_default();
            copy_part(emit, record, from, to);
        } else if record.varies && reads_data(filter) {
            copy_whole(emit, record);
        } else {
            copy_fixed_part(emit, record);
        }
        Ok(())
    })
}

/// R1 = destination of the bytes from `from` on; R3 = their address in the program's memory.
fn load_ends(emit: &mut Emitter, record: UserRecord, from: usize) {
    emit.address(Reg::R1, Reg::R7, from as i32);
    emit.load(Width::D, Reg::R3, Reg::R6, record.address as i16);
    emit.alu(Alu::Add, Reg::R3, from as i32);
}

fn copy_fixed_part(emit: &mut Emitter, record: UserRecord) {
    copy_part(emit, record, COMMON_SIZE, usize::from(record.fixed));
}

/// Copies bytes `from..to`, a part of the fixed part.
fn copy_part(emit: &mut Emitter, record: UserRecord, from: usize, to: usize) {
    if from < to {
        emit.note(format!("the program's bytes {from} to {to}"));
        load_ends(emit, record, from);
        emit.mov(Reg::R2, (to - from) as i32);
        emit.call(Helper::ProbeReadUser);
    }
}

/// Copies the whole record; R9 = its length, between the sizes of the fixed part and of the largest record.
fn copy_whole(emit: &mut Emitter, record: UserRecord) {
    let longer = emit.label();
    emit.note("the program's record");
    emit.load(Width::D, Reg::R9, Reg::R6, record.length as i16);
    emit.jump_if(Cond::Ge, Reg::R9, i32::from(record.fixed), longer);
    emit.mov(Reg::R9, i32::from(record.fixed));
    emit.bind(longer);
    emit.limit(Reg::R9, MAX_PAYLOAD);
    load_ends(emit, record, COMMON_SIZE);
    emit.mov(Reg::R2, Reg::R9);
    emit.alu(Alu::Sub, Reg::R2, COMMON_SIZE as i32);
    // Changes nothing; older verifiers do not see that the length is more than the common fields.
    emit.alu(Alu::And, Reg::R2, MAX_PAYLOAD as i32 - 1);
    emit.call(Helper::ProbeReadUser);
}

/// Size in bytes of the stack copy for a filter that reads only numbers near the record's beginning; None for other
/// filters.
fn short(read: &ReadBytes, filter: &Filter) -> Option<usize> {
    let fits = |test: &Test| match test {
        // The verifier requires aligned accesses to the stack.
        Test::Number { place, .. }
        | Test::Function { place, .. }
        | Test::Cpus { subject: CpusSubject::Scalar { place }, .. } => {
            place.offset.is_multiple_of(place.size)
        }
        Test::Cpu { .. } => true,
        Test::Cpus { .. } | Test::Text { .. } => false,
    };
    let size = read.span().map_or(COMMON_SIZE, |(_, to)| to);
    (size <= IMAGE_MAX && filter.tests().into_iter().all(fits)).then_some(size)
}

/// Whether a filter reads data after the fixed part.
fn reads_data(filter: &Filter) -> bool {
    filter.tests().into_iter().any(|test| match test {
        Test::Text { text, .. } => !matches!(text, Text::Static(_) | Text::Pointer { .. } | Text::Comm),
        Test::Cpus { subject, .. } => !matches!(subject, CpusSubject::Scalar { .. }),
        Test::Number { .. } | Test::Function { .. } | Test::Cpu { .. } => false,
    })
}
