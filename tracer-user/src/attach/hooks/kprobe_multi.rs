//! Entries or returns of many kernel functions through one link (`BPF_TRACE_KPROBE_MULTI`, 5.18), by the kernel's
//! fprobe.

use std::{os::fd::AsFd, sync::OnceLock};

use super::trial;
use crate::{
    attach::{Cause, link::Link},
    sys::{
        Errno,
        bpf::{
            feature::{ATTACH_KPROBE_MULTI, Trial, link_kprobe_multi_to_nothing, load},
            prog::{Prog, ProgKind, Purpose},
        },
    },
};

/// Whether the kernel has kprobe.multi links.
pub(crate) fn is_there() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let trial = Trial {
            kind: ProgKind::Kprobe as u32,
            attach_type: ATTACH_KPROBE_MULTI,
            attach_btf_id: 0,
            flags: 0,
            insns: &trial::program(),
        };
        load(&trial)
            .is_ok_and(|program| link_kprobe_multi_to_nothing(program.as_fd()).err() == Some(Errno::INVAL))
    })
}

/// The expected attach type for loading such a program.
pub(crate) fn purpose() -> Purpose<'static> {
    Purpose::Multi
}

/// Attaches a program to functions by their addresses.
pub(crate) fn attach(program: &Prog, addresses: &[u64], exit: bool) -> Result<Link, Cause> {
    let fd = program
        .link_functions(addresses, &[], exit)
        .map_err(|errno| Cause::Hook("kprobe.multi link (CONFIG_FPROBE)", errno))?;
    Ok(Link::Fd { _fd: fd })
}
