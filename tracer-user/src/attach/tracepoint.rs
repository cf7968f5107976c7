//! Perf tracepoints: a perf event of the trace event's id, and a link from it to the program.

use std::os::fd::AsFd;

use super::{Cause, Link};
use crate::sys::{perf, prog::Prog};

/// Hangs a tracepoint program on an event.
pub(super) fn attach(program: &Prog, id: u16) -> Result<Link, Cause> {
    let event =
        perf::open_tracepoint(id).map_err(|errno| Cause::Hook("perf event of the tracepoint", errno))?;
    let link = program
        .link_perf_event(event.as_fd(), 0)
        .map_err(|errno| Cause::Hook("link to the perf event (5.15 and later)", errno))?;
    Ok(Link::Perf { _link: link, _event: event })
}
