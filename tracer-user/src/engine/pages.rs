//! Learns where the kernel's page descriptors begin, from hits.
//!
//! Events of pages record the frame's number and print the descriptor's address (`pfn_to_page()`): a base that the
//! kernel chooses at boot, plus the number times the descriptor's size. Without `KALLSYMS_ALL` the location of that
//! base is unknown. But a raw tracepoint passes the descriptor itself. So two programs at the same hit see its
//! address and the frame's number. This is done at most once, and only for an event whose text needs it ([`Facts`]
//! stores the answer).

use tracer_abi::control;

use super::{facts::Facts, verify};
use crate::{
    attach::{self, Context, Session, ids},
    event::Format,
    plan::source::{FieldSource, Source},
    ring::Drain,
};

/// The event: its first argument is the `struct page *` whose number it records as `pfn`.
const EVENT: (&str, &str) = ("kmem", "mm_page_alloc");
/// `common_type` of the records of the event; those of the raw tracepoint have the next one.
const NUMBERS: u16 = control::FIRST + 8;
/// An interrupt may allocate between the two hooks. The results then do not match, and the attempt is repeated.
const ATTEMPTS: usize = 3;

/// Why the base could not be learned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// The kernel lacks something that the trial needs.
    #[error("{0}")]
    Lacks(&'static str),
    /// A step of the trial failed.
    #[error("{0}")]
    Failed(String),
    /// The two programs saw different numbers of hits.
    #[error("{numbers} numbers and {addresses} addresses do not pair")]
    NoPairs {
        /// Hits of the event.
        numbers: usize,
        /// Hits of the raw tracepoint.
        addresses: usize,
    },
    /// No hit had a page.
    #[error("no page was seen")]
    NoPage,
    /// The pairs do not agree on one base.
    #[error("pages lie in several places")]
    SeveralBases,
}

impl PagesError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Address of the descriptor of page frame 0 (`vmemmap_base` on x86-64), which need not exist.
///
/// # Errors
/// The reason why it could not be learned.
pub fn base(facts: &Facts) -> Result<u64, PagesError> {
    use PagesError::Lacks;
    let (system, name) = EVENT;
    let text = facts.tracefs.format(system, name).map_err(PagesError::failed)?;
    let text = text.ok_or(Lacks("there is no event kmem:mm_page_alloc"))?;
    let format = Format::parse(system, &text).map_err(PagesError::failed)?;
    let number = format.field("pfn").filter(|field| field.size == 8);
    let number = number.ok_or(Lacks("the event records no pfn"))?;
    let btf = facts.btf().ok_or(Lacks("the kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)"))?;
    let prototype = btf.tracepoint(name).ok().flatten().ok_or(Lacks("BTF does not know the tracepoint"))?;
    if prototype.params.first().is_none_or(|param| param.ty != "struct page *") {
        return Err(Lacks("the tracepoint's first argument is no page"));
    }
    let (size, _) =
        btf.size_of("page").ok().flatten().ok_or(Lacks("BTF does not know the size of a page"))?;
    let offset = number.offset;
    let page = FieldSource { offset: offset as u16, size: 8, source: Source::Arg(0) };
    let own = ids::own().map_err(PagesError::failed)?;
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
    let (mut session, rings) = Session::new(&sizes, Context::default()).map_err(PagesError::failed)?;
    let mut drain = Drain::new(rings);
    let attached =
        verify::attach(&format, &[page], name, NUMBERS, &mut session).map_err(PagesError::failed)?;
    let mut learned = Err(PagesError::NoPage);
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
        learned =
            provoked.map_err(PagesError::failed).and_then(|()| pair(&seen[0], &seen[1], u64::from(size)));
        if learned.is_ok() {
            break;
        }
    }
    verify::retire(attached.into());
    learned
}

/// Makes the kernel allocate pages for this thread, one for each written piece.
fn fill_a_pipe() -> rustix::io::Result<()> {
    let (_reader, writer) = rustix::pipe::pipe()?;
    // A pipe can hold sixteen pages.
    for _ in 0..8 {
        rustix::io::write(&writer, &[0; 4096])?;
    }
    Ok(())
}

/// The base on which all pairs of a frame's number and its descriptor's address agree.
fn pair(numbers: &[u64], addresses: &[u64], size: u64) -> Result<u64, PagesError> {
    if numbers.len() != addresses.len() {
        return Err(PagesError::NoPairs { numbers: numbers.len(), addresses: addresses.len() });
    }
    // A failed allocation has neither.
    let mut bases = numbers
        .iter()
        .zip(addresses)
        .filter(|(number, address)| **number != u64::MAX && **address != 0)
        .map(|(number, address)| address.wrapping_sub(number.wrapping_mul(size)));
    let base = bases.next().ok_or(PagesError::NoPage)?;
    if bases.any(|other| other != base) {
        return Err(PagesError::SeveralBases);
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_must_agree() {
        const BASE: u64 = 0xffff_ea00_0000_0000;
        let at = |number: u64| BASE + 64 * number;
        assert_eq!(pair(&[7, 0x1_0000], &[at(7), at(0x1_0000)], 64), Ok(BASE));
        assert_eq!(pair(&[u64::MAX, 7], &[0, at(7)], 64), Ok(BASE));
        assert_eq!(pair(&[7, 8], &[at(8), at(7)], 64), Err(PagesError::SeveralBases));
        assert_eq!(pair(&[7, 8], &[at(7)], 64), Err(PagesError::NoPairs { numbers: 2, addresses: 1 }));
        assert_eq!(pair(&[u64::MAX], &[0], 64), Err(PagesError::NoPage));
        // The base is added to, and may wrap around.
        assert_eq!(pair(&[9], &[64], 64), Ok(64_u64.wrapping_sub(9 * 64)));
    }
}
