//! Records that stand for the context: as far as a filter looks at one, and of the event that an event probe sits on.
//!
//! A filter looks at a record, so the values that it asks for are fetched as for one: onto the stack, or into the memory that the
//! record will be built in. An event probe looks at the record of another dynamic event, which is made first, behind all else in
//! scratch memory.

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

/// Longest record of which a filter's part is on the stack.
pub(super) const IMAGE_MAX: usize = 128;

impl Lower<'_> {
    /// What an event probe's definition asks for before anything else: the record that it sits on, and its condition, which sends
    /// what is no hit of it to `no`.
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

    /// Makes the record of the event that an event probe sits on, and lets it be the context. R7 points so many bytes into
    /// scratch memory, R8 is the common word.
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

    /// Fetches what a filter looks at, and lets that be the context: onto the stack if there are no texts in it and it is short,
    /// else into the record's place.
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
        // The common word is written there and lost.
        self.asm.store(Width::D, Reg::R7, 0, Reg::R8);
        self.fetch_all(plan, false, |start, end| touched.has(start, end))?;
        self.asm.mov(Reg::R6, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R7, into);
        Ok(())
    }

    fn short_image(&mut self, plan: &ProbePlan, touched: &Touched) -> Result<(), LowerError> {
        self.on_stack(plan.fixed, |lower| lower.fetch_all(plan, false, |start, end| touched.has(start, end)))
    }

    /// Makes so many bytes of the stack the context: what `fill` puts at R7, behind the common word.
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

/// Whether what a filter looks at can be on the stack.
fn is_short(plan: &ProbePlan, touched: &Touched) -> bool {
    let seen = |arg: &&ArgPlan| touched.has(arg.offset, arg.offset + arg.bytes());
    // The verifier wants accesses to the stack aligned, and records are packed.
    let fits = |arg: &ArgPlan| !arg.is_text() && arg.offset.is_multiple_of(arg.size as usize);
    plan.fixed <= IMAGE_MAX && plan.args.iter().filter(seen).all(fits)
}

/// Bytes of a record that a filter looks at; None for all.
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

    /// From the first of those bytes behind the common fields to behind the last, if there are any.
    pub(super) fn span(&self) -> Option<(usize, usize)> {
        let places = || self.0.iter().flatten().filter(|(_, to)| *to > COMMON_SIZE);
        let from = places().map(|(from, _)| (*from).max(COMMON_SIZE)).min()?;
        Some((from, places().map(|(_, to)| *to).max()?))
    }
}
