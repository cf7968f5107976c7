//! Records that replace the context for a filter: the part of a record that the filter reads.
//!
//! A filter reads a record, so its values are fetched as for a record: onto the stack, or into the memory in which
//! the record will be built.

use tracer_abi::{COMMON_SIZE, RECORD_AREA};

use super::{emitter::Emitter, output::LowerError, probe::fetch_all};
use crate::{
    code::asm::{Alu, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        probe::{ArgPlan, ProbePlan},
    },
};

/// Length in bytes of the longest record that is placed on the stack for a filter.
pub(super) const IMAGE_MAX: usize = 128;

/// Fetches the values that a filter reads and makes them the context. They are placed on the stack if the record is
/// short and the values are aligned numbers, otherwise in the record's place.
pub(super) fn image(emit: &mut Emitter, plan: &ProbePlan, filter: &Filter) -> Result<(), LowerError> {
    let read = ReadBytes::by(filter);
    let short = is_short(plan, &read).then_some(plan.fixed);
    build(emit, &read, short, |emit| fetch_all(emit, plan, false, |start, end| read.has(start, end)))
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
        let into = RECORD_AREA as i32;
        emit.use_scratch();
        emit.alu(Alu::Add, Reg::R7, -into);
        // The common word is stored there, because fetching overwrites R8.
        emit.store(Width::D, Reg::R7, 0, Reg::R8);
        fill(emit)?;
        emit.mov(Reg::R6, Reg::R7);
        emit.alu(Alu::Add, Reg::R7, into);
        return Ok(());
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

    /// The range from the first to the last of these bytes after the common fields, if there are any.
    pub(super) fn span(&self) -> Option<(usize, usize)> {
        let places = || self.0.iter().flatten().filter(|(_, to)| *to > COMMON_SIZE);
        let from = places().map(|(from, _)| (*from).max(COMMON_SIZE)).min()?;
        Some((from, places().map(|(_, to)| *to).max()?))
    }
}
