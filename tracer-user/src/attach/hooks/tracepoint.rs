//! Perf tracepoints: a perf event of the trace event's id, with a link from it to the program.

use crate::{
    attach::{
        Cause,
        close::perf_event::{self, PerfEvent},
        link::Link,
    },
    sys::{Errno, bpf::prog::Prog, perf},
};

/// Attaches a program to the perf tracepoint of a trace event's id.
pub(crate) fn attach(program: &Prog, id: u16) -> Result<Link, Cause> {
    Link::perf(program, open(id)?)
}

/// Opens the perf event of a trace event's id, or takes one that is not in use.
pub(crate) fn open(id: u16) -> Result<PerfEvent, Cause> {
    if let Some(unused) = perf_event::reuse(id) {
        return Ok(unused);
    }
    perf::open_tracepoint(id).map(|event| PerfEvent::of_tracepoint(id, event, None)).map_err(not_opened)
}

pub(crate) fn not_opened(errno: Errno) -> Cause {
    Cause::Hook("perf event of the tracepoint", errno)
}
