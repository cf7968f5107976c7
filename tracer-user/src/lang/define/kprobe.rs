//! Parser of kprobe events: instructions of the kernel and returns of its functions (`kernel/trace/trace_kprobe.c`).
//!
//! The syntax is `p[:[GROUP/][EVENT]] [MODULE:]SYMBOL[+OFFSET][%return]|ADDRESS [ARGS]` and `r[MAXACTIVE][:...] ...`.

use memchr::memchr;
use rustix::io::Errno;

use super::super::Span;
use super::super::ctype::split_run;
use super::super::facts::{Facts, Feature, Spot};
use super::super::fetch::{At, Checker, ErrorKind, Site, Stop};
use super::super::number;
use super::error::{Log, Refusal};
use super::probe::{Probe, Read};
use super::words::Line;
use super::{arguments, name, register};
use crate::event::dynamic::{Event, Place, Target, latin1};

pub(super) fn read(line: &Line<'_>, facts: &dyn Facts) -> Result<Option<Read>, Refusal> {
    let head = line.word(0);
    let letter = head.first();
    if !matches!(letter, Some(b'p' | b'r')) || line.len() < 2 {
        return Ok(None);
    }
    let mut log = Log::new("trace_kprobe", line);
    let refuse = |word, stop: Stop| Refusal::in_word(line, &log, word, &stop);
    let colon = memchr(b':', head);
    let mut exit = letter == Some(&b'r');
    if !exit && head.get(1).is_some_and(u8::is_ascii_digit) {
        let digits = Span::new(1, colon.unwrap_or(head.len()));
        let later = facts.language().has(Feature::LaterErrors);
        let kind = if later { ErrorKind::MaxactiveType } else { ErrorKind::MaxactiveKprobe };
        return Err(refuse(0, Stop::invalid(kind, digits)));
    }
    let maxactive = name::maxactive(head, colon).map_err(|stop| refuse(0, stop))?;
    let word = line.word(1);
    let (place, at) = if let Some(address) = number::unsigned(word) {
        // For an address the kernel does not look up the function, even for a return.
        (Place::Address(address), At::KprobeInside)
    } else {
        if word.contains(&b'/') && word.contains(&b':') {
            return Ok(None);
        }
        symbol(word, &mut exit, facts).map_err(|stop| refuse(1, stop))?
    };
    let names = name::given(head, colon).map_err(|stop| refuse(0, stop))?;
    let letter = if exit { 'r' } else { 'p' };
    let (function, generated) = match &place {
        Place::Symbol { name, offset } => (Some(name.clone()), format!("{letter}_{name}_{offset}")),
        Place::Address(address) => (None, format!("{letter}_0x{address:016x}")),
    };
    let mut checker = Checker::new(facts, Site { at, function: function.clone(), event: None });
    let args = arguments::expanded(line, &mut log, &mut checker, facts)?;
    let event = Event {
        group: names.group.unwrap_or_else(|| "kprobes".to_owned()),
        name: names.event.unwrap_or_else(|| name::generated(&generated)),
        target: Target::Kernel { place, exit },
        maxactive,
        args: args.iter().map(|checked| checked.arg.clone()).collect(),
    };
    let saved_args = checker.saved_args().to_vec();
    Ok(Some(Read { probe: Probe { event, at, args, saved_args, function, file: None }, log }))
}

/// `[MODULE:]SYMBOL[+OFFSET][%return]`
fn symbol(word: &[u8], exit: &mut bool, facts: &dyn Facts) -> Result<(Place, At), Stop> {
    let (text, suffix) = split_run(word, |byte| byte != b'%');
    let whole = Span::new(0, text.len());
    match suffix {
        b"" => {}
        b"%return" => *exit = true,
        _ => return Err(Stop::invalid(ErrorKind::BadAddressSuffix, Span::new(whole.end, word.len()))),
    }
    let (name, offset) = register::split_offset(text);
    let Some(offset) = offset.ok().and_then(|offset| u32::try_from(offset).ok()) else {
        return Err(Stop::invalid(ErrorKind::BadProbeAddress, whole));
    };
    let name = latin1(name);
    let later = facts.language().has(Feature::LaterErrors);
    let errno = |before| if later { Errno::INVAL } else { before };
    // A missing module can be loaded later, with its symbols.
    let count = match name.split_once(':') {
        Some((module, _)) if !facts.has_module(module) => 1,
        Some((module, symbol)) => facts.count(Some(module), symbol),
        None => facts.count(None, &name),
    };
    match count {
        0 => return Err(Stop::at(errno(Errno::NOENT), ErrorKind::BadProbeAddress, whole)),
        1 => {}
        _ => return Err(Stop::at(errno(Errno::ADDRNOTAVAIL), ErrorKind::NotUnique, whole)),
    }
    let at = match facts.spot(&name, u64::from(offset)) {
        Spot::Inside if *exit => return Err(Stop::invalid(ErrorKind::BadReturnProbe, whole)),
        _ if *exit => At::KprobeExit,
        Spot::Entry => At::KprobeEntry,
        Spot::Inside | Spot::Nowhere => At::KprobeInside,
    };
    Ok((Place::Symbol { name, offset }, at))
}
