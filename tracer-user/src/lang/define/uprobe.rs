//! Parser of uprobe events: instructions of user-space files (`kernel/trace/trace_uprobe.c`).
//!
//! The syntax is `p|r[:[GROUP/][EVENT]] PATH:OFFSET[%return][(REFERENCE)] [ARGS]`. `PATH:SYMBOL` is our own extension;
//! the event stores the offset of the symbol.

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature, FileQuery, FileRequest};
use super::super::fetch::{At, Checker, ErrorKind, Site, Stop};
use super::super::number;
use super::error::{Log, Refusal};
use super::probe::{Probe, Read};
use super::words::Line;
use super::{arguments, expand, name};
use crate::event::dynamic::{Event, NAME_MAX, Target, latin1};

/// The end of the path in a location.
struct Path {
    colon: usize,
    is_symbol: bool,
}

fn path(word: &[u8]) -> Option<Path> {
    let colon = word.iter().rposition(|byte| *byte == b':').filter(|_| word.contains(&b'/'))?;
    Some(Path { colon, is_symbol: !word.get(colon + 1).is_some_and(u8::is_ascii_digit) })
}

/// The symbol after the path of a location.
fn symbol(word: &[u8]) -> Option<String> {
    let Path { colon, is_symbol } = path(word)?;
    let place = place(word, colon + 1).ok().filter(|_| is_symbol)?;
    Some(latin1(place.digits.of(word)))
}

/// Returns the file that [`read`] will request for a line of this kind.
pub(super) fn names(line: &Line<'_>) -> Option<FileRequest> {
    if !matches!(line.word(0).first(), Some(b'p' | b'r')) || line.len() < 2 {
        return None;
    }
    let word = line.word(1);
    let what = symbol(word).map_or(FileQuery::Identity, FileQuery::Symbol);
    Some(FileRequest { path: Span::new(0, path(word)?.colon).of(word).to_vec(), what })
}

pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Option<Read>, Refusal> {
    let head = line.word(0);
    let letter = head.first();
    if !matches!(letter, Some(b'p' | b'r')) || line.len() < 2 {
        return Ok(None);
    }
    let log = Log::new("trace_uprobe", line);
    arguments::count(line.len() - 2, line, &log, facts)?;
    let word = line.word(1);
    let Some(Path { colon, is_symbol }) = path(word) else { return Ok(None) };
    if is_symbol && !facts.language().has(Feature::FileSymbols) {
        return Ok(None);
    }
    let refuse = |word, stop: Stop| Refusal::in_word(line, &log, word, &stop);
    let whole = Span::new(0, colon);
    let path = whole.of(word);
    let symbol = symbol(word);
    let file = facts
        .file(path, symbol.as_deref())
        .map_err(|errno| refuse(1, Stop::at(errno, ErrorKind::FileNotFound, whole)))?;
    if !file.regular {
        return Err(refuse(1, Stop::invalid(ErrorKind::NoRegularFile, whole)));
    }
    let place = place(word, colon + 1).map_err(|stop| refuse(1, stop))?;
    let exit = place.exit || letter == Some(&b'r');
    let offset = if is_symbol {
        file.symbol.ok_or(Errno::INVAL)
    } else {
        number::read_unsigned(place.digits.of(word), 0)
    };
    let bad_offset = |errno| refuse(1, Stop::at(errno, ErrorKind::BadFileProbeOffset, place.digits));
    let offset = offset.map_err(bad_offset)?;
    let colon = (head.get(1) == Some(&b':')).then_some(1);
    let names = name::given(head, colon).map_err(|stop| refuse(0, stop))?;
    let generated = || {
        let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let stem = base.split(|byte| matches!(byte, b'.' | b'-' | b'_')).next().unwrap_or_default();
        let name = format!("p_{}_0x{offset:x}", latin1(stem));
        name.chars().take(NAME_MAX - 1).collect()
    };
    let at = if exit { At::UserExit } else { At::User };
    let mut checker = Checker::new(facts, Site { at, function: None, event: None });
    let args = arguments::each(&expand::plain(line, 2), line, &log, &mut checker)?;
    let event = Event {
        group: names.group.unwrap_or_else(|| "uprobes".to_owned()),
        name: names.event.unwrap_or_else(generated),
        target: Target::File { path: path.to_vec(), offset, reference: place.reference, exit },
        maxactive: 0,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    let probe = Probe { event, at, args, saved_args: Vec::new(), function: None, file: Some(file) };
    Ok(Some(Read { probe, log }))
}

/// The location after the path.
struct Where {
    digits: Span,
    exit: bool,
    reference: u64,
}

fn place(word: &[u8], start: usize) -> Result<Where, Stop> {
    let find = |from: usize, to: usize, wanted: u8| {
        Span::new(from, to).of(word).iter().position(|byte| *byte == wanted).map(|at| from + at)
    };
    let mut end = word.len();
    let mut reference = 0;
    if let Some(open) = find(start, end, b'(') {
        let Some(close) = find(open, end, b')') else {
            return Err(Stop::invalid(ErrorKind::ReferenceOpen, Span::empty(end)));
        };
        if close + 1 < end {
            return Err(Stop::invalid(ErrorKind::BadReferenceSuffix, Span::new(close + 1, end)));
        }
        let digits = Span::new(open + 1, close);
        reference = number::read_unsigned(digits.of(word), 0)
            .map_err(|errno| Stop::at(errno, ErrorKind::BadReference, digits))?;
        end = open;
    }
    let percent = find(start, end, b'%');
    if let Some(percent) = percent {
        if Span::new(percent, end).of(word) != b"%return" {
            return Err(Stop::invalid(ErrorKind::BadAddressSuffix, Span::new(percent, end)));
        }
        end = percent;
    }
    Ok(Where { digits: Span::new(start, end), exit: percent.is_some(), reference })
}
