//! Names of events and groups: `[GROUP/]EVENT` (`traceprobe_parse_event_name()`, `kernel/trace/trace_probe.c`),
//! generated names, and `maxactive`.

use memchr::memchr;

use super::super::fetch::{ErrorKind, Stop, is_name};
use super::super::{Span, ctype, number};
use crate::event::dynamic::{NAME_MAX, latin1};

/// Maximum number of concurrent returns: `KRETPROBE_MAXACTIVE_MAX`, `RETHOOK_MAXACTIVE_MAX`.
const MAXACTIVE_MAX: u32 = 4096;

/// The parts of `[GROUP/][EVENT]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) group: Option<String>,
    pub(super) event: Option<String>,
}

/// Parses the names that start at `start` of a word.
pub(super) fn read(word: &[u8], start: usize) -> Result<Names, Stop> {
    let text = ctype::rest(word, start);
    let refused = |kind, at, end| Err(Stop::invalid(kind, Span::new(at, end)));
    let slash = memchr(b'/', text).or_else(|| memchr(b'.', text));
    let mut names = Names::default();
    let mut at = start;
    if let Some(slash) = slash {
        let (group, end) = (Span::new(0, slash).of(text), start + slash);
        if group.is_empty() {
            return refused(ErrorKind::NoGroupName, at, end);
        }
        if group.len() >= NAME_MAX {
            return refused(ErrorKind::GroupTooLong, at, end);
        }
        if !is_name(group, true) {
            return refused(ErrorKind::BadGroupName, at, end);
        }
        names.group = Some(latin1(group));
        at = end + 1;
    }
    let event = ctype::rest(word, at);
    if event.is_empty() {
        return if slash.is_some() { Ok(names) } else { refused(ErrorKind::NoEventName, at, at) };
    }
    if event.len() >= NAME_MAX {
        return refused(ErrorKind::EventTooLong, at, word.len());
    }
    if !is_name(event, false) {
        return refused(ErrorKind::BadEventName, at, word.len());
    }
    names.event = Some(latin1(event));
    Ok(names)
}

/// Parses the names after the colon of a definition's first word, if there is one.
pub(super) fn given(head: &[u8], colon: Option<usize>) -> Result<Names, Stop> {
    colon.map_or(Ok(Names::default()), |colon| read(head, colon + 1))
}

/// Adapts a generated name like the kernel: truncates it, and replaces characters that are valid only in symbols by
/// `_`, except the first character.
pub(super) fn generated(name: &str) -> String {
    let letters = name.chars().take(NAME_MAX - 1).enumerate();
    letters.map(|(at, c)| if at > 0 && matches!(c, ':' | '.' | '*') { '_' } else { c }).collect()
}

/// Parses the optional number after the letter of a definition: the maximum number of concurrent returns.
pub(super) fn maxactive(head: &[u8], colon: Option<usize>) -> Result<u32, Stop> {
    if !head.get(1).is_some_and(u8::is_ascii_digit) {
        return Ok(0);
    }
    let span = Span::new(1, colon.unwrap_or(head.len()));
    let refused = |kind| Err(Stop::invalid(kind, span));
    let number = number::unsigned(span.of(head)).and_then(|number| u32::try_from(number).ok());
    match number.filter(|number| *number != 0 && span.len() < NAME_MAX) {
        None => refused(ErrorKind::BadMaxactive),
        // The kernel reads numbers from 2^31 on as negative and accepts them.
        Some(number) if number > MAXACTIVE_MAX && i32::try_from(number).is_ok() => {
            refused(ErrorKind::MaxactiveTooBig)
        }
        Some(number) => Ok(number),
    }
}
