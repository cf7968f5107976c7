//! Raw tracepoints: the program sees the tracepoint's arguments.

use super::{Cause, Link};
use crate::sys::prog::Prog;

/// Attaches a raw tracepoint program to a tracepoint.
pub(super) fn attach(program: &Prog, tracepoint: &str) -> Result<Link, Cause> {
    let fd =
        program.attach_raw_tracepoint(tracepoint).map_err(|errno| Cause::Hook("raw tracepoint", errno))?;
    Ok(Link::Fd { _fd: fd })
}
