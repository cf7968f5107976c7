//! Kprobes and kretprobes: perf events of the kernel's `kprobe` unit.

use std::{ffi::CString, os::fd::OwnedFd};

use super::Cause;
use crate::{
    kernel::ProbeUnit,
    sys::{Errno, perf},
};

/// An instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPlace {
    /// The symbol, its module in front of it or not; none for an address.
    pub symbol: Option<String>,
    /// Bytes behind it, or the address.
    pub offset: u64,
}

/// Opens the perf event of an instruction or of the return of a function.
pub(super) fn open(place: &KernelPlace, exit: bool) -> Result<OwnedFd, Cause> {
    let unit = ProbeUnit::kprobe().ok_or(Cause::NotBuilt("kprobes", "CONFIG_KPROBE_EVENTS"))?;
    let symbol = match &place.symbol {
        Some(symbol) => Some(
            CString::new(symbol.as_str()).map_err(|_| Cause::Hook("kprobe", super::attach_point::NO_NAME))?,
        ),
        None => None,
    };
    let config = unit.config(exit, 0).unwrap_or_default();
    let hook = if exit { "kretprobe" } else { "kprobe" };
    perf::open_kprobe(unit.kind, config, symbol.as_deref(), place.offset)
        .map_err(|errno| Cause::Hook(hook, errno))
}

/// Probes an instruction of the kernel for a moment.
///
/// # Errors
/// What the kernel says; `ENOSYS` from one that is built without kprobes.
pub fn try_kprobe(address: u64) -> Result<(), Errno> {
    let unit = ProbeUnit::kprobe().ok_or(Errno::NOSYS)?;
    perf::open_kprobe(unit.kind, 0, None, address).map(drop)
}
