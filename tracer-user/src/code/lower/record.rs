//! `tracer_record`: copies the bytes after the common fields from the hook to the payload.

use tracer_abi::{COMMON_SIZE, INJECT_LENGTH, MAX_PAYLOAD};

use super::{
    emitter::{Emitter, Uses},
    output::{Code, LowerError, Needs},
    probe::fetch_record,
    user_data, user_record,
    values::Values,
};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    event::{Field, Format},
    plan::{
        probe::ProbePlan,
        source::{FieldSource, ProgramContext, Source, UserData},
    },
};

/// Fixed records up to this many bytes are copied word by word; for longer ones, one helper call is cheaper.
const COPY_MAX: usize = 512;
/// The kernel's ring buffer rounds records to this (`RB_ALIGNMENT`, kernel/trace/ring_buffer.c).
const ALIGNMENT: usize = 4;

/// Lowers the layout of an event's record to `tracer_record`.
///
/// # Errors
/// If the record has data after its fields that the hook does not provide, or is too long.
pub fn record(format: &Format, context: &ProgramContext) -> Result<Code, LowerError> {
    match context {
        ProgramContext::Probe(plan) => probe_record(plan),
        ProgramContext::UserRecord(record) => {
            let size = struct_size(format).next_multiple_of(ALIGNMENT);
            packed(usize::from(record.fixed), size, |emit| Ok(user_record::copy(emit, *record)))
        }
        _ => {
            let (_, uses) = lower_record(format, context, Uses::default())?;
            Ok(lower_record(format, context, uses)?.0)
        }
    }
}

/// Lowers a dynamic event's record to `tracer_record`.
pub(super) fn probe_record(plan: &ProbePlan) -> Result<Code, LowerError> {
    packed(plan.fixed, plan.fixed.next_multiple_of(ALIGNMENT), |emit| fetch_record(emit, plan))
}

/// Lowers a record that ends with its last value, and zeroes up to the alignment. `fill` stores the values at R7 and
/// returns the register with their length, if it varies; otherwise they have `fixed` bytes.
fn packed(
    fixed: usize,
    size: usize,
    fill: impl FnOnce(&mut Emitter) -> Result<Option<Reg>, LowerError>,
) -> Result<Code, LowerError> {
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    emit.mov(Reg::R7, Reg::R2);
    let length = fill(&mut emit)?;
    if let Some(length) = length {
        pad(&mut emit, length);
    } else {
        for byte in fixed..size {
            emit.store(Width::B, Reg::R7, byte as i16, 0);
        }
        emit.mov(Reg::R0, size as i32);
    }
    emit.exit();
    let functions = vec![emit.finish(tracer_abi::RECORD)];
    Ok(Code { functions, needs: Needs::default(), size: length.is_none().then_some(size) })
}

/// Zeroes the record at R7, which has `length` bytes, up to the alignment. R0 = its length then.
fn pad(emit: &mut Emitter, length: Reg) {
    emit.mov(Reg::R1, Reg::R7);
    emit.alu(Alu::Add, Reg::R1, length);
    for byte in 0..ALIGNMENT as i16 - 1 {
        emit.store(Width::B, Reg::R1, byte, 0);
    }
    emit.address(Reg::R0, length, ALIGNMENT as i32 - 1);
    emit.alu(Alu::And, Reg::R0, -(ALIGNMENT as i32));
}

fn lower_record(format: &Format, context: &ProgramContext, uses: Uses) -> Result<(Code, Uses), LowerError> {
    let mut emit = Emitter::new(uses);
    let size = struct_size(format).next_multiple_of(ALIGNMENT);
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let payload = if uses.calls { Reg::R7 } else { Reg::R2 };
    if uses.calls {
        emit.mov(Reg::R6, Reg::R1);
        emit.mov(Reg::R7, Reg::R2);
    }
    let varies = format.is_variable() || (*context == ProgramContext::Inject && format.is_open());
    let fixed = format.fixed_size();
    match context {
        ProgramContext::RawTracepoint(fields) if varies => {
            let data = format.fields.iter().filter(|field| field.is_data_loc() || field.is_rel_loc());
            let has_source = |field: &Field| {
                with_user_data(fields).any(|(source, _)| usize::from(source.offset) == field.offset)
            };
            if !data.clone().all(has_source) {
                return Err(LowerError::NoData);
            }
            // In the kernel the data begin where the fields end, without the padding of the struct.
            gather(&mut emit, context, fields, fixed, payload)?;
            pad(&mut emit, Reg::R8);
        }
        ProgramContext::RawTracepoint(fields) => gather(&mut emit, context, fields, size, payload)?,
        ProgramContext::CallTracepoint if varies => copy_without_data(&mut emit, format, payload),
        // The record's writer gives its length.
        ProgramContext::Inject if varies => copy_written(&mut emit, size, payload),
        _ if varies => copy_variable(&mut emit, format, payload),
        _ => copy_fixed(&mut emit, fixed, size, payload),
    }
    let size = (!varies).then_some(size);
    if let Some(size) = size {
        emit.mov(Reg::R0, size as i32);
    }
    emit.exit();
    let uses = emit.uses;
    let functions = vec![emit.finish(tracer_abi::RECORD)];
    Ok((Code { functions, needs: Needs::default(), size }, uses))
}

