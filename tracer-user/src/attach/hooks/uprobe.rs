//! Uprobes: a uprobe.multi link (6.6 and later), which runs the program with less overhead; otherwise a perf event of
//! the kernel's `uprobe` unit, and a link from it to the program.

use std::{
    any::Any,
    ffi::CString,
    os::fd::OwnedFd,
    sync::{Arc, LazyLock},
};

use crate::{
    attach::{
        Cause,
        close::unlink::FileHook,
        hooks::trial,
        link::{Link, not_linked},
    },
    kernel::{ProbeUnit, opened::OpenedFile},
    sys::{
        Errno,
        bpf::prog::{Prog, ProgKind, Purpose},
        perf,
    },
};

/// An instruction of a file. The file was opened when it was named, because the path may later lead to another file,
/// with other code at the offset and no counter at its place. The kernel's own events keep the inode likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub file: Arc<OpenedFile>,
    /// The path by which the file was named, for display.
    pub path: Vec<u8>,
    /// Offset of the instruction in the file.
    pub offset: u64,
    /// Offset of a counter that the kernel raises while the probe is in place; 0 for none.
    pub reference: u64,
}

/// Whether the kernel has uprobe.multi links.
fn has_multi() -> bool {
    // With such links, the kernel refuses the directory; without them, the kind of link.
    static KNOWN: LazyLock<bool> = LazyLock::new(|| {
        let link = |program: &Prog| program.link_file(c"/", 0, 0, false, 0);
        trial::has_links(ProgKind::Kprobe, Purpose::FileMulti, link, Errno::BADF)
    });
    *KNOWN
}

/// The expected attach type for loading such a program.
pub(crate) fn purpose() -> Purpose<'static> {
    if has_multi() { Purpose::FileMulti } else { Purpose::Any }
}

/// Attaches a program to an instruction of a file, or to the return of a function that begins there.
pub(crate) fn attach(program: &Prog, place: &FilePlace, exit: bool) -> Result<Link, Cause> {
    finish(program, Planned::new(program, place, exit, 0)?.make()?)
}

/// Links a program to its perf event, if the hook is a perf event without a link.
pub(crate) fn finish(program: &Prog, hook: FileHook) -> Result<Link, Cause> {
    Ok(Link::File(hook.linked(|event| program.link_perf_event(event, 0).map_err(not_linked))?))
}

/// A program to attach to a file.
#[derive(Debug)]
pub(crate) struct Planned {
    /// `None` if it will be linked to a perf event.
    program: Option<Prog>,
    place: FilePlace,
    exit: bool,
    cookie: u64,
}

impl Planned {
    pub(crate) fn new(program: &Prog, place: &FilePlace, exit: bool, cookie: u64) -> Result<Self, Cause> {
        let links = has_multi() && program.is_for(purpose());
        let program = links.then(|| program.duplicate()).transpose();
        let program = program.map_err(|errno| Cause::Hook(name(exit), errno))?;
        Ok(Self { program, place: place.clone(), exit, cookie })
    }

    /// Makes the kernel insert the probe into the file, which can block without a limit.
    pub(crate) fn make(&self) -> Result<FileHook, Cause> {
        Ok(match &self.program {
            Some(program) => FileHook::new(link(program, &self.place, self.exit, self.cookie)?, false),
            None => FileHook::new(open(&self.place, self.exit)?, true),
        })
    }
}

/// Links to make to files. Making them does not need the session, and may block without a limit.
#[derive(Debug)]
pub struct Job {
    /// If the first one fails, the job fails; the others are optional.
    links: Vec<Planned>,
    /// A value that is dropped with the first link, or with the job if that link is not made.
    with: Box<dyn Any + Send + Sync>,
}

/// The links that were made, or the cause if the first one failed.
pub type Hooks = Result<Vec<FileHook>, Cause>;

impl Job {
    /// Keeps a value as long as the first link exists.
    pub(crate) fn new(links: Vec<Planned>, with: impl Any + Send + Sync) -> Self {
        Self { links, with: Box::new(with) }
    }

    /// Makes the links, which may block without a limit.
    ///
    /// # Errors
    /// When the kernel refuses the first one.
    pub fn run(self) -> Hooks {
        let Self { links, with } = self;
        let mut links = links.into_iter();
        let mut made = Vec::new();
        if let Some(first) = links.next() {
            made.push(first.make()?.keep(with));
        }
        for link in links {
            match link.make() {
                Ok(link) => made.push(link),
                Err(error) => tracing::debug!("no prefault program: {error}"),
            }
        }
        Ok(made)
    }
}

/// Makes a uprobe.multi link with a cookie.
fn link(program: &Prog, place: &FilePlace, exit: bool, cookie: u64) -> Result<OwnedFd, Cause> {
    let hook = name(exit);
    let path = path(place, hook)?;
    program
        .link_file(&path, place.offset, place.reference, exit, cookie)
        .map_err(|errno| Cause::Hook(hook, errno))
}

/// A path to the opened file, or `ESTALE` if the file has other content now, as for a file handle whose file is gone.
fn path(place: &FilePlace, hook: &'static str) -> Result<CString, Cause> {
    place.file.check().map_err(|errno| {
        let name = String::from_utf8_lossy(&place.path);
        tracing::warn!("{name} changed after offset {:#x} of it was probed: {errno}", place.offset);
        Cause::Hook(hook, errno)
    })?;
    Ok(place.file.path())
}

fn name(exit: bool) -> &'static str {
    if exit { "uretprobe" } else { "uprobe" }
}

/// Opens the perf event of an instruction or of the return of a function.
fn open(place: &FilePlace, exit: bool) -> Result<OwnedFd, Cause> {
    let unit = ProbeUnit::uprobe().ok_or(Cause::NotBuilt("uprobes", "CONFIG_UPROBE_EVENTS"))?;
    let hook = name(exit);
    let path = path(place, hook)?;
    let config = unit
        .config(exit, place.reference)
        .ok_or(Cause::Hook("reference counter of the uprobe", crate::sys::Errno::RANGE))?;
    perf::open_uprobe(unit.kind, config, &path, place.offset).map_err(|errno| Cause::Hook(hook, errno))
}
