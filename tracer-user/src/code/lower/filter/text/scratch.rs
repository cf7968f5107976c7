//! Texts in scratch memory and on the stack: allocates their places and fetches the parts that tests need.
//!
//! A fetched text is preceded by its length. [`Fact`] records which texts are present at a point of the code; regions
//! may overlap, so fetching one text forgets others.

use tracer_abi::{FILTER_AREA, MAX_PAYLOAD};

use crate::{
    code::{
        asm::{Alu, Cond, Helper, Label, Reg, Width},
        lower::{
            emitter::{COMM_SIZE, Emitter},
            facts::Fact,
            filter::compare::Bytes,
            output::LowerError,
            values::{Values, covering},
        },
    },
    plan::{
        filter::{Filter, POINTER_TEXT_MAX, Pattern, Place, Test, Text},
        source::Source,
    },
};

/// Longest text of varying length that is searched, in bytes; no record is longer.
const DATA_MAX: usize = 8176;
/// Bytes before a fetched text: its length, negative if it could not be read.
const LENGTH_SIZE: usize = 8;

/// The part of a text that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// This many bytes from the start; the stored length is the text's.
    Head(usize),
    /// This many bytes before the last one; the stored length is the text's.
    Tail(usize),
    /// All bytes.
    Whole,
    /// All bytes up to the first NUL.
    String,
}

/// A fetched text and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    text: Text,
    part: Part,
    off: usize,
    /// Largest number of bytes that are fetched.
    pub(super) max: usize,
}

impl Region {
    /// Offset of the text's bytes from R7.
    pub(super) fn start(&self) -> usize {
        self.off + LENGTH_SIZE
    }

    /// The fetched bytes.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes { base: Reg::R7, off: self.start() as i32, available: self.max, aligned: false }
    }

    /// R9 = the stored length.
    pub(super) fn load_length(&self, emit: &mut Emitter) {
        emit.load(Width::D, Reg::R9, Reg::R7, self.off as i16);
    }

    /// R9 = the length, at most `max`; jumps to `fault` if the text could not be read.
    pub(super) fn checked_length(&self, emit: &mut Emitter, fault: Label) {
        self.load_length(emit);
        // A larger value is negative and means that the text could not be read.
        emit.jump_if(Cond::Gt, Reg::R9, self.max as i32, fault);
    }

    fn size(&self) -> usize {
        (LENGTH_SIZE + self.max + 1).next_multiple_of(8)
    }

    fn overlaps(&self, other: &Self) -> bool {
        other.off < self.off + self.size() && self.off < other.off + other.size()
    }

    /// `dst` = address of the text's bytes.
    fn address(&self, emit: &mut Emitter, dst: Reg) {
        emit.use_scratch();
        emit.address(dst, Reg::R7, self.start() as i32);
    }

    fn store_length(&self, emit: &mut Emitter, reg: Reg) {
        emit.store(Width::D, Reg::R7, self.off as i16, reg);
    }

    /// Stores the length of the string whose bytes, NUL included, R0 counts. A string that could not be read is empty,
    /// because its bytes are zero then.
    fn store_string_length(&self, emit: &mut Emitter) {
        let read = emit.label();
        emit.jump_if(Cond::SGt, Reg::R0, 0, read);
        emit.mov(Reg::R0, 1);
        emit.bind(read);
        emit.alu(Alu::Sub, Reg::R0, 1);
        self.store_length(emit, Reg::R0);
    }
}

/// The texts that a filter fetches.
#[derive(Clone, Debug, Default)]
pub(super) struct ScratchTexts {
    regions: Vec<Region>,
    next: usize,
    /// For each text, the length of the longest pattern compared with its start, plus one.
    heads: Vec<(Text, usize)>,
    /// Stack offset of the current task's name.
    comm: Option<i16>,
}

impl ScratchTexts {
    /// Determines which part of each text the tests need.
    pub(super) fn for_filter(filter: &Filter) -> Self {
        let mut texts = Self::default();
        for test in filter.tests() {
            let Test::Text { text, pattern: Pattern::Full(wanted) | Pattern::Front(wanted), .. } = test
            else {
                continue;
            };
            let size = wanted.len() + 1;
            match texts.heads.iter_mut().find(|(known, _)| known == text) {
                Some((_, longest)) => *longest = size.max(*longest),
                None => texts.heads.push((*text, size)),
            }
        }
        texts
    }

