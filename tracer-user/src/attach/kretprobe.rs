//! Kretprobes: as kprobes, for the return of a function.

use super::{Cause, Link, kprobe};
use crate::sys::prog::Prog;

/// Hangs a program on the return of a function.
pub(super) fn attach(program: &Prog, place: &kprobe::KernelPlace) -> Result<Link, Cause> {
    kprobe::link(program, kprobe::open(place, true)?)
}
