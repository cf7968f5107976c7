//! Parser of event probes, which attach to other events (`kernel/trace/trace_eprobe.c`).
//!
//! The syntax is `e[:[GROUP/][EVENT]] SYSTEM/EVENT [ARGS] [if FILTER]`.

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::Facts;
use super::super::fetch::{At, Checker, ErrorKind, Fault, Site, Stop};
use super::error::{Finding, Log, Refusal};
use super::probe::{Probe, Read, Rejected};
use super::words::Line;
use super::{arguments, expand, name, register};
use crate::event::dynamic::{Event, Target};

/// Parses a line.
pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Read, Rejected> {
    let head = line.word(0);
    if head.first() != Some(&b'e') || line.len() < 2 {
        return Err(Rejected::NotMine);
    }
    let log = Log::new("event_probe", line);
    let refuse = |word, stop: &Stop| Refusal::in_word(line, &log, word, stop);
    let names = match head.iter().position(|byte| *byte == b':') {
        Some(colon) => name::read(head, colon + 1).map_err(|stop| refuse(0, &stop))?,
        None => name::Names::default(),
    };
    let word = Span::new(0, line.word(1).len());
    let (system, on) = match name::read(line.word(1), 0) {
        Ok(name::Names { group: Some(system), event: Some(on) }) => (system, on),
        other => {
            // The kernel also logs this error after an error in the names.
            let mut stop = Stop::invalid(ErrorKind::NoEventInfo, word);
            if let Err(first) = other {
                stop.faults.splice(0..0, first.faults);
            }
            return Err(refuse(1, &stop).into());
        }
    };
    let filter = line.words().skip(2).position(|word| word == b"if").map(|at| at + 2);
    let last = filter.unwrap_or(line.len());
    arguments::count(last - 2, line, &log, facts)?;
    let Some(format) = facts.event(&system, &on) else {
        let fault = Fault::at(ErrorKind::BadAttachEvent, word);
        return Err(refuse(1, &Stop::new(Errno::NODEV, fault)).into());
    };
    let filter = match filter {
        None => None,
        Some(at) => {
            let words: Vec<&[u8]> = line.words().skip(at + 1).collect();
            if words.is_empty() {
                return Err(refuse(at + 1, &Stop::invalid(ErrorKind::NoEventFilter, Span::empty(0))).into());
            }
            let text = words.join(&b' ');
            if let Err(error) = facts.filter(&format, &text) {
                let end = line.text().len();
                let span = Span::new(line.spans().get(at + 1).map_or(end, |first| first.start), end);
                let finding =
                    Finding { kind: ErrorKind::BadFilter, word: at + 1, offset: 0, astray: false, span };
                return Err(Refusal::new(Errno::INVAL, line, &log).with(finding).with_filter(error).into());
            }
            Some(text)
        }
    };
    let mut checker = Checker::new(facts, Site { at: At::Event, function: None, event: Some(&format) });
    let mut args = Vec::new();
    for word in expand::plain(line, 2).iter().take(last - 2) {
        let one = arguments::each(std::slice::from_ref(word), line, &log, &mut checker);
        let mut one = one.map_err(|refusal| refusal.moved_to(word.origin))?;
        register::symbols(&mut one, facts).map_err(|errno| {
            let whole = Span::new(0, word.text.len());
            refuse(word.origin, &Stop::new(errno, Fault::at(ErrorKind::NoSymbol, whole)))
        })?;
        args.append(&mut one);
    }
    let event = Event {
        group: names.group.unwrap_or_else(|| "eprobes".to_owned()),
        name: names.event.unwrap_or_else(|| on.clone()),
        target: Target::Event { system, name: on, filter },
        maxactive: 0,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    Ok(Read {
        probe: Probe { event, at: At::Event, args, saved_args: Vec::new(), function: None, file: None },
        log,
    })
}
