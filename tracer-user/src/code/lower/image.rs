//! Records that replace the context for a filter: the part of a record that the filter reads.
//!
//! A filter reads a record, so its values are fetched as for a record: onto the stack, or into the memory in which
//! the record will be built.

use tracer_abi::{COMMON_SIZE, RECORD_AREA};

use super::{emitter::Emitter, facts::Fact, output::LowerError, probe::fetch_all, record::gather_wanted};
use crate::{
    code::asm::{Alu, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        probe::{ArgPlan, ProbePlan},
        source::{FieldSource, ProgramContext, Source},
    },
};

/// Where the record's place is, from the scratch memory of filters and triggers.
pub(super) const RECORD_AT: i32 = -(RECORD_AREA as i32);
/// Length in bytes of the longest record that is placed on the stack for a filter.
pub(super) const IMAGE_MAX: usize = 128;

/// Fetches the values that a filter reads and makes them the context. They are placed on the stack if the record is
/// short and the values are aligned numbers, otherwise in the record's place.
pub(super) fn image(emit: &mut Emitter, plan: &ProbePlan, filter: &Filter) -> Result<(), LowerError> {
    let read = ReadBytes::by(filter);
    let short = is_short(plan, &read).then_some(plan.fixed);
    build(emit, &read, short, |emit| fetch_all(emit, plan, false, |start, end| read.has(start, end)))
}

/// Builds the part of a system call's record that a filter reads, with all data in user memory, and makes it the
/// context. The record is `at` bytes from R7.
pub(super) fn of_call(
    emit: &mut Emitter,
    context: &ProgramContext,
    fields: &[FieldSource],
    filter: &Filter,
    at: i32,
) -> Result<(), LowerError> {
    let read = ReadBytes::by(filter);
    emit.uses.flags |= read.has(2, 4);
    emit.note("the fields and data that the filter reads");
    let size = fields.iter().map(|field| usize::from(field.offset + field.size)).max().unwrap_or(COMMON_SIZE);
    in_scratch(emit, at, |emit| {
        // All data, because a text that could not be read begins where the next one does.
        let wanted =
            |field: &FieldSource| matches!(field.source, Source::UserData(_)) || read.has_field(field);
        let longest = gather_wanted(emit, context, fields, size, Reg::R7, wanted)?;
        // The last one ends with a NUL too.
        emit.limit(Reg::R8, longest);
        emit.mov(Reg::R1, Reg::R7);
        emit.alu(Alu::Add, Reg::R1, Reg::R8);
        emit.store(Width::B, Reg::R1, 0, 0);
        Ok(())
    })?;
    // The groups of memory that were read are not those of the filter.
    emit.facts.retain(|fact| !matches!(fact, Fact::Group(_)));
    Ok(())
}

/// Makes the common word and the values that `fill` stores at R7 the context. They are in the record's place, or on the
/// stack if `short` is their size.
pub(super) fn build(
    emit: &mut Emitter,
    read: &ReadBytes,
    short: Option<usize>,
    fill: impl FnOnce(&mut Emitter) -> Result<(), LowerError>,
) -> Result<(), LowerError> {
    emit.uses.flags |= read.has(2, 4);
    emit.note("the fields that the filter reads");
    let Some(size) = short else {
        return in_scratch(emit, RECORD_AT, fill);
    };
    let image = emit.alloc(size);
    let memory = emit.uses.scratch.then(|| emit.save(Reg::R7));
    emit.address(Reg::R7, Reg::R10, i32::from(image));
    emit.store(Width::D, Reg::R7, 0, Reg::R8);
    fill(emit)?;
    emit.mov(Reg::R6, Reg::R7);
    if let Some(memory) = memory {
        emit.load(Width::D, Reg::R7, Reg::R10, memory);
    }
    Ok(())
}

/// Makes the common word and the values that `fill` stores at R7 the context. They are `at` bytes from R7.
fn in_scratch(
    emit: &mut Emitter,
    at: i32,
    fill: impl FnOnce(&mut Emitter) -> Result<(), LowerError>,
) -> Result<(), LowerError> {
    emit.use_scratch();
    emit.alu(Alu::Add, Reg::R7, at);
    // The common word is stored there, because fetching overwrites R8.
    emit.store(Width::D, Reg::R7, 0, Reg::R8);
    fill(emit)?;
    emit.mov(Reg::R6, Reg::R7);
    emit.alu(Alu::Add, Reg::R7, -at);
    Ok(())
}

/// Whether the values that a filter reads can be on the stack.
fn is_short(plan: &ProbePlan, read: &ReadBytes) -> bool {
    let seen = |arg: &&ArgPlan| read.has(arg.offset, arg.offset + arg.bytes());
    // The verifier requires aligned accesses to the stack, and records are packed.
    let fits = |arg: &ArgPlan| !arg.is_text() && arg.offset.is_multiple_of(arg.size as usize);
    plan.fixed <= IMAGE_MAX && plan.args.iter().filter(seen).all(fits)
}

/// Bytes of a record that a filter reads; None for all bytes.
pub(super) struct ReadBytes(Option<Vec<(usize, usize)>>);

impl ReadBytes {
    pub(super) fn by(filter: &Filter) -> Self {
        let place = |test: &Test| {
            let place = match test {
                Test::Number { place, .. }
                | Test::Function { place, .. }
                | Test::Cpus { subject: CpusSubject::Scalar { place }, .. }
                | Test::Text { text: Text::Static(place) | Text::Pointer { place, .. }, .. } => *place,
                Test::Text { text: Text::Dyn { offset, .. }, .. } => {
                    return Some((usize::from(*offset), usize::from(*offset) + 4));
                }
                Test::Cpu { .. } | Test::Text { text: Text::Comm, .. } => return Some((0, 0)),
                Test::Text { .. } | Test::Cpus { .. } => return None,
            };
            Some((usize::from(place.offset), usize::from(place.offset + place.size)))
        };
        Self(filter.tests().into_iter().map(place).collect())
    }

    pub(super) fn has(&self, start: usize, end: usize) -> bool {
        self.0.as_ref().is_none_or(|places| places.iter().any(|(from, to)| *from < end && start < *to))
    }

    /// Whether the filter reads bytes of a field.
    pub(super) fn has_field(&self, field: &FieldSource) -> bool {
        self.has(usize::from(field.offset), usize::from(field.offset + field.size))
    }

    /// The range from the first to the last of these bytes after the common fields, if there are any.
    pub(super) fn span(&self) -> Option<(usize, usize)> {
        let places = || self.0.iter().flatten().filter(|(_, to)| *to > COMMON_SIZE);
        let from = places().map(|(from, _)| (*from).max(COMMON_SIZE)).min()?;
        Some((from, places().map(|(_, to)| *to).max()?))
    }
}
