//! Attaching events to their hooks, and replacing and resuming their programs.

use std::sync::Arc;

use super::Session;
use crate::{
    attach::{
        AttachError, AttachPoint, Block, Cause, Context, Dispatch, Request,
        attached::{
            chain::{ChainPlace, Chains, Sort},
            entry::OwnGate,
            lifecycle::{Attached, Parked, Planned},
        },
        context,
        hooks::{
            self,
            call_pages::PageLease,
            syscalls::{DispatcherLink, Hooked},
            uprobe::{self, Hooks, Job},
        },
        link::Link,
        maps::SessionMaps,
        program::{builder::UNUSED, companions::Companions},
        slots::SlotLease,
    },
    event::Slot,
};

/// Has the user memory made present that an event at the entry of a system call reads.
fn lease_pages(context: &Context, request: &Request<'_>) -> Option<PageLease> {
    context.pages.as_ref()?.want(request.point.entered_call()?, request.context)
}

impl Session {
    /// Attaches an event.
    ///
    /// # Errors
    /// When the program does not pass the verifier or the kernel refuses the hook. [`Dispatch::Table`] is refused at
    /// hooks that pass neither an attach cookie nor a number.
    pub fn attach(&mut self, request: &Request<'_>, dispatch: Dispatch) -> Result<Attached, AttachError> {
        let named = |cause| request.failed(cause);
        // A chain runs the program also at hits for which the kernel skips its first gate.
        let point = request.point;
        let has_two = dispatch == Dispatch::Direct && !point.is_call() && self.chains.has_two_gates(point);
        let dispatch = if has_two { Dispatch::Table } else { dispatch };
        let mut attached = self.unlinked(request, dispatch)?;
        attached.companions.attach_before(request.point).map_err(named)?;
        self.link(&mut attached, request).map_err(named)?;
        attached.companions.add_prefault(|program| hooks::attach(program, request.point, None));
        #[cfg(feature = "bpf-log")]
        if self.logs.is_none() {
            let id = attached.program.program.info().ok().map(|info| info.id);
            self.logs = id.and_then(super::Logs::of);
        }
        Ok(attached)
    }

    /// Plans an event of a file. The job makes its links, without the session.
    ///
    /// # Errors
    /// As [`Session::attach`], and for an event that is not at a file.
    pub fn plan(&mut self, request: &Request<'_>, dispatch: Dispatch) -> Result<(Planned, Job), AttachError> {
        let name = request.format.full_name();
        let attached = self.unlinked(request, dispatch)?;
        let (place, exit) = match request.point {
            AttachPoint::Uprobe(place) => (place, false),
            AttachPoint::Uretprobe(place) => (place, true),
            _ => return Err(AttachError::new(name, Cause::Misplaced("a link of a file is for files"))),
        };
        let cookie = attached.slot().map_or(0, |slot| request.cookie(slot));
        let links = match dispatch {
            Dispatch::Table => {
                let table = self.tables.table(request.point);
                table.and_then(|table| Ok(vec![table.plan_file(cookie, place)?]))
            }
            Dispatch::Gate | Dispatch::Direct => {
                uprobe::Planned::new(attached.linked_program(), place, exit, 0).map(|link| {
                    // The prefault program's link comes after the probe's own, because the kernel runs the program
                    // attached last first.
                    let prefault = attached.companions.prefault();
                    let prefault =
                        prefault.and_then(|program| uprobe::Planned::new(program, place, exit, 0).ok());
                    std::iter::once(link).chain(prefault).collect()
                })
            }
        };
        let links = links.map_err(|cause| AttachError::new(&name, cause))?;
        let job = Job::new(links, attached.lease.clone());
        Ok((Planned { attached, name, cookie }, job))
    }

    /// Completes an event of a file with its links.
    ///
    /// # Errors
    /// When the first link could not be made.
    pub fn finish(&mut self, planned: Planned, made: Hooks) -> Result<Attached, AttachError> {
        let Planned { mut attached, name, cookie } = planned;
        let link = || {
            let mut made = made?.into_iter();
            let first = made.next().ok_or(Cause::Misplaced("no link"))?;
            if attached.dispatch == Dispatch::Table {
                let table = self.tables.table(&attached.point)?;
                return Ok(Link::File(first.linked(|event| table.link_perf(cookie, event))?));
            }
            let link = uprobe::finish(attached.linked_program(), first)?;
            for hook in made {
                attached.companions.add_prefault(|program| uprobe::finish(program, hook));
            }
            Ok(link)
        };
        let link = link().map_err(|cause| AttachError::new(name, cause))?;
        attached.link = link;
        Ok(attached)
    }