/// Bytes of the C struct of the record's fixed part: its fields, padded to the strictest alignment.
fn struct_size(format: &Format) -> usize {
    let align = format.fields.iter().map(alignment).max().unwrap_or(1).max(ALIGNMENT);
    format.fixed_size().next_multiple_of(align)
}

/// Alignment of a field's type, derived from the format file.
fn alignment(field: &Field) -> usize {
    let element = match field.array {
        Some(elements) if elements > 0 => field.size / elements,
        _ => field.size,
    };
    match element {
        size @ (1 | 2 | 4 | 8) if field.offset.is_multiple_of(size) => size,
        _ => 1,
    }
}

/// Copies a record of fixed length from the context.
fn copy_fixed(emit: &mut Emitter, fields: usize, size: usize, payload: Reg) {
    emit.note(format!("copy bytes {COMMON_SIZE} to {fields}"));
    if fields > COPY_MAX {
        emit.context_address(Reg::R3, COMMON_SIZE);
        emit.read_kernel((payload, COMMON_SIZE as i16), (fields - COMMON_SIZE) as i32);
    } else {
        for (offset, width) in words(COMMON_SIZE, fields) {
            emit.load_context(width, Reg::R0, offset);
            emit.store(width, payload, offset as i16, Reg::R0);
        }
    }
    zero(emit, payload, fields, size);
}

/// Copies a record whose `__data_loc` and `__rel_loc` fields define its length.
fn copy_variable(emit: &mut Emitter, format: &Format, payload: Reg) {
    let fixed = format.fixed_size();
    let padding = struct_size(format) - fixed;
    emit.mov(Reg::R9, fixed as i32);
    for field in format.fields.iter().filter(|field| field.is_data_loc() || field.is_rel_loc()) {
        emit.note(format!("end of {}", field.name));
        let longest = emit.label();
        emit.load_context(Width::W, Reg::R0, field.offset);
        emit.mov(Reg::R5, Reg::R0);
        emit.alu(Alu::Rsh, Reg::R5, 16);
        emit.alu(Alu::And, Reg::R0, 0xffff);
        emit.alu(Alu::Add, Reg::R0, Reg::R5);
        if field.is_rel_loc() {
            emit.alu(Alu::Add, Reg::R0, field.end() as i32);
        }
        emit.jump_if(Cond::Le, Reg::R0, Reg::R9, longest);
        emit.mov(Reg::R9, Reg::R0);
        emit.bind(longest);
    }
    // The kernel reserves the struct, padding included, plus the data, and rounds the sum up.
    emit.note("whole length");
    copy_whole(emit, padding, payload);
}

/// Copies the numbers of a record whose data are not in the context: all data are empty.
fn copy_without_data(emit: &mut Emitter, format: &Format, payload: Reg) {
    let (fixed, whole) = (format.fixed_size(), struct_size(format));
    zero(emit, payload, COMMON_SIZE, whole);
    for field in &format.fields {
        let at = field.offset;
        if field.is_data_loc() || field.is_rel_loc() {
            emit.note(format!("no {}", field.name));
            emit.store(Width::W, payload, at as i16, fixed as i32);
        } else if let Some(width) = Width::of(field.size) {
            emit.load_context(width, Reg::R0, at);
            emit.store(width, payload, at as i16, Reg::R0);
        }
    }
    emit.mov(Reg::R0, whole as i32);
}

/// Copies a record of user space with the length that its writer gave, but at least its fixed part.
fn copy_written(emit: &mut Emitter, fixed: usize, payload: Reg) {
    emit.note("the writer's length");
    let longer = emit.label();
    emit.load_context(Width::W, Reg::R9, INJECT_LENGTH);
    emit.jump_if(Cond::Ge, Reg::R9, fixed as i32, longer);
    emit.mov(Reg::R9, fixed as i32);
    emit.bind(longer);
    copy_whole(emit, 0, payload);
}

