//! Records that a user program passes: copied from its memory unchanged, after the common fields.
//!
//! R6 is the `pt_regs` of the hook, R7 the payload or the filter's memory, R8 the common word, R9 the length of a
//! record that varies. A filter reads a copy, which then replaces the context, as for a dynamic event
//! ([`super::probe`]). If the filter reads only numbers near the record's beginning, the copy is on the stack, from
//! the first to the last of them. Otherwise it is where the record will be built, and has only the fixed part unless
//! the filter reads data after it.
//!
//! The program's data is untrusted: unreadable bytes become zero, and the length is limited to the largest record.

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD, RECORD_AREA};

use super::{
    emitter::Emitter,
    image::{IMAGE_MAX, ReadBytes, on_stack},
    output::{Code, LowerError, Needs},
};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        source::UserRecord,
    },
};

/// The length of a record is a multiple of this.
const ALIGNMENT: i32 = 4;

/// Lowers the record to `tracer_record`; `size` is the size of a record of fixed length.
pub(super) fn record(record: UserRecord, size: usize) -> Result<Code, LowerError> {
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    emit.mov(Reg::R7, Reg::R2);
    if record.varies {
        copy_whole(&mut emit, record);
        // Zeroes the last bytes up to the alignment.
        emit.mov(Reg::R1, Reg::R7);
        emit.alu(Alu::Add, Reg::R1, Reg::R9);
        for byte in 0..ALIGNMENT as i16 - 1 {
            emit.store(Width::B, Reg::R1, byte, 0);
        }
        emit.mov(Reg::R0, Reg::R9);
        emit.alu(Alu::Add, Reg::R0, ALIGNMENT - 1);
        emit.alu(Alu::And, Reg::R0, -ALIGNMENT);
    } else {
        copy_fixed_part(&mut emit, record);
        for byte in usize::from(record.fixed)..size {
            emit.store(Width::B, Reg::R7, byte as i16, 0);
        }
        emit.mov(Reg::R0, size as i32);
    }
    emit.exit();
    let function = emit.finish(tracer_abi::RECORD);
    let size = (!record.varies).then_some(size);
    Ok(Code { functions: vec![function], needs: Needs::default(), size })
}

/// Copies the bytes that filters read and makes the copy the context.
pub(super) fn image(emit: &mut Emitter, record: UserRecord, filter: &Filter) -> Result<(), LowerError> {
    let read = ReadBytes::by(filter);
    emit.use_flags(read.has(2, 4));
    if let Some(size) = short(&read, filter) {
        return on_stack(emit, size, |emit| {
            if let Some((from, to)) = read.span() {
                copy_part(emit, record, from, to);
            }
            Ok(())
        });
    }
    emit.use_scratch();
    let into = RECORD_AREA as i32;
    emit.note("the fields that the filter reads");
    emit.alu(Alu::Add, Reg::R7, -into);
    emit.store(Width::D, Reg::R7, 0, Reg::R8);
    if record.varies && reads_data(filter) {
        copy_whole(emit, record);
    } else {
        copy_fixed_part(emit, record);
    }
    emit.mov(Reg::R6, Reg::R7);
    emit.alu(Alu::Add, Reg::R7, into);
    Ok(())
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
    let [longer, fits] = emit.labels();
    emit.note("the program's record");
    emit.load(Width::D, Reg::R9, Reg::R6, record.length as i16);
    emit.jump_if(Cond::Ge, Reg::R9, i32::from(record.fixed), longer);
    emit.mov(Reg::R9, i32::from(record.fixed));
    emit.bind(longer);
    emit.jump_if(Cond::Le, Reg::R9, MAX_PAYLOAD as i32, fits);
    emit.mov(Reg::R9, MAX_PAYLOAD as i32);
    emit.bind(fits);
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