    /// The number of bytes from a text's start that its tests need.
    pub(super) fn head(&self, text: Text) -> usize {
        self.heads.iter().find(|(known, _)| *known == text).map_or(1, |(_, size)| *size)
    }

    /// Allocates `size` bytes for immediate use.
    pub(super) fn transient(&self, emit: &mut Emitter, size: usize) -> usize {
        let off = FILTER_AREA - size;
        emit.facts.retain(|fact| match fact {
            Fact::Text(number) => self.regions[number].off + self.regions[number].size() <= off,
            Fact::Group(_) | Fact::Comm => true,
        });
        off
    }

    /// The number of the text's region, which is created if there is none. Regions may overlap.
    fn region(&mut self, text: Text, part: Part, max: usize) -> usize {
        let known = self.regions.iter().position(|region| (region.text, region.part) == (text, part));
        if let Some(known) = known {
            return known;
        }
        let mut region = Region { text, part, off: self.next, max };
        if region.off + region.size() > FILTER_AREA {
            region.off = 0;
        }
        self.next = region.off + region.size();
        self.regions.push(region);
        self.regions.len() - 1
    }

    /// Marks a region as fetched and forgets the regions that it overlaps.
    fn fetched(&self, emit: &mut Emitter, number: usize) -> Region {
        let region = self.regions[number];
        emit.facts.retain(|fact| match fact {
            Fact::Text(other) => !region.overlaps(&self.regions[other]),
            Fact::Group(_) | Fact::Comm => true,
        });
        emit.facts.add(Fact::Text(number));
        region
    }

    /// Ensures that the name of the hitting thread is on the stack, and returns its offset.
    pub(super) fn comm_slot(&mut self, emit: &mut Emitter, values: &Values<'_>) -> i16 {
        let slot = *self.comm.get_or_insert_with(|| emit.alloc(COMM_SIZE));
        if !emit.facts.has(Fact::Comm) {
            values.copy_comm(emit, (Reg::R10, slot));
            emit.facts.add(Fact::Comm);
        }
        slot
    }

    /// Ensures that a text of known length is in scratch memory.
    pub(super) fn fetch_fixed(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        part: Part,
        len: usize,
    ) -> Result<Region, LowerError> {
        let number = self.region(text, part, len);
        let region = self.regions[number];
        emit.use_scratch();
        if emit.facts.has(Fact::Text(number)) {
            return Ok(region);
        }
        if let Text::Static(place) = text {
            fixed_address(emit, values, usize::from(place.offset), len)?;
        } else {
            let slot = self.comm_slot(emit, values);
            emit.address(Reg::R3, Reg::R10, i32::from(slot));
        }
        region.address(emit, Reg::R1);
        if part == Part::String {
            emit.mov(Reg::R2, len as i32 + 1);
            emit.call(Helper::ProbeReadKernelStr);
            region.store_string_length(emit);
        } else {
            emit.mov(Reg::R2, len as i32);
            emit.call(Helper::ProbeReadKernel);
        }
        Ok(self.fetched(emit, number))
    }

