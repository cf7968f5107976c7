//! The life cycle of everything that is attached: attach, replace, park, resume, detach.
//!
//! - **Attach** loads a program and makes its link ([`crate::attach::Session::attach`]). Links to files can block
//!   without a limit, so they can be made by another thread ([`Planned`]).
//! - **Replace** exchanges the program by one word: every hit runs either the old program or the new one, exactly once.
//! - **Park** removes the program, by one word too, and leaves the link. Closing a link is slow, and a disabled event
//!   is often enabled again soon.
//! - **Resume** sets a program again.
//! - **Detach** is the drop of an [`Attached`] or [`Parked`]. The link closes first, then the objects that it refers
//!   to, and the slot is free last: when no program runs at the old hook.
//!
//! A program can be replaced if hits reach it through an [`Entry`] or a place in a chain, or if it has no hook.
//! [`Attached::set_program`] is the one place that checks this.

use std::{os::fd::OwnedFd, sync::Arc};

use super::{
    chain::{ChainPlace, LeftPoint, close_together},
    entry::{self, Entry, OwnGate},
};
use crate::{
    attach::{
        AttachError, AttachPoint, Cause,
        close::{links::close_links, perf_event::PerfEvent, unlink},
        hooks::call_pages::PageLease,
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

/// An attached event, probe, relay or histogram. Dropping it detaches it: hits stop at once. Background threads close
/// the link and the perf event of a kernel probe with its own gate, and the link of a chain that has no consumer left
/// ([`closed_since`](crate::attach::closed_since)). They then free the slot.
#[derive(Debug)]
pub struct Attached {
    // In the order of closing.
    pub(crate) link: Link,
    /// The chain of a tracepoint, which has the link.
    pub(crate) chain: Option<ChainPlace>,
    pub(crate) entry: Option<Entry>,
    pub(crate) gate: Option<OwnGate>,
    pub(crate) companions: Companions,
    /// The user memory of a system call that is made present for it.
    pub(crate) pages: Option<PageLease>,
    /// An array references its program; this keeps the program's memory, and a program without a hook.
    pub(crate) program: Arc<LoadedProgram>,
    pub(crate) point: AttachPoint,
    pub(crate) dispatch: Dispatch,
    pub(crate) lease: Option<Arc<SlotLease>>,
}

/// An event that is complete except for its link to a file. Dropping it frees its slot.
#[derive(Debug)]
pub struct Planned {
    pub(crate) attached: Attached,
    pub(crate) name: String,
    pub(crate) cookie: u64,
}

/// A disabled event that is still linked. [`crate::attach::Session::resume`] enables it again. Dropping it detaches it,
/// as for an [`Attached`]. [`detach_parked`] drops many.
#[derive(Debug)]
pub struct Parked(pub(crate) Attached);

impl Attached {
    /// An event without a link yet.
    pub(crate) fn new(point: AttachPoint, dispatch: Dispatch, program: Arc<LoadedProgram>) -> Self {
        Self {
            link: Link::None,
            chain: None,
            entry: None,
            gate: None,
            companions: Companions::default(),
            pages: None,
            program,
            point,
            dispatch,
            lease: None,
        }
    }

    /// Row of the counters, and word of the switches. `None` if the program counts nothing.
    pub fn slot(&self) -> Option<Slot> {
        self.lease.as_ref().map(|lease| lease.slot())
    }

    /// The hook.
    pub fn point(&self) -> &AttachPoint {
        &self.point
    }

    /// Hits of the hook since it was attached, including threads that are not traced. 0 without a gate that counts
    /// them.
    pub fn hits(&self) -> u64 {
        self.gate.as_ref().map_or(0, OwnGate::hits)
    }

    /// Hits for which the kernel ran no program: another program of the same sort was running on that CPU, or more
    /// calls were in progress than the kernel tracks to their returns. 0 behind a gate that events share.
    pub fn missed(&self) -> u64 {
        if let Some(chain) = &self.chain {
            return chain.missed();
        }
        if let Link::Call { place } = &self.link {
            return place.missed();
        }
        match (&self.gate, self.dispatch) {
            (Some(gate), _) => gate.missed().saturating_add(self.link.missed()),
            (None, Dispatch::Direct) => entry::missed(&self.program.program),
            (None, Dispatch::Table | Dispatch::Gate) => 0,
        }
    }

    /// Runs a record from user space through a program without a hook. Returns the requests of its triggers
    /// ([`tracer_abi::requested`]).
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn run(&self, record: &[u8], writer: &Writer) -> Result<u64, AttachError> {
        inject::run(&self.program.program, record, writer)
            .map_err(|cause| AttachError::new("a record of user space", cause))
    }

    /// Sets the program, in place of the old one if there is one. If this fails, the old program stays.
    pub(crate) fn set_program(&mut self, program: Arc<LoadedProgram>) -> Result<(), Cause> {
        match (&mut self.entry, &self.chain, &self.point) {
            (Some(entry), ..) => entry.set(&program.program)?,
            (None, Some(chain), _) => chain.set(Arc::clone(&program.program))?,
            (None, None, AttachPoint::Inject) => {}
            (None, None, _) => return Err(Cause::Misplaced("a program that is attached itself stays")),
        }
        self.program = program;
        Ok(())
    }

    /// The program to link to the hook: the event's own gate, or else the program itself.
    pub(crate) fn linked_program(&self) -> &Arc<Prog> {
        self.gate.as_ref().map_or(&self.program.program, OwnGate::program)
    }

    /// Disables the event, at once and on all CPUs. Keeps its link, unless the program itself is attached.
    pub fn park(mut self) -> Parked {
        self.stop();
        Parked(self)
    }

    /// Detaches the event. Returns its own perf event, which has no effect any more.
    fn into_event(mut self) -> Option<OwnedFd> {
        std::mem::replace(&mut self.link, Link::None).into_event()
    }

    fn stop(&mut self) {
        match (&self.chain, &mut self.entry) {
            (Some(chain), _) => chain.clear(),
            (None, Some(entry)) => entry.clear(),
            (None, None) => self.link = Link::None,
        }
        self.pages = None;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop();
        if let Some(left) = self.chain.take().and_then(|chain| chain.leave()) {
            unlink::close_later((left, self.gate.take(), self.lease.take()));
        }
        if self.dispatch == Dispatch::Gate
            && let Some([link, event]) = self.link.take_perf()
        {
            unlink::close_probe(link, event, (self.gate.take(), self.lease.take()));
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
    pub fn point(&self) -> &AttachPoint {
        &self.0.point
    }

    /// Whether a link closes if the event is detached and its hook has no other consumer: a link for whose close the
    /// kernel waits, and to which [`Pace`](crate::attach::Pace) applies.
    pub fn has_perf_link(&self) -> bool {
        matches!(
            self.0.point,
            AttachPoint::Tracepoint(_)
                | AttachPoint::CallTracepoint(_)
                | AttachPoint::Kprobe(_)
                | AttachPoint::Kretprobe(_)
        )
    }

    /// Detaches the event. For a perf tracepoint that is not left to the guard and has no other consumer, returns the
    /// link and the event, which the caller closes in this order.
    fn take_apart(mut self) -> Option<[OwnedFd; 2]> {
        self.0.chain.take().and_then(|chain| chain.leave())?.into_perf()
    }
}

/// Detaches parked events. Returns when no hit runs a program of those at tracepoints, which frees their slots: the
/// links of tracepoints without another consumer are closed in parallel, because the kernel waits for all CPUs at each.
/// Perf events without a link have no effect. A thread closes them one by one, and until then they can be used again.
/// Background threads close the links of probes.
pub fn detach_parked(mut parked: Vec<Parked>) {
    let chains = parked.iter_mut().filter_map(|Parked(attached)| attached.chain.take());
    let mut left: Vec<LeftPoint> = chains.filter_map(|chain| chain.leave()).collect();
    close_together(&mut left);
}

/// Detaches events for good. Their perf events are closed while no tracer opens any, which can take seconds.
pub fn detach_late(attachments: Vec<Attached>) {
    attachments.into_iter().filter_map(Attached::into_event).map(PerfEvent::new).for_each(drop);
}

/// Detaches events: no program stays attached, except gates without a program that are left to the guard
/// ([`Guard::leave`](crate::attach::Guard::leave)). Returns the perf events, which have no effect any more.
pub fn detach_all(parked: impl IntoIterator<Item = Parked>) -> Vec<OwnedFd> {
    let (links, events): (Vec<OwnedFd>, Vec<OwnedFd>) =
        parked.into_iter().filter_map(Parked::take_apart).map(|[link, event]| (link, event)).unzip();
    close_links(links);
    events
}
