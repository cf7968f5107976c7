//! Kprobes and kretprobes: perf events of the kernel's `kprobe` unit.

use std::{ffi::CString, os::fd::OwnedFd};

use crate::{
    attach::Cause,
    kernel::ProbeUnit,
    sys::{Errno, perf},
};

/// An instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPlace {
    /// The symbol, with or without its module's name in front; `None` for an address.
    pub symbol: Option<String>,
    /// Bytes after the symbol, or the address.
    pub offset: u64,
}

/// Opens the perf event of an instruction or of the return of a function.
pub(crate) fn open(place: &KernelPlace, exit: bool) -> Result<OwnedFd, Cause> {
    let unit = ProbeUnit::kprobe().ok_or(Cause::NotBuilt("kprobes", "CONFIG_KPROBE_EVENTS"))?;
    // A name that contains a NUL cannot be a C string.
    let symbol = place.symbol.as_deref().map(CString::new).transpose();
    let symbol = symbol.map_err(|_| Cause::Hook("kprobe", Errno::INVAL))?;
    let config = unit.config(exit, 0).unwrap_or_default();
    let hook = if exit { "kretprobe" } else { "kprobe" };
    perf::open_kprobe(unit.kind, config, symbol.as_deref(), place.offset)
        .map_err(|errno| Cause::Hook(hook, errno))
}

/// Places a probe at an instruction of the kernel and removes it at once.
///
/// # Errors
/// When the kernel refuses the probe; `ENOSYS` if it is built without kprobes.
pub fn try_kprobe(address: u64) -> Result<(), Errno> {
    let unit = ProbeUnit::kprobe().ok_or(Errno::NOSYS)?;
    perf::open_kprobe(unit.kind, 0, None, address).map(drop)
}