/// Copies the first R9 bytes of the context plus `more`, rounded up; R0 = their number.
fn copy_whole(emit: &mut Emitter, more: usize, payload: Reg) {
    emit.alu(Alu::Add, Reg::R9, (more + ALIGNMENT - 1) as i32);
    emit.alu(Alu::And, Reg::R9, -(ALIGNMENT as i32));
    emit.limit(Reg::R9, MAX_PAYLOAD);
    emit.mov(Reg::R2, Reg::R9);
    emit.alu(Alu::Sub, Reg::R2, COMMON_SIZE as i32);
    // Changes nothing; older verifiers do not see that the length exceeds the common fields.
    emit.alu(Alu::And, Reg::R2, MAX_PAYLOAD as i32 - 1);
    emit.address(Reg::R1, payload, COMMON_SIZE as i32);
    emit.context_address(Reg::R3, COMMON_SIZE);
    emit.call(Helper::ProbeReadKernel);
    emit.mov(Reg::R0, Reg::R9);
}

/// Builds a record from the arguments of a raw tracepoint. Its fields end at `size`. If data follow them, R8 is the
/// record's length then.
fn gather(
    emit: &mut Emitter,
    context: &ProgramContext,
    fields: &[FieldSource],
    size: usize,
    payload: Reg,
) -> Result<(), LowerError> {
    gather_wanted(emit, context, fields, size, payload, |_| true).map(drop)
}

/// Builds the part of a record that has the `wanted` fields. Returns the length in bytes of the longest record.
pub(super) fn gather_wanted(
    emit: &mut Emitter,
    context: &ProgramContext,
    fields: &[FieldSource],
    size: usize,
    payload: Reg,
    wanted: impl Fn(&FieldSource) -> bool,
) -> Result<usize, LowerError> {
    let mut fields: Vec<_> = fields.iter().filter(|field| wanted(field)).collect();
    fields.sort_by_key(|field| field.offset);
    let runs = runs(&fields);
    // Fields that are read directly into the payload need no stack.
    let staged = runs.iter().filter(|run| !run.direct).flat_map(|run| &fields[run.first..run.end]).copied();
    let mut values = Values::for_fields(context, staged);
    let mut written = COMMON_SIZE;
    for run in &runs {
        let (start, end) = (usize::from(fields[run.first].offset), end_of(fields[run.end - 1]));
        if end > size {
            return Err(LowerError::NoSource { offset: size, end });
        }
        zero(emit, payload, written, start);
        written = written.max(end);
        emit.note(format!("bytes {start} to {end}"));
        if run.direct {
            let Source::Memory { arg, path } = &fields[run.first].source else { continue };
            let Some((last, prefix)) = path.split_last() else { continue };
            values.memory.pointer(emit, Reg::R3, *arg, prefix, *last);
            emit.read_kernel((payload, start as i16), (end - start) as i32);
        } else {
            for field in &fields[run.first..run.end] {
                gather_field(emit, &mut values, field, payload)?;
            }
        }
    }
    zero(emit, payload, written, size);
    let mut length = size;
    for (number, (field, data)) in with_user_data(fields.iter().copied()).enumerate() {
        if number == 0 {
            emit.mov(Reg::R8, size as i32);
        }
        emit.note(format!("data of bytes {} to {}", field.offset, end_of(field)));
        user_data::append(emit, &mut values, field, data, length);
        length += user_data::most(data);
    }
    Ok(length)
}

/// The fields whose data are in user memory.
pub(super) fn with_user_data<'f>(
    fields: impl IntoIterator<Item = &'f FieldSource>,
) -> impl Iterator<Item = (&'f FieldSource, &'f UserData)> {
    fields.into_iter().filter_map(|field| match &field.source {
        Source::UserData(data) => Some((field, data)),
        _ => None,
    })
}

fn gather_field(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    field: &FieldSource,
    payload: Reg,
) -> Result<(), LowerError> {
    let (offset, size) = (usize::from(field.offset), usize::from(field.size));
    match &field.source {
        Source::Memory { arg, path } => {
            let slot = values.memory.slot(emit, *arg, path, 0, size);
            for (at, width) in stack_words(i32::from(slot), size) {
                emit.load(width, Reg::R0, Reg::R10, slot + at as i16);
                emit.store(width, payload, (offset + at) as i16, Reg::R0);
            }
        }
        Source::SyscallArgs(args) => {
            values.syscall_args(emit, args, 0, size / 8, |emit, number| {
                emit.store(Width::D, payload, (offset + 8 * number) as i16, Reg::R0);
            });
        }
        Source::Const(value) if i32::try_from(value.cast_signed()).is_ok() || size < 8 => {
            let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
            emit.store(width, payload, offset as i16, *value as i32);
        }
        // Stored with the data, after all fields.
        Source::UserData(_) => {}
        source => {
            let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
            values.sourced(emit, source, 0, width);
            emit.store(width, payload, offset as i16, Reg::R0);
        }
    }
    Ok(())
}

