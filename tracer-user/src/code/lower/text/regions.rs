//! Where fetched texts lie in scratch memory, and which of them are present on the current path.

use tracer_abi::FILTER_AREA;

use crate::{
    code::lower::memory::Fetched,
    plan::filter::{Filter, Pattern, Test, Text},
};

/// Bytes before a fetched text: its length, negative if it could not be read.
const LENGTH_SIZE: usize = 8;

/// How much of a text is fetched.
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
    pub(super) text: Text,
    pub(super) part: Part,
    pub(super) off: usize,
    /// Largest number of bytes that are fetched.
    pub(super) max: usize,
}

impl Region {
    /// Offset of the text's bytes from R7.
    pub(super) fn bytes(&self) -> usize {
        self.off + LENGTH_SIZE
    }

    pub(super) fn size(&self) -> usize {
        (LENGTH_SIZE + self.max + 1).next_multiple_of(8)
    }
}

/// Texts in scratch memory.
#[derive(Clone, Debug, Default)]
pub(in crate::code::lower) struct Texts {
    pub(super) regions: Vec<Region>,
    next: usize,
    /// For each text, the length of the longest pattern compared with its start, plus one.
    heads: Vec<(Text, usize)>,
    /// Stack offset of the current task's name.
    pub(super) comm: Option<i16>,
    pub(in crate::code::lower) fetched: Fetched<usize>,
}

/// Key of the task's name in [`Texts::fetched`].
pub(super) const COMM: usize = usize::MAX;

impl Texts {
    /// Determines how much of each text is needed.
    pub(in crate::code::lower) fn for_filter(filter: &Filter) -> Self {
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

    /// Allocates `size` bytes for immediate use.
    pub(in crate::code::lower) fn transient(&mut self, size: usize) -> usize {
        let off = FILTER_AREA - size;
        let regions = &self.regions;
        self.fetched.keep(|other| *other == COMM || regions[*other].off + regions[*other].size() <= off);
        off
    }

    pub(super) fn head(&self, text: Text) -> usize {
        self.heads.iter().find(|(known, _)| *known == text).map_or(1, |(_, size)| *size)
    }

    /// The number of the text's region, which is created if there is none. Regions may overlap.
    pub(super) fn region(&mut self, text: Text, part: Part, max: usize) -> usize {
        if let Some(known) = self.regions.iter().position(|region| (region.text, region.part) == (text, part))
        {
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

    /// Marks a region as written, and forgets the regions that it overlaps.
    pub(super) fn wrote(&mut self, number: usize) {
        let region = self.regions[number];
        let regions = &self.regions;
        self.fetched.keep(|other| {
            *other == COMM || {
                let other = regions[*other];
                other.off >= region.off + region.size() || region.off >= other.off + other.size()
            }
        });
        self.fetched.add(number);
    }
}
