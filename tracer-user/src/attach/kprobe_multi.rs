//! Entries or returns of many kernel functions through one link (`BPF_TRACE_KPROBE_MULTI`, 5.18), by the kernel's fprobe.

use super::{Cause, Link};
use crate::sys::prog::{Prog, Purpose};

/// What such a program is loaded for.
pub(super) fn purpose() -> Purpose<'static> {
    Purpose::Multi
}

/// Hangs a program on functions by their addresses.
pub(super) fn attach(program: &Prog, addresses: &[u64], exit: bool) -> Result<Link, Cause> {
    let fd = program
        .link_functions(addresses, exit)
        .map_err(|errno| Cause::Hook("kprobe.multi link (CONFIG_FPROBE)", errno))?;
    Ok(Link::Fd { _fd: fd })
}
