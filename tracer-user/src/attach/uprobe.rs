//! Uprobes: a perf event of the kernel's `uprobe` unit, and a link from it to the program.

use std::{ffi::CString, os::fd::OwnedFd};

use super::{Cause, Link, kprobe};
use crate::{
    kernel::ProbeUnit,
    sys::{perf, prog::Prog},
};

/// An instruction of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file's path.
    pub path: Vec<u8>,
    /// Offset in it.
    pub offset: u64,
    /// Offset of a counter that is raised while the probe is in place; 0 for none.
    pub reference: u64,
}

/// Hangs a program on an instruction of a file.
pub(super) fn attach(program: &Prog, place: &FilePlace) -> Result<Link, Cause> {
    kprobe::link(program, open(place, false)?)
}

/// Opens the perf event of an instruction or of the return of a function.
pub(super) fn open(place: &FilePlace, exit: bool) -> Result<OwnedFd, Cause> {
    let unit = ProbeUnit::uprobe().ok_or(Cause::NotBuilt("uprobes", "CONFIG_UPROBE_EVENTS"))?;
    let hook = if exit { "uretprobe" } else { "uprobe" };
    let path = CString::new(place.path.as_slice()).map_err(|_| Cause::Hook(hook, super::via::NO_NAME))?;
    let config = unit
        .config(exit, place.reference)
        .ok_or(Cause::Hook("reference counter of the uprobe", crate::sys::Errno::RANGE))?;
    perf::open_uprobe(unit.kind, config, &path, place.offset).map_err(|errno| Cause::Hook(hook, errno))
}
