//! Entries and exits of kernel functions by BPF trampoline. A program is loaded for one function, and for its entry
//! or its exit.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, LazyLock},
};

use super::trial;
use crate::{
    attach::{Cause, link::Link},
    sys::{
        Errno,
        bpf::{
            btf,
            prog::{Prog, ProgKind, Purpose},
        },
    },
};

/// A kernel function, named by its BTF type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The type id in the kernel's BTF, or in its module's.
    pub id: u32,
    /// The module's BTF; `None` for functions of the kernel itself.
    pub module: Option<ModuleTypes>,
}

/// The BTF of a module, for loading programs. A loaded program keeps the module loaded.
#[derive(Clone, Debug)]
pub struct ModuleTypes {
    name: String,
    fd: Arc<OwnedFd>,
}

impl ModuleTypes {
    /// Opens the BTF of a loaded module.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has none for this module, or the kernel's error.
    pub fn of(name: &str) -> Result<Self, Errno> {
        let fd = btf::module(name)?.ok_or(Errno::NOENT)?;
        Ok(Self { name: name.to_owned(), fd: Arc::new(fd) })
    }
}

impl PartialEq for ModuleTypes {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ModuleTypes {}

/// The function and the side that a program is loaded for.
pub(crate) fn purpose(function: &Function, exit: bool) -> Purpose<'_> {
    Purpose::Function {
        id: function.id,
        module: function.module.as_ref().map(|module| module.fd.as_fd()),
        exit,
    }
}

/// Whether the kernel has links of one program to the exits of many functions (7.2 and later, on x86-64).
pub fn has_exits() -> bool {
    // With such links, the kernel refuses an empty list; without them, the program or the kind of link.
    static KNOWN: LazyLock<bool> = LazyLock::new(|| {
        let link = |program: &Prog| program.link_exits(&[], &[]);
        trial::has_links(ProgKind::Tracing, Purpose::Exits, link, Errno::INVAL)
    });
    *KNOWN
}

/// Attaches a program to the function that it was loaded for ([`purpose`]); `hook` is the name of the entry or exit.
pub(crate) fn attach(program: &Prog, hook: &'static str) -> Result<Link, Cause> {
    let fd = program.attach_function().map_err(|errno| Cause::Hook(hook, errno))?;
    Ok(Link::Fd { _fd: fd })
}
