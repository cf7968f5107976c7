//! Parser of fprobe events: function entries, returns and tracepoints (`kernel/trace/trace_fprobe.c`).
//!
//! The syntax is `f[MAXACTIVE][:[GROUP/][EVENT]] SYMBOL[%return] [ARGS]` and `t[:[GROUP/][EVENT]] TRACEPOINT [ARGS]`.

use memchr::{memchr, memmem};

use super::super::Span;
use super::super::ctype::{is_alnum, split_run};
use super::super::facts::{Facts, Feature};
use super::super::fetch::{At, Checker, ErrorKind, Site, Stop};
use super::error::{Log, Refusal};
use super::probe::{Probe, Read};
use super::words::Line;
use super::{arguments, name};
use crate::event::dynamic::{Event, Target, latin1};

const RETVAL: &[u8] = b"$retval";

pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Option<Read>, Refusal> {
    let head = line.word(0);
    let tracepoint = head.first() == Some(&b't');
    if !tracepoint && head.first() != Some(&b'f') || line.len() < 2 {
        return Ok(None);
    }
    let mut log = Log::new("trace_fprobe", line);
    let refuse = |word, stop: Stop| Refusal::in_word(line, &log, word, &stop);
    let colon = memchr(b':', head);
    let latest = facts.language().has(Feature::RegistrationErrors);
    if latest && head.len() > 1 && colon != Some(1) {
        // There is no number any more.
        let rest = Span::new(1, colon.unwrap_or(head.len()));
        return Err(refuse(0, Stop::invalid(ErrorKind::BadMaxactive, rest)));
    }
    let maxactive = name::maxactive(head, colon).map_err(|stop| refuse(0, stop))?;
    let (symbol, exit) = symbol(line, tracepoint).map_err(|(word, stop)| refuse(word, stop))?;
    if !exit && maxactive != 0 {
        let digits = Span::new(1, colon.unwrap_or(head.len()));
        return Err(refuse(0, Stop::invalid(ErrorKind::MaxactiveType, digits)));
    }
    let names = name::given(head, colon).map_err(|stop| refuse(0, stop))?;
    let symbol = latin1(symbol);
    let (at, function, target, group, generated) = if tracepoint {
        // A module may add a missing tracepoint later. Until then the kernel treats the name as a function.
        let function = facts.tracepoint(&symbol).unwrap_or_else(|| symbol.clone());
        let digit = if symbol.starts_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
        let generated = format!("{digit}{symbol}");
        (At::Tracepoint, function, Target::Tracepoint { name: symbol }, "tracepoints", generated)
    } else {
        let at = if exit { At::FprobeExit } else { At::FprobeEntry };
        let generated = format!("{symbol}__{}", if exit { "exit" } else { "entry" });
        (at, symbol.clone(), Target::Function { symbol, exit }, "fprobes", generated)
    };
    let function = Some(function);
    let mut checker = Checker::new(facts, Site { at, function: function.clone(), event: None });
    let args = arguments::expanded(line, &mut log, &mut checker, facts)?;
    let event = Event {
        group: names.group.unwrap_or_else(|| group.to_owned()),
        name: names.event.unwrap_or_else(|| name::generated(&generated)),
        target,
        maxactive,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    let saved_args = checker.saved_args().to_vec();
    Ok(Some(Read { probe: Probe { event, at, args, saved_args, function, file: None }, log }))
}

/// Returns the symbol, and whether the probe is at a return: because of `%return`, or because an argument uses
/// `$retval`.
fn symbol<'a>(line: &Line<'a>, tracepoint: bool) -> Result<(&'a [u8], bool), (usize, Stop)> {
    let word = line.word(1);
    let refused = |word, kind, span| Err((word, Stop::invalid(kind, span)));
    let (symbol, suffix) = split_run(word, |byte| byte != b'%');
    match suffix {
        b"" => {}
        b"%return" if !tracepoint => return Ok((symbol, true)),
        _ => return refused(1, ErrorKind::BadAddressSuffix, Span::new(symbol.len(), word.len())),
    }
    let is_letter = |byte: &u8| is_alnum(*byte) || *byte == b'_';
    let bad = symbol.iter().position(|byte| !is_letter(byte));
    if let Some(bad) = bad.filter(|_| tracepoint) {
        return refused(1, ErrorKind::BadTracepointName, Span::new(bad, bad + 1));
    }
    for (at, word) in line.words().enumerate().skip(2) {
        let Some(start) = memmem::find(word, RETVAL) else { continue };
        let end = start + RETVAL.len();
        match word.get(end) {
            Some(byte) if is_letter(byte) => {}
            _ if tracepoint => return refused(at, ErrorKind::RetvalOnProbe, Span::new(start, end)),
            _ => return Ok((symbol, true)),
        }
    }
    Ok((symbol, false))
}