    /// Replaces the program of an event: every hit runs either the old or the new one, exactly once.
    ///
    /// # Errors
    /// When the program does not pass the verifier, the request is for another hook, or the program itself is
    /// attached. The old program stays.
    pub fn replace(&mut self, attached: &mut Attached, request: &Request<'_>) -> Result<(), AttachError> {
        if *request.point != attached.point {
            return Err(request.failed(Cause::Misplaced("a request for another hook")));
        }
        complete_for(&self.maps, request)?;
        let slot = attached.slot().unwrap_or(UNUSED);
        let program = if attached.dispatch == Dispatch::Table {
            self.shared_program(request, slot)?
        } else {
            let known = attached.program.scratch.as_ref();
            Arc::new(self.builder().own(request, slot, known, &attached.companions)?)
        };
        let set = self.set_call_event(request, slot).and_then(|()| attached.set_program(program));
        set.map_err(|cause| request.failed(cause))
    }

    /// Enables a parked event again.
    ///
    /// # Errors
    /// As [`Session::replace`]. The event is then detached.
    pub fn resume(&mut self, parked: Parked, request: &Request<'_>) -> Result<Attached, AttachError> {
        let Parked(mut attached) = parked;
        if let Some(slot) = attached.slot() {
            self.switches().set_soft(slot, request.hit_actions.begins_off);
        }
        attached.pages = lease_pages(&self.context, request);
        self.replace(&mut attached, request)?;
        Ok(attached)
    }

    /// The code that processes the record of an event without a hook in a program that emits the event; the request is
    /// [`AttachPoint::Emitted`].
    ///
    /// # Errors
    /// When no code can be generated, or the kernel refuses a map.
    pub fn block(&self, attached: &Attached, request: &Request<'_>) -> Result<Block, AttachError> {
        debug_assert_eq!(*request.point, AttachPoint::Emitted);
        let slot = attached.slot().unwrap_or(UNUSED);
        let (image, scratch) = self.builder().image(request, slot, None, &Companions::default())?;
        Ok(Block::new(image.insns, image.constants.into_iter().chain(scratch).map(Arc::new).collect()))
    }

    /// Makes an event completely except for its link, and sets its program at its entry.
    pub(crate) fn unlinked(
        &mut self,
        request: &Request<'_>,
        dispatch: Dispatch,
    ) -> Result<Attached, AttachError> {
        let named = |cause| request.failed(cause);
        complete_for(&self.maps, request)?;
        let pages = lease_pages(&self.context, request);
        let chain = self.join(request.point, dispatch).map_err(named)?;
        let lease = self.lease(request, chain.as_ref().filter(|_| dispatch == Dispatch::Table))?;
        let slot = lease.as_ref().map_or(UNUSED, |lease| lease.slot());
        let (companions, program) = match dispatch {
            Dispatch::Table => (Companions::default(), self.shared_program(request, slot)?),
            Dispatch::Direct | Dispatch::Gate => {
                let companions = Companions::load(request).map_err(named)?;
                let program = self.builder().own(request, slot, None, &companions)?;
                (companions, Arc::new(program))
            }
        };
        let mut attached = Attached::new(request.point.clone(), dispatch, program);
        (attached.companions, attached.lease, attached.chain) = (companions, lease, chain);
        attached.pages = pages;
        self.set_entry(&mut attached, request, slot).map_err(named)?;
        let program = &attached.program.program;
        let set = match (&mut attached.entry, &attached.chain) {
            (Some(entry), _) => self.set_call_event(request, slot).and_then(|()| entry.set(program)),
            (None, Some(chain)) => chain.set(Arc::clone(program)),
            (None, None) => Ok(()),
        };
        set.map_err(named)?;
        Ok(attached)
    }

    /// A row of the counters, cleared. `None` if the program records nothing, and so needs no counters. With the
    /// `chain` of a perf tracepoint, all sessions use the same slot, which the programs take from the attach cookie.
    fn lease(
        &self,
        request: &Request<'_>,
        chain: Option<&ChainPlace>,
    ) -> Result<Option<Arc<SlotLease>>, AttachError> {
        if request.hit_actions.no_record {
            return Ok(None);
        }
        let all_used = || AttachError::new("counters", Cause::TooMany(self.maps.options().slots));
        let lease = match (chain, request.point) {
            (Some(chain), AttachPoint::Tracepoint(_) | AttachPoint::CallTracepoint(_))
                if self.slots.leave_above(chain.lease().slot()) =>
            {
                Arc::clone(chain.lease())
            }
            (Some(_), AttachPoint::Tracepoint(_) | AttachPoint::CallTracepoint(_)) => return Err(all_used()),
            _ => self.slots.take().ok_or_else(all_used)?,
        };
        self.maps.counters().clear(lease.slot());
        if request.hit_actions.soft_slot.is_none() {
            self.switches().set_soft(lease.slot(), request.hit_actions.begins_off);
        }
        Ok(Some(lease))
    }

