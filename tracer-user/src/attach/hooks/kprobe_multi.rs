//! Entries or returns of many kernel functions through one link (`BPF_TRACE_KPROBE_MULTI`, 5.18), by the kernel's
//! fprobe.

use std::sync::LazyLock;

use super::trial;
use crate::{
    attach::{Cause, link::Link},
    sys::{
        Errno,
        bpf::prog::{Prog, ProgKind, Purpose},
    },
};

/// Whether the kernel has kprobe.multi links.
pub(crate) fn is_there() -> bool {
    // With such links, the kernel refuses an empty list; without them, the kind of link.
    static KNOWN: LazyLock<bool> = LazyLock::new(|| {
        trial::has_links(
            ProgKind::Kprobe,
            Purpose::Multi,
            |program| program.link_functions(&[], &[], false),
            Errno::INVAL,
        )
    });
    *KNOWN
}

/// Attaches a program to functions by their addresses.
pub(crate) fn attach(program: &Prog, addresses: &[u64], exit: bool) -> Result<Link, Cause> {
    let fd = program
        .link_functions(addresses, &[], exit)
        .map_err(|errno| Cause::Hook("kprobe.multi link (CONFIG_FPROBE)", errno))?;
    Ok(Link::Fd { _fd: fd })
}
