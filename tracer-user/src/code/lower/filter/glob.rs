//! Globs split into segments between stars; each element of a segment matches one byte.
//!
//! The pattern language is that of `lib/glob.c`, including malformed patterns: an unclosed `[` is a literal `[`, and a
//! `\` at the end matches only the end of the text.

use super::compare::{Bytes, compare, ranges, within};
use crate::code::{
    asm::{Label, Reg, Width},
    lower::emitter::Emitter,
};

/// An element that matches one byte, which is never NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Element {
    Any,
    Byte(u8),
    /// Ranges of bytes, both ends included, and whether the class is inverted.
    Class(Vec<(u32, u32)>, bool),
}

/// Consecutive elements.
pub(super) type Segment = Vec<Element>;

/// A glob's segments, separated by stars. An end that is not anchored also has a star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    /// The segment at the text's start; empty if the glob starts with a star.
    pub(super) first: Segment,
    /// The segments in between, and the one at the text's end. None if the glob has no star; then `first` is the whole
    /// glob.
    pub(super) rest: Option<(Vec<Segment>, Segment)>,
}

impl Glob {
    pub(super) fn parse(pattern: &[u8]) -> Self {
        let mut segments = vec![Segment::new()];
        let mut at = 0;
        while at < pattern.len() {
            let element = match pattern[at] {
                b'*' => {
                    segments.push(Segment::new());
                    at += 1;
                    continue;
                }
                b'?' => Element::Any,
                b'[' => match class(pattern, at + 1) {
                    Some((element, end)) => {
                        at = end - 1;
                        element
                    }
                    None => Element::Byte(b'['),
                },
                b'\\' => {
                    at += 1;
                    match pattern.get(at) {
                        Some(byte) => Element::Byte(*byte),
                        None => break,
                    }
                }
                byte => Element::Byte(byte),
            };
            if let Some(segment) = segments.last_mut() {
                segment.push(element);
            }
            at += 1;
        }
        let first = segments.remove(0);
        let rest = segments.pop().map(|last| {
            segments.retain(|segment| !segment.is_empty());
            (segments, last)
        });
        Self { first, rest }
    }

    /// Whether it matches the empty text: it is empty or consists of stars only.
    pub(super) fn takes_nothing(&self) -> bool {
        let rest = self.rest.as_ref();
        self.first.is_empty() && rest.is_none_or(|(middle, last)| middle.is_empty() && last.is_empty())
    }
}

/// Reads the class with its first byte at `start`, and returns the position after it; None if the class is
/// unclosed.
fn class(pattern: &[u8], start: usize) -> Option<(Element, usize)> {
    let inverted = pattern.get(start) == Some(&b'!');
    let mut at = start + usize::from(inverted);
    let mut members = [false; 256];
    let mut empty = true;
    loop {
        let low = *pattern.get(at)?;
        at += 1;
        if low == b']' && !empty {
            break;
        }
        empty = false;
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && pattern.get(at + 1) != Some(&b']') {
            high = *pattern.get(at + 1)?;
            at += 2;
        }
        for byte in low..=high {
            members[usize::from(byte)] = true;
        }
    }
    let of = |wanted| ranges((1..256).filter(|byte| members[*byte as usize] == wanted));
    let (inside, outside) = (of(true), of(false));
    // The code tests the shorter list.
    Some(if outside.len() < inside.len() {
        (Element::Class(outside, !inverted), at)
    } else {
        (Element::Class(inside, inverted), at)
    })
}

/// Jumps to `miss` unless the segment matches the bytes; falls through if it matches.
pub(super) fn match_segment(emit: &mut Emitter, bytes: Bytes, segment: &[Element], miss: Label) {
    let mut at = 0;
    while at < segment.len() {
        match &segment[at] {
            Element::Any => at += 1,
            Element::Byte(_) => {
                let run: Vec<u8> = segment[at..]
                    .iter()
                    .map_while(|element| if let Element::Byte(byte) = element { Some(*byte) } else { None })
                    .collect();
                compare(emit, bytes.skip(at), &run, miss);
                at += run.len();
            }
            Element::Class(ranges, inverted) => {
                let at_byte = bytes.skip(at);
                emit.load(Width::B, Reg::R0, at_byte.base, at_byte.off as i16);
                let matched = emit.label();
                if *inverted {
                    if !ranges.is_empty() {
                        within(emit, ranges, miss, matched);
                        emit.jump_past(miss);
                    }
                } else {
                    within(emit, ranges, matched, miss);
                }
                emit.bind(matched);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Segment {
        text.bytes().map(Element::Byte).collect()
    }

    #[test]
    fn stars_cut_segments() {
        assert_eq!(Glob::parse(b"ab"), Glob { first: bytes("ab"), rest: None });
        assert_eq!(
            Glob::parse(b"a**b*c"),
            Glob { first: bytes("a"), rest: Some((vec![bytes("b")], bytes("c"))) }
        );
        assert_eq!(Glob::parse(b"*"), Glob { first: bytes(""), rest: Some((vec![], bytes(""))) });
        assert_eq!(Glob::parse(b"a\\"), Glob { first: bytes("a"), rest: None });
        assert_eq!(Glob::parse(b"\\*"), Glob { first: bytes("*"), rest: None });
        assert_eq!(Glob::parse(b"[a"), Glob { first: bytes("[a"), rest: None });
    }

    #[test]
    fn classes_keep_the_shorter_list() {
        let class = |pattern: &[u8]| Glob::parse(pattern).first;
        assert_eq!(class(b"[a-c]"), [Element::Class(vec![(97, 99)], false)]);
        assert_eq!(class(b"[!a-c]"), [Element::Class(vec![(97, 99)], true)]);
        assert_eq!(class(b"[]x]"), [Element::Class(vec![(93, 93), (120, 120)], false)]);
        assert_eq!(class(b"[\x01-\x60\x62-\xff]"), [Element::Class(vec![(97, 97)], true)]);
    }
}
