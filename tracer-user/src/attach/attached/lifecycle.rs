//! The life cycle of everything that is attached: attach, replace, park, resume, detach.
//!
//! - **Attach** loads a program and makes its link ([`crate::attach::Session::attach`]). Links to files can block without a
//!   limit, so they can be made by another thread ([`Planned`]).
//! - **Replace** exchanges the program by one word: every hit runs either the old program or the new one, exactly once.
//! - **Park** removes the program, by one word too, and leaves the link. Closing a link is slow, and an event that was turned
//!   off is often turned on again soon.
//! - **Resume** sets a program again.
//! - **Detach** is the drop of an [`Attached`] or [`Parked`]. The link closes first, then what it refers to, and the slot is
//!   free last.
//!
//! Only what is reached through an [`Entry`], or has no hook, can be replaced: [`Attached::set_program`] is the one place that
//! checks this.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::entry::{self, Entry, OwnGate};
use crate::{
    attach::{
        AttachError, AttachPoint, Cause,
        close::{
            guard::{self, Guard, Guarded, Kept},
            opening::close_links,
            unlink,
        },
        link::Link,
        program::{
            builder::LoadedProgram,
            companions::Companions,
            inject::{self, Writer},
        },
        slots::SlotLease,
    },
    event::Slot,
    sys::bpf::prog::Prog,
};

/// How hits reach a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// The program itself is attached. It cannot be replaced, unless it has no hook ([`AttachPoint::Inject`]).
    Direct,
    /// A gate calls it through a table. Events with the same code share a program.
    Table,
    /// A gate of its own calls it, and counts hits also of threads that are not traced.
    Gate,
}

/// An attached event, probe, relay or histogram. Dropping it detaches it: hits stop at once. If a gate of its own is linked to a
/// perf event, a background thread closes it ([`closed_since`](crate::attach::closed_since)) and then frees the slot.
#[derive(Debug)]
pub struct Attached {
    // In the order of closing.
    pub(in crate::attach) link: Link,
    pub(in crate::attach) entry: Option<Entry>,
    pub(in crate::attach) gate: Option<OwnGate>,
    pub(in crate::attach) companions: Companions,
    /// An array references its program; this keeps the program's memory, and a program without a hook.
    pub(in crate::attach) program: Arc<LoadedProgram>,
    pub(in crate::attach) via: AttachPoint,
    pub(in crate::attach) dispatch: Dispatch,
    pub(in crate::attach) lease: Option<Arc<SlotLease>>,
}

/// An event that is complete except for its link to a file. Dropping it frees its slot.
#[derive(Debug)]
pub struct Planned {
    pub(in crate::attach) attached: Attached,
    /// The event's name, for errors.
    pub(in crate::attach) name: String,
    /// The cookie of its link.
    pub(in crate::attach) cookie: u64,
}

/// An event that is turned off and still linked. [`crate::attach::Session::resume`] turns it on again. Dropping it closes its
/// link in this thread, for which the kernel may wait for all CPUs.
#[derive(Debug)]
pub struct Parked(pub(in crate::attach) Attached);

impl Attached {
    /// An event without a link yet.
    pub(in crate::attach) fn new(via: AttachPoint, dispatch: Dispatch, program: Arc<LoadedProgram>) -> Self {
        Self {
            link: Link::None,
            entry: None,
            gate: None,
            companions: Companions::default(),
            program,
            via,
            dispatch,
            lease: None,
        }
    }

    /// Row of the counters, and word of the switches; `None` for what counts nothing.
    pub fn slot(&self) -> Option<Slot> {
        self.lease.as_ref().map(|lease| lease.slot())
    }

    /// The hook.
    pub fn via(&self) -> &AttachPoint {
        &self.via
    }

    /// Hits of the hook since it was attached, including threads that are not traced. 0 without a gate that counts them.
    pub fn hits(&self) -> u64 {
        self.gate.as_ref().map_or(0, OwnGate::hits)
    }

