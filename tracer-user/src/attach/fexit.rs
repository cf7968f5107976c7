//! Exits of kernel functions by BPF trampoline.

use super::{Cause, Link, fentry::Function};
use crate::sys::prog::{Prog, Purpose};

/// What a program at a function's exit is loaded for.
pub(super) fn purpose(function: Function) -> Purpose<'static> {
    Purpose::Function { id: function.id, module: None, exit: true }
}

/// Hangs a program on the function that it was loaded for.
pub(super) fn attach(program: &Prog) -> Result<Link, Cause> {
    let fd = program.attach_function().map_err(|errno| Cause::Hook("fexit", errno))?;
    Ok(Link::Fd { _fd: fd })
}
