//! Entries of kernel functions by BPF trampoline; exits (`fexit.rs`) differ in what the program is loaded for.

use super::{Cause, Link};
use crate::sys::prog::{Prog, Purpose};

/// A kernel function by its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its id in the kernel's BTF.
    pub id: u32,
}

/// What a program at a function's entry is loaded for.
pub(super) fn purpose(function: Function) -> Purpose<'static> {
    Purpose::Function { id: function.id, module: None, exit: false }
}

/// Hangs a program on the function that it was loaded for.
pub(super) fn attach(program: &Prog) -> Result<Link, Cause> {
    let fd = program.attach_function().map_err(|errno| Cause::Hook("fentry", errno))?;
    Ok(Link::Fd { _fd: fd })
}
