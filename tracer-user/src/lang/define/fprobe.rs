//! Parser of fprobe events: function entries, returns and tracepoints (`kernel/trace/trace_fprobe.c`).
//!
//! The syntax is `f[MAXACTIVE][:[GROUP/][EVENT]] SYMBOL[%return] [ARGS]` and `t[:[GROUP/][EVENT]] TRACEPOINT [ARGS]`.

use rustix::io::Errno;

use super::super::Span;
use super::super::ctype::{is_alnum, split_run};
use super::super::facts::Facts;
use super::super::fetch::{At, Checker, ErrorKind, Fault, Site, Stop};
use super::error::{Log, Refusal};
use super::probe::{Probe, Read, Rejected};
use super::words::Line;
use super::{arguments, name};
use crate::event::dynamic::{Event, Target, latin1};

const RETVAL: &[u8] = b"$retval";

/// Parses a line.
pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Read, Rejected> {
    let head = line.word(0);
    let tracepoint = head.first() == Some(&b't');
    if !tracepoint && head.first() != Some(&b'f') || line.len() < 2 {
        return Err(Rejected::NotMine);
    }
    let mut log = Log::new("trace_fprobe", line);
    let refuse = |word, stop: Stop| Rejected::from(Refusal::in_word(line, &log, word, &stop));
    let colon = head.iter().position(|byte| *byte == b':');
    let maxactive = name::maxactive(head, colon).map_err(|stop| refuse(0, stop))?;
    let (symbol, exit) = symbol(line, tracepoint).map_err(|(word, stop)| refuse(word, stop))?;
    if !exit && maxactive != 0 {
        let digits = Span::new(1, colon.unwrap_or(head.len()));
        return Err(refuse(0, Stop::invalid(ErrorKind::MaxactiveType, digits)));
    }
    let names = match colon {
        Some(colon) => name::read(head, colon + 1).map_err(|stop| refuse(0, stop))?,
        None => name::Names::default(),
    };
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
    let site = Site { at, function: Some(function.clone()), event: None };
    let mut checker = Checker::new(facts, site);
    let args = arguments::expanded(line, &mut log, &mut checker, facts)?;
    let event = Event {
        group: names.group.unwrap_or_else(|| group.to_owned()),
        name: names.event.unwrap_or_else(|| name::generated(&generated)),
        target,
        maxactive,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    let saved_args = checker.saved_args().to_vec();
    Ok(Read { probe: Probe { event, at, args, saved_args, function: Some(function), file: None }, log })
}

/// Returns the symbol, and whether the probe is at a return: because of `%return`, or because an argument uses
/// `$retval`.
fn symbol<'a>(line: &Line<'a>, tracepoint: bool) -> Result<(&'a [u8], bool), (usize, Stop)> {
    let word = line.word(1);
    let (symbol, suffix) = split_run(word, |byte| byte != b'%');
    match suffix {
        b"" => {}
        b"%return" if !tracepoint => return Ok((symbol, true)),
        _ => {
            let stop = Stop::invalid(ErrorKind::BadAddressSuffix, Span::new(symbol.len(), word.len()));
            return Err((1, stop));
        }
    }
    let bad = symbol.iter().position(|byte| !is_alnum(*byte) && *byte != b'_');
    if let Some(bad) = bad.filter(|_| tracepoint) {
        return Err((1, Stop::invalid(ErrorKind::BadTracepointName, Span::new(bad, bad + 1))));
    }
    for (at, word) in line.words().enumerate().skip(2) {
        let Some(start) = word.windows(RETVAL.len()).position(|part| part == RETVAL) else { continue };
        let end = start + RETVAL.len();
        if word.get(end).is_some_and(|byte| is_alnum(*byte) || *byte == b'_') {
            continue;
        }
        if tracepoint {
            let fault = Fault::at(ErrorKind::RetvalOnProbe, Span::new(start, end));
            return Err((at, Stop::new(Errno::INVAL, fault)));
        }
        return Ok((symbol, true));
    }
    Ok((symbol, false))
}
