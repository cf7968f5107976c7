//! System call dispatch: one program on raw `sys_enter` or `sys_exit` tail-calls the program at the call's number in
//! an array.
//!
//! Where sessions share chains, their dispatchers are consumers of the chains of these two tracepoints
//! (`attach/session/attach.rs`).

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tracer_abi::{CALL_NUMBERS, SYSCALLS};

use super::{
    call_pages::{self, CallPages},
    raw_tracepoint,
};
use crate::{
    attach::{
        Cause,
        attached::entry::{self, Entry, program_array},
        program::object,
    },
    kernel::{Cast, syscalls::Registers},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind},
    },
};

/// The link or chain place of a dispatcher. Dropping it detaches the dispatcher, and adds the hits that it missed to
/// those of the session's detached events.
pub(crate) trait Hooked: fmt::Debug + Send + Sync {
    /// Hits for which the kernel did not run the dispatcher.
    fn missed(&self) -> u64;
}

/// The link of a dispatcher that is in no chain.
#[derive(Debug)]
struct OwnLink {
    program: Arc<Prog>,
    _link: OwnedFd,
    // Closed after the link.
    _pages: Option<Arc<OwnedFd>>,
    ended: Arc<AtomicU64>,
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        self.ended.fetch_add(entry::missed(&self.program), Ordering::Relaxed);
    }
}

impl Hooked for OwnLink {
    fn missed(&self) -> u64 {
        entry::missed(&self.program)
    }
}

type Attach = dyn Fn(&Arc<Prog>, &str) -> Result<Box<dyn Hooked>, Cause>;

/// How a dispatcher is attached to its raw tracepoint.
pub(crate) struct DispatcherLink {
    /// The session whose consumer the dispatcher is.
    session: Option<u64>,
    /// Attaches it to the raw tracepoint of a name.
    attach: Box<Attach>,
}

impl DispatcherLink {
    /// By a link of its own. `ended` gets the hits that it missed when it is detached. At entries, `pages` is attached
    /// before.
    pub(crate) fn alone(ended: Arc<AtomicU64>, pages: Option<Arc<CallPages>>) -> Self {
        let attach = move |program: &Arc<Prog>, name: &str| {
            let pages = pages.as_ref().filter(|_| name == call_pages::TRACEPOINT);
            let pages = pages.and_then(|pages| pages.attach());
            let link = raw_tracepoint::attach(program, name)?;
            let (program, ended) = (Arc::clone(program), Arc::clone(&ended));
            let link = OwnLink { program, _link: link, _pages: pages, ended };
            Ok::<Box<dyn Hooked>, _>(Box::new(link))
        };
        Self { session: None, attach: Box::new(attach) }
    }

    /// As a consumer of the raw tracepoint, for the session with this number.
    pub(crate) fn in_chain(
        session: u64,
        attach: impl Fn(&Arc<Prog>, &str) -> Result<Box<dyn Hooked>, Cause> + 'static,
    ) -> Self {
        Self { session: Some(session), attach: Box::new(attach) }
    }

    pub(crate) fn session(&self) -> Option<u64> {
        self.session
    }
}

#[derive(Debug)]
pub(crate) struct Dispatcher {
    array: Arc<Map>,
    _program: Arc<Prog>,
    hooked: Box<dyn Hooked>,
}

impl Dispatcher {
    /// Loads the dispatcher for entries or exits, and attaches it to its raw tracepoint. The call's number is at this
    /// byte offset in `struct pt_regs`; `cast` as in [`Context`](crate::attach::Context).
    pub(crate) fn new(
        enter: bool,
        number_offset: u32,
        cast: Option<Cast>,
        link: &DispatcherLink,
    ) -> Result<Self, Cause> {
        let array = program_array(CALL_NUMBERS, "tracer_syscalls")?;
        let name = if enter { "sys_enter" } else { "sys_exit" };
        let offset = number_offset.to_ne_bytes();
        let maps = |map: &str| (map == SYSCALLS).then(|| array.as_fd());
        let constants: [(&str, &[u8]); 1] = [("NUMBER_OFFSET", &offset)];
        let program = object::load_plain(ProgKind::RawTracepoint, name, &constants, cast, None, maps)?;
        let program = Arc::new(program);
        let hooked = (link.attach)(&program, name)?;
        Ok(Self { array: Arc::new(array), _program: program, hooked })
    }

    pub(crate) fn entry(&self, number: u32) -> Entry {
        Entry::new(Arc::clone(&self.array), number)
    }

    /// Hits for which the kernel did not run it.
    pub(crate) fn missed(&self) -> u64 {
        self.hooked.missed()
    }
}

/// The dispatchers of a session. Each is attached while an event uses an entry of it.
#[derive(Debug)]
pub(crate) struct Dispatchers {
    registers: Option<Registers>,
    cast: Option<Cast>,
    enter: Weak<Dispatcher>,
    exit: Weak<Dispatcher>,
}

impl Dispatchers {
    /// No dispatcher yet. `registers` and `cast` as in [`Context`](crate::attach::Context).
    pub(crate) fn new(registers: Option<Registers>, cast: Option<Cast>) -> Self {
        Self { registers, cast, enter: Weak::new(), exit: Weak::new() }
    }

    /// Hits for which the kernel did not run the dispatchers that are attached.
    pub(crate) fn missed(&self) -> u64 {
        let attached = [&self.enter, &self.exit].into_iter().filter_map(Weak::upgrade);
        attached.map(|dispatcher| dispatcher.missed()).sum()
    }

    /// The dispatcher of entries or of exits. `link` is how a new one is attached.
    pub(crate) fn get(&mut self, enter: bool, link: &DispatcherLink) -> Result<Arc<Dispatcher>, Cause> {
        let side = if enter { &mut self.enter } else { &mut self.exit };
        if let Some(dispatcher) = side.upgrade() {
            return Ok(dispatcher);
        }
        let registers = self.registers.ok_or(Cause::NoRegisters)?;
        let dispatcher = Arc::new(Dispatcher::new(enter, registers.number, self.cast, link)?);
        *side = Arc::downgrade(&dispatcher);
        Ok(dispatcher)
    }
}