    /// Hits for which the kernel ran no program: another program of the same sort was running on that CPU, or more calls were in
    /// progress than the kernel tracks to their returns. 0 behind a gate that events share.
    pub fn missed(&self) -> u64 {
        match (&self.gate, self.dispatch) {
            (Some(gate), _) => gate.missed().saturating_add(self.link.missed()),
            (None, Dispatch::Direct) => entry::missed(&self.program.program),
            (None, Dispatch::Table | Dispatch::Gate) => 0,
        }
    }

    /// Runs a record of user space through a program without a hook. Returns what its triggers ask for
    /// ([`tracer_abi::asked`]).
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn run(&self, record: &[u8], writer: &Writer) -> Result<u64, AttachError> {
        inject::run(&self.program.program, record, writer)
            .map_err(|cause| AttachError::new("a record of user space", cause))
    }

    /// Sets the program, in place of the old one if there is one. If this fails, the old program stays.
    pub(in crate::attach) fn set_program(&mut self, program: Arc<LoadedProgram>) -> Result<(), Cause> {
        match (&mut self.entry, &self.via) {
            (Some(entry), _) => entry.set(&program.program)?,
            (None, AttachPoint::Inject) => {}
            (None, _) => return Err(Cause::Misplaced("a program that is attached itself stays")),
        }
        self.program = program;
        Ok(())
    }

    /// The program that is to be linked to the hook.
    pub(in crate::attach) fn linked_program(&self) -> &Prog {
        self.gate.as_ref().map_or(&self.program.program, OwnGate::program)
    }

    /// Turns the event off, at once and on all CPUs.
    pub fn park(mut self) -> Parked {
        self.stop();
        Parked(self)
    }

    fn stop(&mut self) {
        match &mut self.entry {
            Some(entry) => entry.clear(),
            None => self.link = Link::None,
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop();
        if self.dispatch == Dispatch::Gate && self.link.has_perf_event() {
            let link = std::mem::replace(&mut self.link, Link::None);
            unlink::close_later((link, self.gate.take(), self.lease.take()));
        }
    }
}

impl Planned {
    /// Row of the counters.
    pub fn slot(&self) -> Option<Slot> {
        self.attached.slot()
    }
}

impl Parked {
    /// The hook.
    pub fn via(&self) -> &AttachPoint {
        &self.0.via
    }

    /// Detaches the event. For a perf tracepoint, returns the link and the event, which the caller closes in this order.
    fn take_apart(mut self) -> Option<[OwnedFd; 2]> {
        if !matches!(self.0.via, AttachPoint::Tracepoint(_)) {
            return None;
        }
        match std::mem::replace(&mut self.0.link, Link::None) {
            Link::Perf { link, event, .. } => Some([link, event]),
            _ => None,
        }
    }
}

/// Detaches events: no program stays attached. Returns the perf events, which do nothing any more.
pub fn detach_all(parked: impl IntoIterator<Item = Parked>) -> Vec<OwnedFd> {
    let (links, events): (Vec<OwnedFd>, Vec<OwnedFd>) =
        parked.into_iter().filter_map(Parked::take_apart).map(|[link, event]| (link, event)).unzip();
    close_links(links);
    events
}

impl Guarded for Attached {
    fn unguarded(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.link {
            Link::Perf { link, event, kept: None }
                if matches!((self.dispatch, &self.via), (Dispatch::Table, AttachPoint::Tracepoint(_))) =>
            {
                Some([link.as_fd(), event.as_fd()])
            }
            _ => None,
        }
    }

    fn set_kept(&mut self, by: Kept) {
        if let Link::Perf { kept, .. } = &mut self.link {
            *kept = Some(by);
        }
    }
}

/// Has the guard process hold the perf tracepoints among these too.
pub fn guard_events<'a>(guard: &Arc<Guard>, attached: impl Iterator<Item = &'a mut Attached>) {
    guard::guard(guard, attached);
}
