//! Exits of kernel functions by BPF trampoline.

use super::{Cause, Link};
use crate::sys::prog::Prog;

/// Attaches a program to the function that it was loaded for ([`super::fentry::purpose`]).
pub(super) fn attach(program: &Prog) -> Result<Link, Cause> {
    let fd = program.attach_function().map_err(|errno| Cause::Hook("fexit", errno))?;
    Ok(Link::Fd { _fd: fd })
}
