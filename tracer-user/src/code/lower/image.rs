//! Records that replace the context: the part of a record that a filter reads, and the base record of an event probe.
//!
//! A filter reads a record, so its values are fetched as for a record: onto the stack, or into the memory in which the
//! record will be built. An event probe reads the record of another dynamic event. That record is built first, at the
//! end of scratch memory.

use tracer_abi::{COMMON_SIZE, FILTER_AREA, RECORD_AREA, STAMP_SIZE};

use super::{Exits, Lower, LowerError, Next, text};
use crate::{
    code::asm::{Alu, Label, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        probe::{ArgPlan, ProbePlan},
        source::ProgramContext,
    },
};

/// Longest record, in bytes, whose part for a filter is placed on the stack.
pub(super) const IMAGE_MAX: usize = 128;

impl Lower<'_> {
    /// Prepares an event probe: builds the record of the event that it is attached to, and tests its condition. A hit
    /// that fails the condition jumps to `no`.
    pub(super) fn definition(&mut self, plan: &ProbePlan, no: Label) -> Result<(), LowerError> {
        if let Some(base) = &plan.base {
            self.use_scratch();
            self.base_record(base, RECORD_AREA, false)?;
        }
        let Some(when) = &plan.when else { return Ok(()) };
        let counts = self.asm.label();
        let hook = std::mem::replace(&mut self.hook, &ProgramContext::Tracepoint);
        self.texts = text::Texts::for_filter(when);
        self.branch(when, Exits { yes: counts, no, next: Next::Yes })?;
        self.bind(counts);
        self.hook = hook;
        Ok(())
    }

    /// Builds the record of the event that an event probe is attached to and makes it the context. R7 points to offset
    /// `from` of scratch memory, R8 is the common word.
    pub(super) fn base_record(
        &mut self,
        base: &ProbePlan,
        from: usize,
        whole: bool,
    ) -> Result<(), LowerError> {
        let into = (RECORD_AREA + FILTER_AREA - from) as i32;
        self.asm.note("the record of the event that it sits on");
        let common = self.frame.take(8, 0);
        self.asm.store(Width::D, Reg::R10, common, Reg::R8);
        self.asm.alu(Alu::Add, Reg::R7, into);
        self.asm.store(Width::D, Reg::R7, 0, Reg::R8);
        self.fetch_all(base, whole, |_, _| true)?;
        self.asm.mov(Reg::R6, Reg::R7);
        self.asm.alu(Alu::Sub, Reg::R7, into);
        self.asm.load(Width::D, Reg::R8, Reg::R10, common);
        Ok(())
    }

    /// Fetches the values that a filter reads and makes them the context. They are placed on the stack if the record is
    /// short and the filter reads no texts, otherwise in the record's place.
    pub(super) fn image(&mut self, plan: &ProbePlan, filter: &Filter) -> Result<(), LowerError> {
        let touched = Touched::by(filter);
        self.uses.flags |= touched.has(2, 4);
        if is_short(plan, &touched) {
            return self.short_image(plan, &touched);
        }
        let into = (RECORD_AREA - STAMP_SIZE) as i32;
        self.use_scratch();
        self.asm.note("the record as far as the filter looks at it");
        self.asm.alu(Alu::Add, Reg::R7, -into);
        // The common word is stored there, because fetching overwrites R8.
        self.asm.store(Width::D, Reg::R7, 0, Reg::R8);
        self.fetch_all(plan, false, |start, end| touched.has(start, end))?;
        self.asm.mov(Reg::R6, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R7, into);
        Ok(())
    }

    fn short_image(&mut self, plan: &ProbePlan, touched: &Touched) -> Result<(), LowerError> {
        self.on_stack(plan.fixed, |lower| lower.fetch_all(plan, false, |start, end| touched.has(start, end)))
    }

    /// Makes `size` bytes of the stack the context: the common word, then the values that `fill` stores at R7.
    pub(super) fn on_stack(
        &mut self,
        size: usize,
        fill: impl FnOnce(&mut Self) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        self.asm.note("the record as far as the filter looks at it");
        let image = self.frame.take(size, 0);
        let memory = self.uses.scratch.then(|| self.frame.take(8, 0));
        if let Some(memory) = memory {
            self.asm.store(Width::D, Reg::R10, memory, Reg::R7);
        }
        self.asm.address(Reg::R7, Reg::R10, i32::from(image));
        self.asm.store(Width::D, Reg::R7, 0, Reg::R8);
        fill(self)?;
        self.asm.mov(Reg::R6, Reg::R7);
        if let Some(memory) = memory {
            self.asm.load(Width::D, Reg::R7, Reg::R10, memory);
        }
        Ok(())
    }
}

/// Whether the values that a filter reads can be on the stack.
fn is_short(plan: &ProbePlan, touched: &Touched) -> bool {
    let seen = |arg: &&ArgPlan| touched.has(arg.offset, arg.offset + arg.bytes());
    // The verifier requires aligned accesses to the stack, and records are packed.
    let fits = |arg: &ArgPlan| !arg.is_text() && arg.offset.is_multiple_of(arg.size as usize);
    plan.fixed <= IMAGE_MAX && plan.args.iter().filter(seen).all(fits)
}

/// Bytes of a record that a filter reads; None for all bytes.
pub(super) struct Touched(Option<Vec<(usize, usize)>>);

impl Touched {
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
        match &self.0 {
            Some(places) => places.iter().any(|(from, to)| *from < end && start < *to),
            None => true,
        }
    }

    /// The range from the first to the last of these bytes after the common fields, if there are any.
    pub(super) fn span(&self) -> Option<(usize, usize)> {
        let places = || self.0.iter().flatten().filter(|(_, to)| *to > COMMON_SIZE);
        let from = places().map(|(from, _)| (*from).max(COMMON_SIZE)).min()?;
        Some((from, places().map(|(_, to)| *to).max()?))
    }
}