    /// Ensures that the part of a text of varying length is in scratch memory.
    pub(super) fn fetch_data(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        part: Part,
    ) -> Result<Region, LowerError> {
        let max = match part {
            Part::Head(size) | Part::Tail(size) => size,
            Part::Whole | Part::String => DATA_MAX,
        };
        let number = self.region(text, part, max);
        let region = self.regions[number];
        emit.use_scratch();
        if emit.facts.has(Fact::Text(number)) {
            return Ok(region);
        }
        let (offset, base) = match text {
            Text::Dyn { offset } => (offset, 0),
            Text::Rel { offset } => (offset, usize::from(offset) + 4),
            _ => return Err(LowerError::NoData),
        };
        if values.lacks_data() {
            return Err(LowerError::NoData);
        }
        // R9 = length, R3 = address of the first byte.
        values.value(emit, Place { offset, size: 4 })?;
        emit.mov(Reg::R9, Reg::R0);
        emit.alu(Alu::Rsh, Reg::R9, 16);
        emit.alu(Alu::And, Reg::R0, 0xffff);
        emit.context_address(Reg::R3, base);
        emit.alu(Alu::Add, Reg::R3, Reg::R0);
        region.address(emit, Reg::R1);
        match part {
            Part::Head(size) => {
                let short = emit.label();
                emit.mov(Reg::R2, size as i32);
                // Reads no more bytes than the text has; a length of 0 means that the length is unknown.
                emit.jump_if(Cond::Eq, Reg::R9, 0, short);
                emit.jump_if(Cond::Ge, Reg::R9, size as i32, short);
                emit.mov(Reg::R2, Reg::R9);
                emit.bind(short);
                emit.call(Helper::ProbeReadKernel);
                region.store_length(emit, Reg::R9);
            }
            Part::Tail(size) => {
                let done = emit.label();
                region.store_length(emit, Reg::R9);
                if size > 0 {
                    emit.jump_if(Cond::Le, Reg::R9, size as i32, done);
                    emit.alu(Alu::Sub, Reg::R9, size as i32 + 1);
                    emit.alu(Alu::Add, Reg::R3, Reg::R9);
                    emit.mov(Reg::R2, size as i32);
                    emit.call(Helper::ProbeReadKernel);
                }
                emit.bind(done);
            }
            Part::Whole => {
                let [endless, done] = emit.labels();
                emit.jump_if(Cond::Eq, Reg::R9, 0, endless);
                emit.limit(Reg::R9, max);
                emit.mov(Reg::R2, Reg::R9);
                emit.call(Helper::ProbeReadKernel);
                region.store_length(emit, Reg::R9);
                emit.jump(done);
                emit.bind(endless);
                emit.mov(Reg::R2, max as i32);
                emit.call(Helper::ProbeReadKernelStr);
                region.store_string_length(emit);
                emit.bind(done);
            }
            Part::String => {
                emit.limit(Reg::R9, max);
                emit.mov(Reg::R2, Reg::R9);
                emit.alu(Alu::Add, Reg::R2, 1);
                emit.call(Helper::ProbeReadKernelStr);
                region.store_string_length(emit);
            }
        }
        Ok(self.fetched(emit, number))
    }

    /// Ensures that the text at the pointer in `place` is in scratch memory; `text` is that text.
    pub(super) fn fetch_pointer(
        &mut self,
        emit: &mut Emitter,
        values: &mut Values<'_>,
        text: Text,
        place: Place,
        user: bool,
    ) -> Result<Region, LowerError> {
        let number = self.region(text, Part::String, POINTER_TEXT_MAX - 1);
        let region = self.regions[number];
        if emit.facts.has(Fact::Text(number)) {
            return Ok(region);
        }
        values.value(emit, place)?;
        emit.mov(Reg::R3, Reg::R0);
        region.address(emit, Reg::R1);
        emit.mov(Reg::R2, POINTER_TEXT_MAX as i32);
        emit.call(if user { Helper::ProbeReadUserStr } else { Helper::ProbeReadKernelStr });
        // 0 is an empty string in user memory, whose NUL 6.1 and 6.12 do not count (`strncpy_from_user_nofault()`).
        let counted = emit.label();
        emit.jump_if(Cond::SLe, Reg::R0, 0, counted);
        emit.alu(Alu::Sub, Reg::R0, 1);
        emit.bind(counted);
        region.store_length(emit, Reg::R0);
        Ok(self.fetched(emit, number))
    }

    /// Ensures that the char array from `offset` to the record's end is in scratch memory; `text` is that text.
    pub(super) fn fetch_open(&mut self, emit: &mut Emitter, text: Text, offset: u16) -> Region {
        let max = MAX_PAYLOAD.saturating_sub(usize::from(offset));
        let number = self.region(text, Part::String, max);
        let region = self.regions[number];
        if emit.facts.has(Fact::Text(number)) {
            return region;
        }
        emit.context_address(Reg::R3, usize::from(offset));
        region.address(emit, Reg::R1);
        emit.mov(Reg::R2, max as i32 + 1);
        emit.call(Helper::ProbeReadKernelStr);
        region.store_string_length(emit);
        self.fetched(emit, number)
    }
}

/// R3 = address of a text of known length in the record.
fn fixed_address(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    offset: usize,
    len: usize,
) -> Result<(), LowerError> {
    let Some(fields) = values.sources() else {
        emit.context_address(Reg::R3, offset);
        return Ok(());
    };
    let field = covering(fields, offset, len)?;
    let no_source = LowerError::NoSource { offset, end: offset + len };
    let Source::Memory { arg, path } = &field.source else { return Err(no_source) };
    let Some((last, prefix)) = path.split_last() else { return Err(no_source) };
    let inner = offset - usize::from(field.offset);
    values.memory.pointer(emit, Reg::R3, *arg, prefix, last + inner as u32);
    Ok(())
}
