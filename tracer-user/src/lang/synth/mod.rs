//! Parser of synthetic event definitions (`kernel/trace/trace_events_synth.c`).
//!
//! It reads lines of `synthetic_events` (`NAME TYPE FIELD[; TYPE FIELD]...`; `!NAME` deletes), and lines of
//! `dynamic_events` that start with `s:`. It follows the order of the kernel's checks and creates an [`Event`]. [`Set`]
//! decides whether an event can be deleted.

mod error;
mod set;

use rustix::io::Errno;

pub use error::{ErrorKind, Refusal};
pub use set::{Change, Defined, Set};

use super::fetch::is_name;
use super::number;
use super::{Span, ctype};
use crate::event::dynamic::latin1;
use crate::event::synthetic::{Event, FIELDS_MAX, Member, SYSTEM};

/// The file that receives a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `synthetic_events`
    Synthetic,
    /// `dynamic_events`
    Dynamic,
}

/// The request of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// An empty line.
    Nothing,
    /// Deletes the event of this name.
    Delete(Vec<u8>),
    /// Defines this event.
    Define(Event),
}

/// Parses a line; `has` reports whether a synthetic event exists.
///
/// # Errors
/// If the kernel would reject the line.
pub fn read(line: &[u8], file: File, has: &dyn Fn(&str) -> bool) -> Result<Request, Refusal> {
    let line = ctype::trim_start(line);
    if line.is_empty() {
        return Ok(Request::Nothing);
    }
    match file {
        File::Synthetic => synthetic(line, has),
        File::Dynamic => dynamic(line, has),
    }
}

/// `create_or_delete_synth_event()`
fn synthetic(line: &[u8], has: &dyn Fn(&str) -> bool) -> Result<Request, Refusal> {
    let blank = line.iter().position(|byte| matches!(byte, b' ' | b'\t'));
    if let [b'!', name @ ..] = line {
        let name = blank.and_then(|blank| name.get(..blank - 1)).unwrap_or(name);
        return Ok(Request::Delete(name.to_vec()));
    }
    match blank {
        Some(blank) if is_command(line) => define(line, Span::new(0, blank), has),
        _ => Err(Refusal::whole(line, ErrorKind::InvalidCommand)),
    }
}

/// `create_synth_event()`
fn dynamic(line: &[u8], has: &dyn Fn(&str) -> bool) -> Result<Request, Refusal> {
    let Some(mut rest) = line.strip_prefix(b"s:") else {
        return Err(Refusal::unlogged(line, Errno::INVAL));
    };
    let Some(blank) = line.iter().position(|byte| matches!(byte, b' ' | b'\t')) else {
        return Err(Refusal::whole(line, ErrorKind::InvalidCommand));
    };
    if rest.contains(&b'/') {
        let behind = rest.strip_prefix(format!("{SYSTEM}/").as_bytes());
        rest = behind.ok_or_else(|| Refusal::whole(line, ErrorKind::InvalidDynCommand))?;
    }
    if !is_command(rest) {
        return Err(Refusal::whole(line, ErrorKind::InvalidCommand));
    }
    define(line, Span::new(line.len() - rest.len(), blank), has)
}

/// Whether the text before the first semicolon has a name and the type and name of a field (`check_command()`).
fn is_command(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b';').next().unwrap_or_default();
    first.first() == Some(&b'!') || ctype::words(first).count() >= 3
}

/// `__create_synth_event()`
fn define(line: &[u8], name: Span, has: &dyn Fn(&str) -> bool) -> Result<Request, Refusal> {
    let text = name.of(line);
    if text.is_empty() {
        return Err(Refusal::whole(line, ErrorKind::InvalidCommand));
    }
    if !is_name(text, false) {
        return Err(Refusal::new(line, ErrorKind::BadName, name));
    }
    if has(&latin1(text)) {
        return Err(Refusal::new(line, ErrorKind::EventExists, name));
    }
    let mut fields = Vec::new();
    let mut start = ctype::skip_space(line, name.end);
    for piece in ctype::rest(line, start).split(|byte| *byte == b';') {
        let words = ctype::words(piece).map(|word| Span::new(start + word.start, start + word.end));
        let words: Vec<Span> = words.collect();
        start += piece.len() + 1;
        let mut rest = &words[..];
        while !rest.is_empty() {
            let (field, taken) = field(line, rest)?;
            if fields.len() == FIELDS_MAX {
                return Err(Refusal::whole(line, ErrorKind::TooManyFields));
            }
            fields.push(field);
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    if fields.is_empty() {
        return Err(Refusal::whole(line, ErrorKind::InvalidCommand));
    }
    Ok(Request::Define(Event { name: latin1(text), fields }))
}

/// Parses a field. Returns it and its number of words (`parse_synth_field()`).
fn field(line: &[u8], words: &[Span]) -> Result<(Member, usize), Refusal> {
    let (prefix, ty, name, taken) = match words {
        [first, second, third, ..] if first.of(line) == b"unsigned" => {
            ("unsigned ", *second, Some(*third), 3)
        }
        [first, ..] if first.of(line) == b"unsigned" => {
            return Err(Refusal::new(line, ErrorKind::IncompleteType, *first));
        }
        [first, rest @ ..] => ("", *first, rest.first().copied(), 2),
        [] => return Err(Refusal::whole(line, ErrorKind::InvalidCommand)),
    };
    let Some(name) = name else { return Err(Refusal::new(line, ErrorKind::InvalidField, ty)) };
    let text = name.of(line);
    let bracket = text.iter().position(|byte| *byte == b'[');
    let (bare, array) = text.split_at(bracket.unwrap_or(text.len()));
    if !is_name(bare, false) {
        return Err(Refusal::new(line, ErrorKind::BadName, name));
    }
    let whole = format!("{prefix}{}{}", latin1(ty.of(line)), latin1(array));
    let length = |digits: &str| number::unsigned(digits.as_bytes()).and_then(|n| u32::try_from(n).ok());
    match Member::new(latin1(bare), whole.clone(), length) {
        Some(member) => Ok((member, taken)),
        // Only `char` types can have an array length. After another type, brackets make the type invalid.
        None if bracket.is_some() && whole.contains("char[") => {
            Err(Refusal::new(line, ErrorKind::InvalidArraySpec, name))
        }
        None => Err(Refusal::new(line, ErrorKind::InvalidType, ty)),
    }
}
