//! Comparisons of text: the memory that a text is compared in, and the comparison for each kind of pattern.
//!
//! A text at a fixed place is compared there, or on the stack if it is a raw tracepoint's field that was read to the
//! stack. All other texts, and texts that must be searched, are fetched into scratch memory, unless all paths have
//! fetched them before ([`scratch`]). For an anchored pattern only the first or the last bytes are fetched, otherwise
//! the whole text.

mod scratch;

use super::{
    compare::{Bytes, compare},
    glob::{Element, Glob, match_segment},
    search::{Searches, Start},
};
use crate::{
    code::{
        asm::{Alu, Cond, Label, Reg},
        lower::{
            emitter::{COMM_SIZE, Emitter},
            exits::Exits,
            output::LowerError,
            values::{Values, covering},
        },
    },
    plan::{
        filter::{Filter, Pattern, Text},
        source::{ProgramContext, Source},
    },
};

use scratch::{Part, Region, ScratchTexts};

/// Longest char array that the filter of a raw tracepoint compares on the stack.
const STACK_TEXT_MAX: usize = 128;

/// Targets of a text test.
#[derive(Clone, Copy)]
struct Outcome {
    /// Targets for a match and for a mismatch.
    exits: Exits,
    /// Target if the text cannot be read.
    fault: Label,
}

impl Outcome {
    fn miss(self) -> Label {
        self.exits.no
    }
}

/// The texts that a function fetches and the searches that it makes in them.
pub(super) struct Texts {
    scratch: ScratchTexts,
    pub(super) searches: Searches,
}

impl Texts {
    /// For a function that makes this many searches.
    pub(super) fn new(searches: usize) -> Self {
        Self { scratch: ScratchTexts::default(), searches: Searches::expecting(searches) }
    }

    /// Starts a filter: none of its texts is fetched.
    pub(super) fn start(&mut self, emit: &mut Emitter, filter: &Filter) {
        self.scratch = ScratchTexts::for_filter(filter);
        emit.facts.forget_texts();
    }

    /// Allocates `size` bytes of scratch memory for immediate use; returns their offset from R7.
    pub(super) fn transient(&self, emit: &mut Emitter, size: usize) -> usize {
        self.scratch.transient(emit, size)
    }

    pub(super) fn test(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        (pattern, not): (&Pattern, bool),
        exits: Exits,
    ) -> Result<(), LowerError> {
        emit.note(format!("{text} {} {pattern}", if not { "!=" } else { "==" }));
        let outcome = Outcome { exits: exits.inverted_if(not), fault: exits.no };
        match text {
            Text::Static(place) => {
                self.fixed(emit, values, (text, usize::from(place.size)), pattern, outcome)
            }
            Text::Comm => self.fixed(emit, values, (text, COMM_SIZE), pattern, outcome),
            Text::Dyn { .. } | Text::Rel { .. } => self.data(emit, values, text, pattern, outcome),
            Text::Pointer { place, user } => {
                // Pointers in a program's record point to the program's memory.
                let user = user || matches!(values.context(), ProgramContext::UserRecord(_));
                let region = self.scratch.fetch_pointer(emit, values, text, place, user)?;
                self.string(emit, region, pattern, outcome);
                Ok(())
            }
            Text::Open { offset } => {
                if values.sources().is_some() {
                    return Err(LowerError::NoData);
                }
                self.open(emit, text, offset, pattern, outcome);
                Ok(())
            }
        }
    }

