//! Splits a histogram command into parts: `ATTRIBUTE[:ATTRIBUTE]... [if FILTER]`, each attribute still a text
//! (`event_hist_trigger_parse()` to `parse_hist_trigger_attrs()`).
//!
//! This module does not use the event. All places are offsets in [`Command::text`], which has the length of the
//! original text. There `sym-offset` is spelled `symXoffset`, so that its hyphen is not an operator. The kernel
//! searches for invalid texts in that spelling.

use rustix::io::Errno;

use super::super::{Span, number};
use super::dialect::{Dialect, Feature};
use super::error::{ErrorKind, Log};
use super::split::{Pieces, find, strip};

/// Number of table entries as a power of two: minimum, maximum and default: `TRACING_MAP_BITS_*`.
const BITS_MIN: u32 = 7;
const BITS_MAX: u32 = 17;
const BITS_DEFAULT: u32 = 11;

/// Maximum number of variables of a histogram: `TRACING_MAP_VARS_MAX`.
pub(super) const VARS_MAX: usize = 16;

/// Maximum number of actions of a histogram: `HIST_ACTIONS_MAX`.
const ACTIONS_MAX: usize = 8;

/// The parts of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "words that are there or not")]
pub struct Command {
    /// The original text with `sym-offset` respelled.
    pub text: Vec<u8>,
    /// Text after `keys=`.
    pub keys: Span,
    /// Text after `vals=`.
    pub values: Option<Span>,
    /// Text after `sort=`.
    pub sort: Option<Span>,
    /// `name=NAME` as a whole.
    pub name: Option<Span>,
    /// Text after `clock=`.
    pub clock: Option<Span>,
    /// The table has 2 to the power of `bits` entries.
    pub bits: u32,
    /// `pause`
    pub pause: bool,
    /// `cont`, `continue`
    pub resume: bool,
    /// `clear`
    pub clear: bool,
    /// `nohitcount`
    pub no_hitcount: bool,
    /// `NAME=EXPR[,NAME=EXPR]...`: every other part with `=`.
    pub assignments: Vec<Span>,
    /// `onmatch(...`, `onmax(...`, `onchange(...`
    pub actions: Vec<Span>,
    /// `if FILTER`
    pub filter: Option<Span>,
}

impl Command {
    /// Splits `given`, the text after `hist:`, which is `None` if no text follows `hist`.
    pub(super) fn read(given: Option<&[u8]>, dialect: Dialect, log: &mut Log) -> Result<Self, Errno> {
        let given = given.ok_or(Errno::INVAL)?;
        let mut command = Self { text: given.to_vec(), bits: BITS_DEFAULT, ..Self::default() };
        let mut attributes = Span::new(0, given.len());
        if let Some(at) = filter_start(given)? {
            command.filter = Some(strip(given, Span::new(at, given.len())));
            attributes = strip(given, Span::new(0, at - 1));
        }
        while let Some(at) = find(&command.text, attributes, b".sym-offset") {
            let Some(sign) = command.text.get_mut(at + 4) else { break };
            *sign = b'X';
        }
        command.attributes(attributes, dialect, log)?;
        Ok(command)
    }

    /// Text of a part.
    pub fn part(&self, span: Span) -> &[u8] {
        span.of(&self.text)
    }

    fn attributes(&mut self, whole: Span, dialect: Dialect, log: &mut Log) -> Result<(), Errno> {
        let text = self.text.clone();
        let mut keys = None;
        let mut pieces = Pieces::of(&text, whole);
        while let Some(piece) = pieces.up_to(b':') {
            let bytes = piece.of(&text);
            if let Some(equals) = bytes.iter().position(|byte| *byte == b'=') {
                if equals + 1 == bytes.len() {
                    return Err(log.add(ErrorKind::EmptyAssignment, bytes, Some(piece)));
                }
                self.assignment(&text, piece, &mut keys, log)?;
                continue;
            }
            match bytes {
                b"nohitcount" | b"NOHC" if dialect.has(Feature::NoHitcount) => self.no_hitcount = true,
                b"pause" => self.pause = true,
                b"cont" | b"continue" => self.resume = true,
                b"clear" => self.clear = true,
                _ => self.action(&text, piece)?,
            }
        }
        self.keys = keys.ok_or(Errno::INVAL)?;
        Ok(())
    }

