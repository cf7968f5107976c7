//! Entries of kernel functions by BPF trampoline; exits (`fexit.rs`) differ in what the program is loaded for.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{Cause, Link};
use crate::sys::{
    btf,
    prog::{Prog, Purpose},
};

/// A kernel function by its types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its id in the kernel's BTF, or in its module's.
    pub id: u32,
    /// The module's types; none for the kernel's own functions.
    pub module: Option<ModuleTypes>,
}

/// The types of a module, as programs are loaded by them. While such a program is there, so is the module.
#[derive(Clone, Debug)]
pub struct ModuleTypes {
    name: String,
    fd: Arc<OwnedFd>,
}

impl ModuleTypes {
    /// Those of a loaded module.
    ///
    /// # Errors
    /// `ENOENT` where the kernel has none, or what it says.
    pub fn of(name: &str) -> Result<Self, crate::sys::Errno> {
        let fd = btf::module(name)?.ok_or(crate::sys::Errno::NOENT)?;
        Ok(Self { name: name.to_owned(), fd: Arc::new(fd) })
    }
}

impl PartialEq for ModuleTypes {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ModuleTypes {}

/// What a program at a function's entry or exit is loaded for.
pub(super) fn purpose(function: &Function, exit: bool) -> Purpose<'_> {
    Purpose::Function {
        id: function.id,
        module: function.module.as_ref().map(|module| module.fd.as_fd()),
        exit,
    }
}

/// Hangs a program on the function that it was loaded for.
pub(super) fn attach(program: &Prog) -> Result<Link, Cause> {
    let fd = program.attach_function().map_err(|errno| Cause::Hook("fentry", errno))?;
    Ok(Link::Fd { _fd: fd })
}