    /// Tests a text of known length.
    fn fixed(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        (text, len): (Text, usize),
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
                outcome.exits.go(emit, false);
                return Ok(());
            }
            Pattern::Middle(wanted) => {
                if wanted.is_empty() || wanted.len() > len {
                    outcome.exits.go(emit, wanted.is_empty());
                    return Ok(());
                }
                let region = self.scratch.fetch_fixed(emit, values, text, Part::Whole, len)?;
                emit.mov(Reg::R9, len as i32);
                self.middle(emit, region, wanted, outcome);
                return Ok(());
            }
            Pattern::Glob(glob) => {
                let region = self.scratch.fetch_fixed(emit, values, text, Part::String, len)?;
                region.checked_length(emit, outcome.fault);
                self.glob(emit, region, glob, outcome);
                return Ok(());
            }
        };
        if start + expected.len() > len {
            outcome.exits.go(emit, false);
            return Ok(());
        }
        let bytes = self.fixed_bytes(emit, values, text, len)?.skip(start);
        compare(emit, bytes, &expected, outcome.miss());
        outcome.exits.go(emit, true);
        Ok(())
    }

    /// The memory in which a text of known length can be compared.
    fn fixed_bytes(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        len: usize,
    ) -> Result<Bytes, LowerError> {
        let bytes = |base, off| Bytes { base, off, available: len, aligned: true };
        let Text::Static(place) = text else {
            let slot = self.scratch.comm_slot(emit, values);
            return Ok(bytes(Reg::R10, i32::from(slot)));
        };
        let Some(fields) = values.sources() else {
            return Ok(bytes(emit.ctx, i32::from(place.offset)));
        };
        let offset = usize::from(place.offset);
        let field = covering(fields, offset, len)?;
        let Source::Memory { arg, path } = &field.source else {
            return Err(LowerError::NoSource { offset, end: offset + len });
        };
        if len > STACK_TEXT_MAX {
            return Ok(self.scratch.fetch_fixed(emit, values, text, Part::Whole, len)?.bytes());
        }
        let slot = values.memory.slot(emit, *arg, path, offset - usize::from(field.offset), len);
        Ok(bytes(Reg::R10, i32::from(slot)))
    }

    /// Tests the text of a `__data_loc` or `__rel_loc` word.
    fn data(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        pattern: &Pattern,
        outcome: Outcome,
    ) -> Result<(), LowerError> {
        if values.sources().is_some() {
            return Err(LowerError::NoData);
        }
        match pattern {
            Pattern::Full(wanted) | Pattern::Front(wanted) => {
                let size = self.scratch.head(text);
                let region = self.scratch.fetch_data(emit, values, text, Part::Head(size))?;
                region.load_length(emit);
                let len = wanted.len();
                let long_enough = emit.label();
                if len > 0 {
                    // For length 0, the kernel reads up to the next NUL.
                    emit.jump_if(Cond::Eq, Reg::R9, 0, long_enough);
                    emit.jump_if(Cond::Lt, Reg::R9, len as i32, outcome.miss());
                }
                emit.bind(long_enough);
                compare(emit, region.bytes(), wanted, outcome.miss());
                if matches!(pattern, Pattern::Full(_)) {
                    if len > 0 {
                        emit.jump_if(Cond::Eq, Reg::R9, len as i32, outcome.exits.yes);
                    }
                    compare(emit, region.bytes().skip(len), &[0], outcome.miss());
                }
                outcome.exits.go(emit, true);
            }
            Pattern::End(wanted) => {
                let region = self.scratch.fetch_data(emit, values, text, Part::Tail(wanted.len()))?;
                region.load_length(emit);
                emit.jump_if(Cond::Le, Reg::R9, wanted.len() as i32, outcome.miss());
                compare(emit, region.bytes(), wanted, outcome.miss());
                outcome.exits.go(emit, true);
            }
            Pattern::Middle(wanted) if wanted.is_empty() => outcome.exits.go(emit, true),
            Pattern::Middle(wanted) => {
                let region = self.scratch.fetch_data(emit, values, text, Part::Whole)?;
                region.checked_length(emit, outcome.fault);
                self.middle(emit, region, wanted, outcome);
            }
            Pattern::Glob(glob) => {
                let region = self.scratch.fetch_data(emit, values, text, Part::String)?;
                region.checked_length(emit, outcome.fault);
                self.glob(emit, region, glob, outcome);
            }
        }
        Ok(())
    }

    /// Tests a char array at the record's end that ends with its first NUL; more NULs follow the record.
    fn open(&mut self, emit: &mut Emitter, text: Text, offset: u16, pattern: &Pattern, outcome: Outcome) {
        // For patterns that depend on the length alone, the text is empty.
        let known = match pattern {
            Pattern::End(_) => Some(false),
            Pattern::Glob(glob) => Some(Glob::parse(glob).takes_nothing()),
            _ => None,
        };
        if let Some(holds) = known {
            outcome.exits.go(emit, holds);
            return;
        }
        let region = self.scratch.fetch_open(emit, text, offset);
        self.string(emit, region, pattern, outcome);
    }

    /// Compares a fetched string together with its NUL, so that all patterns use the string's own length.
    fn string(&mut self, emit: &mut Emitter, region: Region, pattern: &Pattern, outcome: Outcome) {
        emit.use_scratch();
        region.checked_length(emit, outcome.fault);
        let (bytes, miss) = (region.bytes(), outcome.miss());
        match pattern {
            Pattern::Glob(glob) => self.glob(emit, region, glob, outcome),
            Pattern::Full(wanted)
            | Pattern::Front(wanted)
            | Pattern::End(wanted)
            | Pattern::Middle(wanted)
                if wanted.len() > region.max =>
            {
                outcome.exits.go(emit, false);
            }
            Pattern::Middle(wanted) if wanted.is_empty() => outcome.exits.go(emit, true),
            Pattern::Middle(wanted) => self.middle(emit, region, wanted, outcome),
            Pattern::Full(wanted) | Pattern::Front(wanted) => {
                let cond = if matches!(pattern, Pattern::Full(_)) { Cond::Ne } else { Cond::Lt };
                emit.jump_if(cond, Reg::R9, wanted.len() as i32, miss);
                compare(emit, bytes, wanted, miss);
                outcome.exits.go(emit, true);
            }
            Pattern::End(wanted) => {
                emit.jump_if(Cond::Lt, Reg::R9, wanted.len() as i32, miss);
                let segment: Vec<_> = wanted.iter().map(|byte| Element::Byte(*byte)).collect();
                tail_segment(emit, region, &segment, miss);
                outcome.exits.go(emit, true);
            }
        }
    }

    /// Searches for text in a fetched text; R9 is its length.
    fn middle(&mut self, emit: &mut Emitter, region: Region, wanted: &[u8], outcome: Outcome) {
        let segment = wanted.iter().map(|byte| Element::Byte(*byte)).collect();
        let text = (region.start(), region.max);
        self.searches.search(emit, text, &segment, Start::At(0), 0, outcome.miss());
        outcome.exits.go(emit, true);
    }

    /// Matches a glob with a fetched string; R9 is its length.
    fn glob(&mut self, emit: &mut Emitter, region: Region, pattern: &[u8], outcome: Outcome) {
        let text = (region.start(), region.max);
        let Glob { first, rest } = Glob::parse(pattern);
        let miss = outcome.miss();
        let cond = if rest.is_none() { Cond::Ne } else { Cond::Lt };
        let (middle, last) = rest.unwrap_or_default();
        let mut after: usize = middle.iter().map(Vec::len).sum();
        let least = first.len() + after + last.len();
        if least > region.max {
            outcome.exits.go(emit, false);
            return;
        }
        if least > 0 || cond == Cond::Ne {
            emit.jump_if(cond, Reg::R9, least as i32, miss);
        }
        match_segment(emit, region.bytes(), &first, miss);
        tail_segment(emit, region, &last, miss);
        let mut start = Start::At(first.len());
        for segment in &middle {
            after -= segment.len();
            self.searches.search(emit, text, segment, start, after + last.len(), miss);
            start = Start::AfterFound(segment.len());
        }
        outcome.exits.go(emit, true);
    }
}

/// Compares a segment with the end of a fetched text; R9 is its length, which is at least the segment's.
fn tail_segment(emit: &mut Emitter, region: Region, segment: &[Element], miss: Label) {
    if segment.is_empty() {
        return;
    }
    let bytes = region.bytes();
    emit.mov(Reg::R2, Reg::R7);
    emit.alu(Alu::Add, Reg::R2, Reg::R9);
    let bytes =
        Bytes { base: Reg::R2, off: bytes.off - segment.len() as i32, available: segment.len(), ..bytes };
    match_segment(emit, bytes, segment, miss);
}
