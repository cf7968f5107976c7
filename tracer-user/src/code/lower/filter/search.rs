//! Searches in text of varying length: callbacks of `bpf_loop`.
//!
//! The verifier would walk a plain loop iteration by iteration and exhaust its budget after a few tests. It verifies a
//! `bpf_loop` callback (5.17) once for any count. Each segment that is searched for has a callback. A program may
//! have at most 256 functions; a filter with more segments shares callbacks, and a number in the [`Request`] selects
//! the segment.

use super::{
    compare::Bytes,
    glob::{Element, Segment, match_segment},
};
use crate::code::{
    asm::{Alu, Cond, Function, Helper, Label, Reg, Width},
    lower::emitter::Emitter,
};

/// Largest number of callbacks of one filter; the template and other generated functions need functions too.
const CALLBACKS_MAX: usize = 128;

/// Argument of the callback, on the stack of its caller: offsets of four `u64`.
struct Request;

impl Request {
    /// Address of the text.
    const TEXT: i16 = 0;
    /// Output: where the segment was found; [`NOT_FOUND`] before.
    const FOUND: i16 = 8;
    /// Position in the text at which the search starts.
    const START: i16 = 16;
    /// Number of the search in the callback.
    const INDEX: i16 = 24;
    const SIZE: usize = 32;
}

/// Marks a missing position.
const NOT_FOUND: i32 = -1;

/// The searches of one program.
#[derive(Clone, Debug, Default)]
pub(super) struct Searches {
    list: Vec<Search>,
    /// Number of searches per callback, as an earlier pass over the same filter found it.
    shared: usize,
    /// Stack offset of the [`Request`].
    request: Option<i16>,
}

/// A segment to find in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Search {
    segment: Segment,
    /// Largest length of the text.
    max: usize,
}

impl Searches {
    /// For a filter that makes this many searches.
    pub(super) fn expecting(count: usize) -> Self {
        Self { shared: count.div_ceil(CALLBACKS_MAX).max(1), ..Self::default() }
    }

    /// Number of different searches.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    fn number(&mut self, search: Search) -> usize {
        self.list.iter().position(|known| *known == search).unwrap_or_else(|| {
            self.list.push(search);
            self.list.len() - 1
        })
    }

    /// Searches the text at R7 + `off` for the first match of the segment, from `start` up to `tail` bytes before the
    /// text's end. R9 is the text's length, at most `max`. Jumps to `miss` if there is no match.
    pub(super) fn search(
        &mut self,
        emit: &mut Emitter,
        (off, max): (usize, usize),
        segment: &Segment,
        start: Start,
        tail: usize,
        miss: Label,
    ) {
        let number = self.number(Search { segment: segment.clone(), max });
        let request = *self.request.get_or_insert_with(|| emit.alloc(Request::SIZE));
        emit.note(format!("search for {}", shown(segment)));
        let taken = (segment.len() + tail) as i32;
        match start {
            Start::At(position) => {
                emit.store(Width::D, Reg::R10, request + Request::START, position as i32);
                emit.mov(Reg::R1, Reg::R9);
                emit.alu(Alu::Add, Reg::R1, 1 - taken - position as i32);
            }
            Start::AfterFound(bytes) => {
                emit.load(Width::D, Reg::R0, Reg::R10, request + Request::FOUND);
                emit.alu(Alu::Add, Reg::R0, bytes as i32);
                emit.store(Width::D, Reg::R10, request + Request::START, Reg::R0);
                emit.mov(Reg::R1, Reg::R9);
                emit.alu(Alu::Sub, Reg::R1, Reg::R0);
                emit.alu(Alu::Add, Reg::R1, 1 - taken);
            }
        }
        // Number of positions to try; not positive if the text is too short.
        emit.jump_if(Cond::SLe, Reg::R1, 0, miss);
        emit.address(Reg::R0, Reg::R7, off as i32);
        emit.store(Width::D, Reg::R10, request + Request::TEXT, Reg::R0);
        emit.store(Width::D, Reg::R10, request + Request::FOUND, NOT_FOUND);
        let shared = self.shared;
        if shared > 1 {
            emit.store(Width::D, Reg::R10, request + Request::INDEX, (number % shared) as i32);
        }
        emit.function(Reg::R2, callback_name(number / shared));
        emit.address(Reg::R3, Reg::R10, i32::from(request));
        emit.mov(Reg::R4, 0);
        emit.call(Helper::Loop);
        emit.load(Width::D, Reg::R0, Reg::R10, request + Request::FOUND);
        emit.jump_if(Cond::Eq, Reg::R0, NOT_FOUND, miss);
    }

    /// The callbacks.
    pub(super) fn finish(self) -> Vec<Function> {
        self.list
            .chunks(self.shared.max(1))
            .enumerate()
            .map(|(number, searches)| callback(number, searches))
            .collect()
    }
}

fn callback_name(number: usize) -> String {
    format!("tracer_search_{number}")
}

/// `long callback(u64 index, Request *request)`: 1 ends the loop.
fn callback(number: usize, searches: &[Search]) -> Function {
    let mut emit = Emitter::with_calls();
    let (on, end) = (emit.label(), emit.label());
    emit.load(Width::D, Reg::R3, Reg::R2, Request::TEXT);
    emit.load(Width::D, Reg::R4, Reg::R2, Request::START);
    emit.alu(Alu::Add, Reg::R4, Reg::R1);
    if searches.len() > 1 {
        emit.load(Width::D, Reg::R0, Reg::R2, Request::INDEX);
    }
    let found = emit.label();
    for (which, Search { segment, max }) in searches.iter().enumerate() {
        let next = emit.label();
        if which + 1 < searches.len() {
            emit.jump_if(Cond::Ne, Reg::R0, which as i32, next);
        }
        emit.note(format!("look for {}", shown(segment)));
        // R4 never exceeds this; the check is for the verifier.
        emit.jump_if(Cond::Gt, Reg::R4, (max - segment.len()) as i32, end);
        emit.alu(Alu::Add, Reg::R3, Reg::R4);
        let bytes = Bytes { base: Reg::R3, off: 0, available: segment.len(), aligned: false };
        match_segment(&mut emit, bytes, segment, on);
        emit.jump(found);
        emit.bind(next);
    }
    emit.bind(found);
    emit.store(Width::D, Reg::R2, Request::FOUND, Reg::R4);
    emit.bind(end);
    emit.mov(Reg::R0, 1);
    emit.exit();
    emit.bind(on);
    emit.mov(Reg::R0, 0);
    emit.exit();
    emit.finish(&callback_name(number))
}

/// A segment as a pattern, for notes.
pub(super) fn shown(segment: &[Element]) -> String {
    let mut text = String::from("\"");
    for element in segment {
        match element {
            Element::Any => text.push('?'),
            Element::Byte(byte) => text.extend(byte.escape_ascii().map(char::from)),
            Element::Class(ranges, inverted) => {
                text.push_str(if *inverted { "[!" } else { "[" });
                for (low, high) in ranges {
                    text.extend((*low as u8).escape_ascii().map(char::from));
                    if high > low {
                        text.push('-');
                        text.extend((*high as u8).escape_ascii().map(char::from));
                    }
                }
                text.push(']');
            }
        }
    }
    text.push('"');
    text
}

/// Where a search starts in the text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// At a fixed position.
    At(usize),
    /// This many bytes after the place that the last search found.
    AfterFound(usize),
}