/// Writes zeroes to payload bytes `from..to`.
fn zero(emit: &mut Emitter, payload: Reg, from: usize, to: usize) {
    for (offset, width) in words(from, to) {
        emit.store(width, payload, offset as i16, 0);
    }
}

fn end_of(field: &FieldSource) -> usize {
    usize::from(field.offset) + usize::from(field.size)
}

/// Adjacent fields that are handled together.
struct Run {
    first: usize,
    end: usize,
    /// One helper call reads it into the payload.
    direct: bool,
}

/// Cuts the fields into runs. Fields that are adjacent in memory as in the record are read into the payload at once,
/// unless one read of their surroundings serves other fields too.
fn runs(fields: &[&FieldSource]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let Source::Memory { .. } = field.source else {
            runs.push(Run { first: at, end: at + 1, direct: false });
            continue;
        };
        match runs.last_mut() {
            Some(run) if run.direct && continues(fields[at - 1], field) => run.end += 1,
            _ => runs.push(Run { first: at, end: at + 1, direct: true }),
        }
    }
    // Where several runs are neighbours, one read to the stack replaces them.
    let groups = |runs: &[Run], but: usize| {
        runs.iter().enumerate().any(|(number, other)| {
            number != but
                && fields[other.first..other.end]
                    .iter()
                    .any(|a| fields[runs[but].first..runs[but].end].iter().any(|b| neighbours(a, b)))
        })
    };
    let staged: Vec<bool> = (0..runs.len()).map(|run| groups(&runs, run)).collect();
    for (run, staged) in runs.iter_mut().zip(staged) {
        run.direct &= !staged;
    }
    runs
}

/// Whether `other` follows `one` in memory as in the record.
fn continues(one: &FieldSource, other: &FieldSource) -> bool {
    let (
        Source::Memory { arg: one_arg, path: one_path },
        Source::Memory { arg: other_arg, path: other_path },
    ) = (&one.source, &other.source)
    else {
        return false;
    };
    let (Some((one_last, one_way)), Some((other_last, other_way))) =
        (one_path.split_last(), other_path.split_last())
    else {
        return false;
    };
    (one_arg, one_way) == (other_arg, other_way)
        && end_of(one) == usize::from(other.offset)
        && one_last + u32::from(one.size) == *other_last
}

/// Whether one small read covers both fields.
fn neighbours(a: &FieldSource, b: &FieldSource) -> bool {
    let location = |field: &FieldSource| match &field.source {
        Source::Memory { arg, path } => {
            path.split_last().map(|(last, way)| (*arg, way.to_vec(), *last, *last + u32::from(field.size)))
        }
        Source::SwitchState(state) => Some((state.task, Vec::new(), state.exit_state, state.exit_state + 4)),
        Source::Extended { arg, path, width, .. } => {
            path.split_last().map(|(last, way)| (*arg, way.to_vec(), *last, *last + u32::from(*width)))
        }
        Source::UserData(data) => Some((data.regs, Vec::new(), data.pointer, data.pointer + 8)),
        Source::Arg(_) | Source::Const(_) | Source::SyscallArgs(_) | Source::Computed(_) => None,
    };
    let (Some(a), Some(b)) = (location(a), location(b)) else { return false };
    (a.0, &a.1) == (b.0, &b.1) && a.2 <= b.3 + 32 && b.2 <= a.3 + 32 && a.3.max(b.3) - a.2.min(b.2) <= 128
}

/// Aligned words that cover bytes `from..to`.
fn words(from: usize, to: usize) -> impl Iterator<Item = (usize, Width)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|size| at.is_multiple_of(*size) && at + size <= to)?;
        let word = (at, Width::of(size)?);
        at += size;
        Some(word)
    })
}

/// Words that cover `size` bytes at a stack offset, each aligned there.
fn stack_words(slot: i32, size: usize) -> impl Iterator<Item = (usize, Width)> {
    let phase = slot.rem_euclid(8) as usize;
    words(phase, phase + size).map(move |(at, width)| (at - phase, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cover_every_byte_once() {
        for from in 0..20 {
            for to in from..40 {
                let mut at = from;
                for (offset, width) in words(from, to) {
                    assert_eq!(offset, at);
                    assert!(offset.is_multiple_of(width.bytes()));
                    at += width.bytes();
                }
                assert_eq!(at, to);
            }
        }
    }
}