    fn assignment(
        &mut self,
        text: &[u8],
        piece: Span,
        keys: &mut Option<Span>,
        log: &mut Log,
    ) -> Result<(), Errno> {
        let bytes = piece.of(text);
        let behind = |prefixes: &[&str]| {
            let prefix = prefixes.iter().find(|prefix| bytes.starts_with(prefix.as_bytes()))?;
            Some(Span::new(piece.start + prefix.len(), piece.end))
        };
        if let Some(value) = behind(&["key=", "keys="]) {
            *keys = Some(value);
        } else if let Some(value) = behind(&["val=", "vals=", "values="]) {
            self.values = Some(value);
        } else if let Some(value) = behind(&["sort="]) {
            self.sort = Some(value);
        } else if behind(&["name="]).is_some() {
            self.name = Some(piece);
        } else if let Some(value) = behind(&["clock="]) {
            self.clock = Some(strip(text, value));
        } else if let Some(value) = behind(&["size="]) {
            self.bits = bits(value.of(text))?;
        } else if self.assignments.len() == VARS_MAX {
            return Err(log.add(ErrorKind::TooManyVars, bytes, Some(piece)));
        } else {
            self.assignments.push(piece);
        }
        Ok(())
    }

    fn action(&mut self, text: &[u8], piece: Span) -> Result<(), Errno> {
        let handlers: [&[u8]; 3] = [b"onmatch(", b"onmax(", b"onchange("];
        let is_action = handlers.iter().any(|handler| piece.of(text).starts_with(handler));
        if self.actions.len() >= ACTIONS_MAX || !is_action {
            return Err(Errno::INVAL);
        }
        self.actions.push(piece);
        Ok(())
    }
}

/// Start of `if FILTER`: the first `if` that is a word and is followed by text.
fn filter_start(text: &[u8]) -> Result<Option<usize>, Errno> {
    let is_blank = |at: usize| text.get(at).is_some_and(|byte| matches!(byte, b' ' | b'\t'));
    let mut from = 0;
    while let Some(at) = find(text, Span::new(from, text.len()), b"if") {
        if at == 0 {
            return Err(Errno::INVAL);
        }
        from = at + 1;
        if !is_blank(at - 1) {
            continue;
        }
        if at + 3 >= text.len() {
            return Err(Errno::INVAL);
        }
        if is_blank(at + 2) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// `parse_map_size()`
fn bits(text: &[u8]) -> Result<u32, Errno> {
    let size = number::read_unsigned(text, 0)?;
    let bits = size.checked_next_power_of_two().filter(|_| size > 0).ok_or(Errno::INVAL)?.ilog2();
    if (BITS_MIN..=BITS_MAX).contains(&bits) { Ok(bits) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Command, Errno> {
        let mut log = Log::new("s", "e", text.as_bytes());
        Command::read(Some(text.as_bytes()), Dialect::newest(), &mut log)
    }

    #[test]
    fn parts_of_a_command_are_recognised() {
        let text =
            "keys=a.sym-offset,b:vals=c:ts=common_timestamp:sort=a:size=100:onmax($ts).save(b) if a == 1 ";
        let command = read(text).unwrap();
        assert_eq!(command.part(command.keys), b"a.symXoffset,b");
        assert_eq!(command.values.map(|span| command.part(span)), Some(&b"c"[..]));
        assert_eq!(command.filter.map(|span| command.part(span)), Some(&b"if a == 1"[..]));
        assert_eq!((command.bits, command.assignments.len(), command.actions.len()), (7, 1, 1));
    }

    #[test]
    fn refused() {
        let sizes = ["keys=a:size=64", "keys=a:size=131073", "keys=a:size=0"];
        let others =
            ["", "vals=a", "keys=a:", "keys=a:x", "if a", "keys=a if", "keys=a if ", "keys=", "keys=a:x="];
        for text in sizes.into_iter().chain(others) {
            assert_eq!(read(text), Err(Errno::INVAL), "{text}");
        }
        assert_eq!(read("keys=a:size=99999999999999999999"), Err(Errno::RANGE));
        assert_eq!(read("keys=a:size=65537").unwrap().bits, 17);
        assert_eq!(read("keys=life if x").unwrap().filter, Some(Span::new(10, 14)));
    }
}