    /// Sets the event's own gate or its dispatcher, if it has one, and the entry through which hits reach its program.
    fn set_entry(&mut self, attached: &mut Attached, request: &Request<'_>, slot: Slot) -> Result<(), Cause> {
        let point = request.point;
        match (attached.dispatch, point, point.call()) {
            (Dispatch::Direct | Dispatch::Table, _, Some((enter, number))) => {
                let dispatcher = self.calls.get(enter, &self.dispatcher_link(Sort::Event))?;
                attached.entry = Some(dispatcher.entry(number));
                attached.link = Link::Dispatcher { _dispatcher: dispatcher };
            }
            // The chain of a tracepoint has gate and entry.
            (Dispatch::Direct, ..)
            | (_, AttachPoint::Inject, _)
            | (
                Dispatch::Table,
                AttachPoint::RawTracepoint(_) | AttachPoint::Tracepoint(_) | AttachPoint::CallTracepoint(_),
                _,
            ) => {}
            (Dispatch::Gate, _, Some(_)) => return Err(Cause::Misplaced("system calls have a dispatcher")),
            (Dispatch::Gate, ..) => {
                let (gate, entry) = OwnGate::new(point.kind(), request.purpose(), true, "tracer_probe")?;
                (attached.gate, attached.entry) = (Some(gate), Some(entry));
            }
            (
                Dispatch::Table,
                AttachPoint::Uprobe(_) | AttachPoint::Shared { .. } | AttachPoint::SharedExit(_),
                _,
            ) => {
                attached.entry = Some(self.tables.table(point)?.entry(slot));
            }
            (Dispatch::Table, ..) => return Err(Cause::Misplaced("no gate is for such a hook")),
        }
        Ok(())
    }

    /// How a dispatcher of system calls is attached. A session that shares no chains saves a tail call, where the kernel
    /// does not preempt programs.
    pub(crate) fn dispatcher_link(&self, sort: Sort) -> DispatcherLink {
        let is_preempted =
            self.chains.has_two_gates(&AttachPoint::RawTracepoint(context::CALLS[0].to_owned()));
        if self.is_alone && !is_preempted {
            return DispatcherLink::alone(Arc::clone(&self.ended), self.context.pages.clone());
        }
        let (chains, rank, ended) = (self.chains.clone(), self.rank(sort), Arc::clone(&self.ended));
        DispatcherLink::in_chain(rank.session, move |dispatcher, tracepoint| {
            let point = AttachPoint::RawTracepoint(tracepoint.to_owned());
            let place = chains.join(&point, rank, &ended)?;
            place.set(Arc::clone(dispatcher))?;
            place.connect(None, false)?;
            Ok::<Box<dyn Hooked>, _>(Box::new(place))
        })
    }

    /// Stores the event of a system call in the table that shared programs read.
    fn set_call_event(&self, request: &Request<'_>, slot: Slot) -> Result<(), Cause> {
        match request.point.call() {
            Some((enter, number)) => self.maps.set_call(enter, number, request.cookie(slot)),
            None => Ok(()),
        }
    }

    fn link(&mut self, attached: &mut Attached, request: &Request<'_>) -> Result<(), Cause> {
        let point = request.point;
        match (attached.dispatch, point) {
            _ if point.is_call() => {}
            (Dispatch::Table, AttachPoint::Uprobe(place)) => {
                let cookie = attached.slot().map_or(0, |slot| request.cookie(slot));
                let table = self.tables.table(point)?;
                let hook = table.plan_file(cookie, place)?.make()?;
                let hook = hook.linked(|event| table.link_perf(cookie, event))?;
                attached.link = Link::File(hook.keep(attached.lease.clone()));
            }
            _ => self.connect(attached)?,
        }
        Ok(())
    }

    /// Links the program of an event, or its gate, to a hook. At a tracepoint with a chain, the chain has the link.
    pub(crate) fn connect(&mut self, attached: &mut Attached) -> Result<(), Cause> {
        let opened = self.opened.take(&attached.point);
        let Some(chain) = &attached.chain else {
            let is_call = matches!(attached.point, AttachPoint::SysEnterAlone(_));
            let pages = self.context.pages.as_ref().filter(|_| is_call).and_then(|pages| pages.attach());
            let link = hooks::attach(attached.linked_program(), &attached.point, opened)?;
            attached.link = link.after(pages);
            return Ok(());
        };
        if let Some(gate) = &attached.gate {
            chain.set(Arc::clone(gate.program()))?;
        }
        // Programs that were made ahead show that many events are being attached. These share a gate.
        chain.connect(opened, !self.prepared.is_empty())
    }

    /// Joins the chain of a tracepoint. `None` at other hooks, and for a program that is attached directly.
    pub(crate) fn join(&self, point: &AttachPoint, dispatch: Dispatch) -> Result<Option<ChainPlace>, Cause> {
        if !Chains::takes(point) {
            return Ok(None);
        }
        match dispatch {
            Dispatch::Direct => Ok(None),
            Dispatch::Table => self.chains.join(point, self.rank(Sort::Event), &self.ended).map(Some),
            // An event probe counts its missed hits itself.
            Dispatch::Gate => self.chains.join(point, self.rank(Sort::Trigger), &Arc::default()).map(Some),
        }
    }
}

/// Waits until the triggers of an event can request snapshots, if it has triggers.
fn complete_for(maps: &SessionMaps, request: &Request<'_>) -> Result<(), AttachError> {
    if request.hit_actions.triggers.is_empty() {
        return Ok(());
    }
    maps.complete().map_err(|cause| request.failed(cause))
}
