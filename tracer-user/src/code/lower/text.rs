//! Comparisons of text: where it lies, how much of it is needed, and how it is compared.
//!
//! A text at a fixed place is compared there, or on the stack if it is a raw tracepoint's field that was read to the
//! stack. All other texts, and texts that must be searched, are fetched into scratch memory, preceded by their length,
//! unless all paths have fetched them before. For an anchored pattern only the first or the last bytes are fetched,
//! otherwise the whole text.

mod regions;

use tracer_abi::{INJECT_COMM, MAX_PAYLOAD};

use super::{
    Exits, Lower, LowerError,
    compare::{Bytes, compare},
    fetch::covering,
    glob::{Element, Glob, match_segment},
    search::Start,
};
use crate::{
    code::asm::{Alu, Cond, Helper, Label, Operand, Reg, Width},
    plan::{
        filter::{POINTER_TEXT_MAX, Pattern, Place, Text},
        source::{ProgramContext, Source},
    },
};

pub(super) use regions::Texts;
use regions::{COMM, Part, Region};

/// Bytes of a task's name: `TASK_COMM_LEN`, include/linux/sched.h.
const COMM_SIZE: usize = 16;
/// Longest text of varying length that is searched, in bytes; no record is longer.
const DATA_MAX: usize = 8176;
/// Longest char array that the filter of a raw tracepoint compares on the stack.
const STACK_TEXT_MAX: usize = 128;

/// Where control continues after a text test.
#[derive(Clone, Copy)]
struct Outcome {
    /// The pattern matches, or does not.
    exits: Exits,
    /// The text cannot be read.
    fault: Label,
}

impl Outcome {
    fn miss(self) -> Label {
        self.exits.no
    }
}

