//! Parser of event probes, which attach to other events (`kernel/trace/trace_eprobe.c`).
//!
//! The syntax is `e[:[GROUP/][EVENT]] SYSTEM/EVENT [ARGS] [if FILTER]`.

use memchr::memchr;
use rustix::io::Errno;

use super::super::Span;
use super::super::facts::Facts;
use super::super::fetch::{At, Checker, ErrorKind, Site, Stop};
use super::error::{Finding, Log, Refusal};
use super::probe::{Probe, Read};
use super::words::Line;
use super::{arguments, name, register};
use crate::event::dynamic::{Event, Target};

pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Option<Read>, Refusal> {
    let head = line.word(0);
    if head.first() != Some(&b'e') || line.len() < 2 {
        return Ok(None);
    }
    let log = Log::new("event_probe", line);
    let refuse = |word, stop: &Stop| Refusal::in_word(line, &log, word, stop);
    let names = name::given(head, memchr(b':', head)).map_err(|stop| refuse(0, &stop))?;
    let word = Span::new(0, line.word(1).len());
    let (system, on) = match name::read(line.word(1), 0) {
        Ok(name::Names { group: Some(system), event: Some(on) }) => (system, on),
        other => {
            // The kernel also logs this error after an error in the names.
            let mut stop = Stop::invalid(ErrorKind::NoEventInfo, word);
            if let Err(first) = other {
                stop.faults.splice(0..0, first.faults);
            }
            return Err(refuse(1, &stop));
        }
    };
    let filter = line.words().skip(2).position(|word| word == b"if").map(|at| at + 2);
    let last = filter.unwrap_or(line.len());
    arguments::count(last - 2, line, &log, facts)?;
    let Some(format) = facts.event(&system, &on) else {
        return Err(refuse(1, &Stop::at(Errno::NODEV, ErrorKind::BadAttachEvent, word)));
    };
    let filter = match filter {
        None => None,
        Some(at) => {
            let words: Vec<&[u8]> = line.words().skip(at + 1).collect();
            if words.is_empty() {
                return Err(refuse(at + 1, &Stop::invalid(ErrorKind::NoEventFilter, Span::empty(0))));
            }
            let text = words.join(&b' ');
            if let Err(error) = facts.filter(&format, &text) {
                let end = line.text().len();
                let span = Span::new(line.spans().get(at + 1).map_or(end, |first| first.start), end);
                let finding =
                    Finding { kind: ErrorKind::BadFilter, word: at + 1, offset: 0, astray: false, span };
                return Err(Refusal::new(Errno::INVAL, line, &log).with(finding).with_filter(error));
            }
            Some(text)
        }
    };
    let mut checker = Checker::new(facts, Site { at: At::Event, function: None, event: Some(&format) });
    let mut args = Vec::new();
    for (at, word) in line.words().enumerate().take(last).skip(2) {
        let mut checked = checker.add(word).map_err(|stop| refuse(at, &stop))?;
        let resolved = register::symbols(std::slice::from_mut(&mut checked), facts);
        let stop = |errno| Stop::at(errno, ErrorKind::NoSymbol, Span::new(0, word.len()));
        resolved.map_err(|errno| refuse(at, &stop(errno)))?;
        args.push(checked);
    }
    let event = Event {
        group: names.group.unwrap_or_else(|| "eprobes".to_owned()),
        name: names.event.unwrap_or_else(|| on.clone()),
        target: Target::Event { system, name: on, filter },
        maxactive: 0,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    let probe = Probe { event, at: At::Event, args, saved_args: Vec::new(), function: None, file: None };
    Ok(Some(Read { probe, log }))
}
