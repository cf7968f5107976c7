//! Where the kernel's page descriptors begin, learned from hits.
//!
//! Events of pages record the frame's number and print the descriptor's address (`pfn_to_page()`), which is the number
//! times the descriptor's size behind a base that the kernel chooses at boot. Without `KALLSYMS_ALL` nobody is told where
//! it keeps that base. But a raw tracepoint hands over the descriptor itself: at one hit the one hook shows the address
//! and the other the number. Done at most once, and only for an event whose text needs it ([`Facts`] keeps the answer).

use tracer_abi::control;

use super::{facts::Facts, verify};
use crate::{
    attach::{self, AttachPoint, Context, Dispatch, HitActions, Request, Session, Threads, ids},
    event::Format,
    plan::source::{FieldSource, ProgramContext, Source},
    ring::Drain,
};

/// The event: its first argument is the `struct page *` whose number it records as `pfn`.
const EVENT: (&str, &str) = ("kmem", "mm_page_alloc");
/// `common_type` of the records of the two programs.
const NUMBERS: u16 = control::FIRST + 8;
const ADDRESSES: u16 = NUMBERS + 1;
/// An interrupt may allocate between the one hook and the other; then the two do not pair, and it is tried again.
const ATTEMPTS: usize = 3;

/// Address of the descriptor of page frame 0 (`vmemmap_base` on x86-64), which itself need not exist.
///
/// # Errors
/// Why it could not be learned, in words.
pub fn base(facts: &Facts) -> Result<u64, String> {
    let (system, name) = EVENT;
    let text = facts.tracefs.format(system, name).map_err(|error| error.to_string())?;
    let text = text.ok_or_else(|| format!("there is no event {system}:{name}"))?;
    let format = Format::parse(system, &text).map_err(|error| error.to_string())?;
    let number = format.field("pfn").filter(|field| field.size == 8).ok_or("the event records no pfn")?;
    let btf = facts.btf().ok_or("the kernel shows no BTF")?;
    let prototype = btf.tracepoint(name).ok().flatten().ok_or("BTF does not know the tracepoint")?;
    if prototype.params.first().is_none_or(|param| param.ty != "struct page *") {
        return Err("the tracepoint's first argument is no page".to_owned());
    }
    let (size, _) = btf.size_of("page").ok().flatten().ok_or("BTF does not know the size of a page")?;
    let offset = number.offset;
    let page = FieldSource { offset: offset as u16, size: 8, source: Source::Arg(0) };
    let hooks = [
        (ProgramContext::Tracepoint, AttachPoint::Tracepoint(format.id), NUMBERS),
        (ProgramContext::RawTracepoint(vec![page]), AttachPoint::RawTracepoint(name.to_owned()), ADDRESSES),
    ];

    let own = ids::own().map_err(|cause| cause.to_string())?;
    let sizes = attach::Options {
        ring_bytes: 64 * 1024,
        watermark: u32::MAX,
        cpus: facts.cpus(),
        slots: 2,
        pid_gate: false,
        pid_lists: false,
        own_tgid: own.process,
        trace_own: true,
    };
    let (mut session, rings) = Session::new(&sizes, Context::default()).map_err(|error| error.to_string())?;
    let mut drain = Drain::new(rings);
    let mut attached = Vec::new();
    for (hook, via, kind) in &hooks {
        let request = Request {
            format: &format,
            hook,
            via,
            filter: None,
            irqs_off: false,
            kind: *kind,
            threads: Threads::Own,
            other: None,
            extras: HitActions::default(),
        };
        attached.push(session.attach(&request, Dispatch::Direct).map_err(|error| error.to_string())?);
    }
    let mut learned = Err("it was not tried".to_owned());
    for _ in 0..ATTEMPTS {
        session.switches().set_tracing(true);
        let provoked = fill_a_pipe();
        session.switches().set_tracing(false);
        let mut seen = [Vec::new(), Vec::new()];
        drain.finish(|record| {
            let word = |at: usize| record.payload.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
            let (Some(head), Some(value)) = (word(0).copied(), word(offset).copied()) else { return };
            let side = u16::from_ne_bytes([head[0], head[1]]).wrapping_sub(NUMBERS);
            let thread = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
            if let Some(side) = seen.get_mut(usize::from(side)).filter(|_| thread == own.thread) {
                side.push(u64::from_ne_bytes(value));
            }
        });
        learned = provoked.and_then(|()| pair(&seen[0], &seen[1], u64::from(size)));
        if learned.is_ok() {
            break;
        }
    }
    verify::retire(attached);
    learned
}

/// Makes the kernel allocate pages for this thread, wherever its own memory comes from: one for each piece written.
fn fill_a_pipe() -> Result<(), String> {
    let (_reader, writer) = rustix::pipe::pipe().map_err(|errno| errno.to_string())?;
    // A pipe has room for sixteen pages.
    for _ in 0..8 {
        rustix::io::write(&writer, &[0; 4096]).map_err(|errno| errno.to_string())?;
    }
    Ok(())
}

/// The base that all pairs of a frame's number and its descriptor's address agree on.
fn pair(numbers: &[u64], addresses: &[u64], size: u64) -> Result<u64, String> {
    if numbers.len() != addresses.len() {
        return Err(format!("{} numbers and {} addresses do not pair", numbers.len(), addresses.len()));
    }
    // An allocation that fails has neither.
    let mut bases = numbers
        .iter()
        .zip(addresses)
        .filter(|(number, address)| **number != u64::MAX && **address != 0)
        .map(|(number, address)| address.wrapping_sub(number.wrapping_mul(size)));
    let base = bases.next().ok_or("no page was seen")?;
    if bases.any(|other| other != base) {
        return Err("pages lie in several places".to_owned());
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_to_agree() {
        const BASE: u64 = 0xffff_ea00_0000_0000;
        let at = |number: u64| BASE + 64 * number;
        assert_eq!(pair(&[7, 0x1_0000], &[at(7), at(0x1_0000)], 64), Ok(BASE));
        assert_eq!(pair(&[u64::MAX, 7], &[0, at(7)], 64), Ok(BASE));
        assert_eq!(pair(&[7, 8], &[at(8), at(7)], 64), Err("pages lie in several places".to_owned()));
        assert_eq!(pair(&[7, 8], &[at(7)], 64), Err("2 numbers and 1 addresses do not pair".to_owned()));
        assert_eq!(pair(&[u64::MAX], &[0], 64), Err("no page was seen".to_owned()));
        // The base is a number to add to, and may wrap around.
        assert_eq!(pair(&[9], &[64], 64), Ok(64_u64.wrapping_sub(9 * 64)));
    }
}