impl Lower<'_> {
    pub(super) fn text(
        &mut self,
        text: Text,
        pattern: &Pattern,
        not: bool,
        exits: Exits,
    ) -> Result<(), LowerError> {
        self.asm.note(format!("{text} {} {pattern}", if not { "!=" } else { "==" }));
        let outcome = Outcome { exits: exits.inverted_if(not), fault: exits.no };
        match text {
            Text::Static(place) => self.fixed_text(text, usize::from(place.size), pattern, outcome),
            Text::Comm => self.fixed_text(text, COMM_SIZE, pattern, outcome),
            Text::Dyn { .. } | Text::Rel { .. } => self.data_text(text, pattern, outcome),
            Text::Pointer { .. } => self.pointer_text(text, pattern, outcome),
            Text::Open { offset } => self.open_text(text, offset, pattern, outcome),
        }
    }

    /// Tests a text of known length.
    fn fixed_text(
        &mut self,
        text: Text,
        len: usize,
        pattern: &Pattern,
        outcome: Outcome,
    ) -> Result<(), LowerError> {
        let (start, expected) = match pattern {
            Pattern::Full(wanted) => {
                let mut expected = wanted.clone();
                if expected.len() < len {
                    expected.push(0);
                }
                (0, expected)
            }
            Pattern::Front(wanted) => (0, wanted.clone()),
            Pattern::End(wanted) if wanted.len() < len => (len - 1 - wanted.len(), wanted.clone()),
            Pattern::End(_) => {
                self.go(false, outcome.exits);
                return Ok(());
            }
            Pattern::Middle(wanted) => {
                if wanted.is_empty() || wanted.len() > len {
                    self.go(wanted.is_empty(), outcome.exits);
                    return Ok(());
                }
                let region = self.fetch_fixed(text, Part::Whole, len)?;
                self.asm.mov(Reg::R9, len as i32);
                self.middle(region, wanted, outcome);
                return Ok(());
            }
            Pattern::Glob(glob) => {
                let region = self.fetch_fixed(text, Part::String, len)?;
                self.length(region, outcome.fault);
                self.glob(region, glob, outcome);
                return Ok(());
            }
        };
        if start + expected.len() > len {
            self.go(false, outcome.exits);
            return Ok(());
        }
        let bytes = self.fixed_bytes(text, len)?.skip(start);
        compare(self, bytes, &expected, outcome.miss());
        self.go(true, outcome.exits);
        Ok(())
    }

    /// The memory in which a text of known length can be compared.
    fn fixed_bytes(&mut self, text: Text, len: usize) -> Result<Bytes, LowerError> {
        let Text::Static(place) = text else {
            let slot = self.comm_slot();
            return Ok(Bytes { base: Reg::R10, off: i32::from(slot), room: len, aligned: true });
        };
        let offset = usize::from(place.offset);
        match self.hook {
            ProgramContext::Tracepoint
            | ProgramContext::Inject
            | ProgramContext::Probe(_)
            | ProgramContext::UserRecord(_) => {
                Ok(Bytes { base: self.ctx, off: offset as i32, room: len, aligned: true })
            }
            ProgramContext::RawTracepoint(fields) => {
                let field = covering(fields, offset, len)?;
                let Source::Memory { arg, path } = &field.source else {
                    return Err(LowerError::NoSource { offset, end: offset + len });
                };
                if len <= STACK_TEXT_MAX {
                    let slot = self.memory_slot(*arg, path, offset - usize::from(field.offset), len);
                    return Ok(Bytes { base: Reg::R10, off: i32::from(slot), room: len, aligned: true });
                }
                let region = self.fetch_fixed(text, Part::Whole, len)?;
                Ok(self.scratch_bytes(region))
            }
        }
    }

    /// Fetches the name of the hitting thread to the stack, if necessary, and returns its offset.
    fn comm_slot(&mut self) -> i16 {
        let slot = match self.texts.comm {
            Some(slot) => slot,
            None => *self.texts.comm.insert(self.frame.take(COMM_SIZE, 0)),
        };
        if !self.texts.fetched.has(&COMM) {
            if *self.hook == ProgramContext::Inject {
                for at in [0, 8] {
                    self.asm.load(Width::D, Reg::R0, self.ctx, INJECT_COMM as i16 + at);
                    self.asm.store(Width::D, Reg::R10, slot + at, Reg::R0);
                }
            } else {
                self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
                self.asm.mov(Reg::R2, COMM_SIZE as i32);
                self.call(Helper::GetCurrentComm);
            }
            self.texts.fetched.add(COMM);
        }
        slot
    }

    /// Ensures that a text of known length is in scratch memory.
    fn fetch_fixed(&mut self, text: Text, part: Part, len: usize) -> Result<usize, LowerError> {
        let region = self.texts.region(text, part, len);
        self.use_scratch();
        if self.texts.fetched.has(&region) {
            return Ok(region);
        }
        if let Text::Static(place) = text {
            let offset = usize::from(place.offset);
            match self.hook {
                ProgramContext::Tracepoint
                | ProgramContext::Inject
                | ProgramContext::Probe(_)
                | ProgramContext::UserRecord(_) => {
                    self.asm.address(Reg::R3, self.ctx, offset as i32);
                }
                ProgramContext::RawTracepoint(fields) => {
                    let field = covering(fields, offset, len)?;
                    let no_source = LowerError::NoSource { offset, end: offset + len };
                    let Source::Memory { arg, path } = &field.source else { return Err(no_source) };
                    let Some((last, prefix)) = path.split_last() else { return Err(no_source) };
                    let inner = offset - usize::from(field.offset);
                    self.pointer(Reg::R3, *arg, prefix, last + inner as u32);
                }
            }
        } else {
            let slot = self.comm_slot();
            self.asm.address(Reg::R3, Reg::R10, i32::from(slot));
        }
        self.scratch_address(Reg::R1, region);
        if part == Part::String {
            self.asm.mov(Reg::R2, len as i32 + 1);
            self.call(Helper::ProbeReadKernelStr);
            self.store_string_length(region);
        } else {
            self.asm.mov(Reg::R2, len as i32);
            self.call(Helper::ProbeReadKernel);
        }
        self.texts.wrote(region);
        Ok(region)
    }

    /// Stores the length of the string whose bytes, NUL included, R0 counts. A string that could not be read is empty,
    /// because its bytes are zero then.
    fn store_string_length(&mut self, region: usize) {
        let read = self.asm.label();
        self.jump_if(Cond::SGt, Reg::R0, 0, read);
        self.asm.mov(Reg::R0, 1);
        self.bind(read);
        self.asm.alu(Alu::Sub, Reg::R0, 1);
        self.store_length(region, Reg::R0);
    }

    fn store_length(&mut self, region: usize, reg: Reg) {
        let off = self.texts.regions[region].off;
        self.asm.store(Width::D, Reg::R7, off as i16, reg);
    }

    /// R9 = length of a fetched text, at most its region's `max`.
    fn length(&mut self, region: usize, fault: Label) {
        let Region { off, max, .. } = self.texts.regions[region];
        self.asm.load(Width::D, Reg::R9, Reg::R7, off as i16);
        // A larger value is negative and means that the text could not be read.
        self.jump_if(Cond::Gt, Reg::R9, max as i32, fault);
    }

    fn scratch_address(&mut self, dst: Reg, region: usize) {
        self.use_scratch();
        let off = self.texts.regions[region].bytes();
        self.asm.address(dst, Reg::R7, off as i32);
    }

    fn scratch_bytes(&self, region: usize) -> Bytes {
        let region = self.texts.regions[region];
        Bytes { base: Reg::R7, off: region.bytes() as i32, room: region.max, aligned: false }
    }

    /// Tests the text of a `__data_loc` or `__rel_loc` word.
    fn data_text(&mut self, text: Text, pattern: &Pattern, outcome: Outcome) -> Result<(), LowerError> {
        if matches!(self.hook, ProgramContext::RawTracepoint(_)) {
            return Err(LowerError::NoData);
        }
        match pattern {
            Pattern::Full(wanted) | Pattern::Front(wanted) => {
                let size = self.texts.head(text);
                let region = self.fetch_data(text, Part::Head(size))?;
                let off = self.texts.regions[region].off;
                self.asm.load(Width::D, Reg::R9, Reg::R7, off as i16);
                let len = wanted.len();
                let long_enough = self.asm.label();
                if len > 0 {
                    // For length 0, the kernel reads up to the next NUL.
                    self.jump_if(Cond::Eq, Reg::R9, 0, long_enough);
                    self.jump_if(Cond::Lt, Reg::R9, len as i32, outcome.miss());
                }
                self.bind(long_enough);
                let bytes = self.scratch_bytes(region);
                compare(self, bytes, wanted, outcome.miss());
                if matches!(pattern, Pattern::Full(_)) {
                    if len > 0 {
                        self.jump_if(Cond::Eq, Reg::R9, len as i32, outcome.exits.yes);
                    }
                    compare(self, bytes.skip(len), &[0], outcome.miss());
                }
                self.go(true, outcome.exits);
            }
            Pattern::End(wanted) => {
                let region = self.fetch_data(text, Part::Tail(wanted.len()))?;
                let off = self.texts.regions[region].off;
                self.asm.load(Width::D, Reg::R9, Reg::R7, off as i16);
                self.jump_if(Cond::Le, Reg::R9, wanted.len() as i32, outcome.miss());
                let bytes = self.scratch_bytes(region);
                compare(self, bytes, wanted, outcome.miss());
                self.go(true, outcome.exits);
            }
            Pattern::Middle(wanted) if wanted.is_empty() => self.go(true, outcome.exits),
            Pattern::Middle(wanted) => {
                let region = self.fetch_data(text, Part::Whole)?;
                self.length(region, outcome.fault);
                self.middle(region, wanted, outcome);
            }
            Pattern::Glob(glob) => {
                let region = self.fetch_data(text, Part::String)?;
                self.length(region, outcome.fault);
                self.glob(region, glob, outcome);
            }
        }
        Ok(())
    }

    /// Ensures that the part of a text of varying length is in scratch memory.
    fn fetch_data(&mut self, text: Text, part: Part) -> Result<usize, LowerError> {
        let max = match part {
            Part::Head(size) | Part::Tail(size) => size,
            Part::Whole | Part::String => DATA_MAX,
        };
        let region = self.texts.region(text, part, max);
        self.use_scratch();
        if self.texts.fetched.has(&region) {
            return Ok(region);
        }
        let (offset, base) = match text {
            Text::Dyn { offset } => (offset, 0),
            Text::Rel { offset } => (offset, i32::from(offset) + 4),
            _ => return Err(LowerError::NoData),
        };
        // R9 = length, R3 = address of the first byte.
        self.value(Place { offset, size: 4 })?;
        self.asm.mov(Reg::R9, Reg::R0);
        self.asm.alu(Alu::Rsh, Reg::R9, 16);
        self.asm.alu(Alu::And, Reg::R0, 0xffff);
        self.asm.mov(Reg::R3, self.ctx);
        if base > 0 {
            self.asm.alu(Alu::Add, Reg::R3, base);
        }
        self.asm.alu(Alu::Add, Reg::R3, Reg::R0);
        self.scratch_address(Reg::R1, region);
        match part {
            Part::Head(size) => {
                let short = self.asm.label();
                self.asm.mov(Reg::R2, size as i32);
                // Reads no more than the text has; a length of 0 means that it is unknown.
                self.jump_if(Cond::Eq, Reg::R9, 0, short);
                self.jump_if(Cond::Ge, Reg::R9, size as i32, short);
                self.asm.mov(Reg::R2, Reg::R9);
                self.bind(short);
                self.call(Helper::ProbeReadKernel);
                self.store_length(region, Reg::R9);
            }
            Part::Tail(size) => {
                let done = self.asm.label();
                self.store_length(region, Reg::R9);
                if size > 0 {
                    self.jump_if(Cond::Le, Reg::R9, size as i32, done);
                    self.asm.alu(Alu::Sub, Reg::R9, size as i32 + 1);
                    self.asm.alu(Alu::Add, Reg::R3, Reg::R9);
                    self.asm.mov(Reg::R2, size as i32);
                    self.call(Helper::ProbeReadKernel);
                }
                self.bind(done);
            }
            Part::Whole => {
                let (endless, done) = (self.asm.label(), self.asm.label());
                self.jump_if(Cond::Eq, Reg::R9, 0, endless);
                self.bound(Reg::R9, max);
                self.asm.mov(Reg::R2, Reg::R9);
                self.call(Helper::ProbeReadKernel);
                self.store_length(region, Reg::R9);
                self.jump(done);
                self.bind(endless);
                self.asm.mov(Reg::R2, max as i32);
                self.call(Helper::ProbeReadKernelStr);
                self.store_string_length(region);
                self.bind(done);
            }
            Part::String => {
                self.bound(Reg::R9, max);
                self.asm.mov(Reg::R2, Reg::R9);
                self.asm.alu(Alu::Add, Reg::R2, 1);
                self.call(Helper::ProbeReadKernelStr);
                self.store_string_length(region);
            }
        }
        self.texts.wrote(region);
        Ok(region)
    }

    /// `reg = min(reg, max)`
    fn bound(&mut self, reg: Reg, max: usize) {
        let fits = self.asm.label();
        self.jump_if(Cond::Le, reg, max as i32, fits);
        self.asm.mov(reg, max as i32);
        self.bind(fits);
    }

    /// Tests a text behind a pointer.
    fn pointer_text(&mut self, text: Text, pattern: &Pattern, outcome: Outcome) -> Result<(), LowerError> {
        let Text::Pointer { place, user } = text else { return Err(LowerError::NoData) };
        // Pointers in a program's record point to the program's memory.
        let user = user || matches!(self.hook, ProgramContext::UserRecord(_));
        let region = self.texts.region(text, Part::String, POINTER_TEXT_MAX - 1);
        if !self.texts.fetched.has(&region) {
            self.value(place)?;
            self.asm.mov(Reg::R3, Reg::R0);
            self.scratch_address(Reg::R1, region);
            self.asm.mov(Reg::R2, POINTER_TEXT_MAX as i32);
            self.call(if user { Helper::ProbeReadUserStr } else { Helper::ProbeReadKernelStr });
            // 0 is an empty string in user memory, whose NUL 6.1 and 6.12 do not count (`strncpy_from_user_nofault()`).
            let counted = self.asm.label();
            self.jump_if(Cond::SLe, Reg::R0, 0, counted);
            self.asm.alu(Alu::Sub, Reg::R0, 1);
            self.bind(counted);
            self.store_length(region, Reg::R0);
            self.texts.wrote(region);
        }
        self.string(region, pattern, outcome);
        Ok(())
    }

    /// Tests a char array at the record's end whose length is known only from its NUL; more NULs follow the record.
    fn open_text(
        &mut self,
        text: Text,
        offset: u16,
        pattern: &Pattern,
        outcome: Outcome,
    ) -> Result<(), LowerError> {
        if matches!(self.hook, ProgramContext::RawTracepoint(_)) {
            return Err(LowerError::NoData);
        }
        // For patterns that depend on the length alone, the text is empty.
        let settled = match pattern {
            Pattern::End(_) => Some(false),
            Pattern::Glob(glob) => Some(Glob::parse(glob).takes_nothing()),
            _ => None,
        };
        if let Some(holds) = settled {
            self.go(holds, outcome.exits);
            return Ok(());
        }
        let max = MAX_PAYLOAD.saturating_sub(usize::from(offset));
        let region = self.texts.region(text, Part::String, max);
        if !self.texts.fetched.has(&region) {
            self.asm.address(Reg::R3, self.ctx, i32::from(offset));
            self.scratch_address(Reg::R1, region);
            self.asm.mov(Reg::R2, max as i32 + 1);
            self.call(Helper::ProbeReadKernelStr);
            self.store_string_length(region);
            self.texts.wrote(region);
        }
        self.string(region, pattern, outcome);
        Ok(())
    }

    /// Compares a fetched string together with its NUL, so that all patterns use the string's own length.
    fn string(&mut self, region: usize, pattern: &Pattern, outcome: Outcome) {
        self.use_scratch();
        self.length(region, outcome.fault);
        let bytes = self.scratch_bytes(region);
        let Region { max, .. } = self.texts.regions[region];
        match pattern {
            Pattern::Full(wanted) if wanted.len() <= max => {
                self.jump_if(Cond::Ne, Reg::R9, wanted.len() as i32, outcome.miss());
                compare(self, bytes, wanted, outcome.miss());
                self.go(true, outcome.exits);
            }
            Pattern::Front(wanted) if wanted.len() <= max => {
                self.jump_if(Cond::Lt, Reg::R9, wanted.len() as i32, outcome.miss());
                compare(self, bytes, wanted, outcome.miss());
                self.go(true, outcome.exits);
            }
            Pattern::End(wanted) if wanted.len() <= max => {
                self.jump_if(Cond::Lt, Reg::R9, wanted.len() as i32, outcome.miss());
                let segment: Vec<_> = wanted.iter().map(|byte| Element::Byte(*byte)).collect();
                self.tail_segment(region, &segment, outcome.miss());
                self.go(true, outcome.exits);
            }
            Pattern::Middle(wanted) if wanted.is_empty() => self.go(true, outcome.exits),
            Pattern::Middle(wanted) if wanted.len() <= max => {
                self.middle(region, wanted, outcome);
            }
            Pattern::Glob(glob) => self.glob(region, glob, outcome),
            Pattern::Full(_) | Pattern::Front(_) | Pattern::End(_) | Pattern::Middle(_) => {
                self.go(false, outcome.exits);
            }
        }
    }

    /// Compares a segment with the end of a fetched text; R9 is its length, which is at least the segment's.
    fn tail_segment(&mut self, region: usize, segment: &[Element], miss: Label) {
        if segment.is_empty() {
            return;
        }
        let bytes = self.scratch_bytes(region);
        self.asm.mov(Reg::R2, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R2, Reg::R9);
        let bytes =
            Bytes { base: Reg::R2, off: bytes.off - segment.len() as i32, room: segment.len(), ..bytes };
        match_segment(self, bytes, segment, miss);
    }

    /// Searches for text in a fetched text; R9 is its length.
    fn middle(&mut self, region: usize, wanted: &[u8], outcome: Outcome) {
        let segment = wanted.iter().map(|byte| Element::Byte(*byte)).collect();
        let Region { max, .. } = self.texts.regions[region];
        let off = self.texts.regions[region].bytes();
        self.search(off, max, &segment, Start::At(0), 0, outcome.miss());
        self.go(true, outcome.exits);
    }

    /// Matches a glob with a fetched string; R9 is its length.
    fn glob(&mut self, region: usize, pattern: &[u8], outcome: Outcome) {
        let Region { max, .. } = self.texts.regions[region];
        let off = self.texts.regions[region].bytes();
        let glob = Glob::parse(pattern);
        let miss = outcome.miss();
        let (middle, last) = match &glob.rest {
            None => (&[][..], &[][..]),
            Some((middle, last)) => (&middle[..], &last[..]),
        };
        let least = glob.first.len() + middle.iter().map(Vec::len).sum::<usize>() + last.len();
        if least > max {
            self.go(false, outcome.exits);
            return;
        }
        let cond = if glob.rest.is_none() { Cond::Ne } else { Cond::Lt };
        if least > 0 || cond == Cond::Ne {
            self.jump_if(cond, Reg::R9, Operand::Imm(least as i32), miss);
        }
        let bytes = self.scratch_bytes(region);
        match_segment(self, bytes, &glob.first, miss);
        self.tail_segment(region, last, miss);
        let mut start = Start::At(glob.first.len());
        let mut behind: usize = middle.iter().map(Vec::len).sum();
        for segment in middle {
            behind -= segment.len();
            self.search(off, max, segment, start, behind + last.len(), miss);
            start = Start::BehindFound(segment.len());
        }
        self.go(true, outcome.exits);
    }
}
