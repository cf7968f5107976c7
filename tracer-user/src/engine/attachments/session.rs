//! What of an instance is in the kernel: its session, and the events that hang on their hooks.
//!
//! It is made when the first event is turned on. Events hang behind a gate, so that each can change and go while it
//! fires; one that was turned off rests on its hook for a while.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
};

use tracer_abi::Counters;

pub(in crate::engine) use crate::engine::attachments::probes::AttachedProbes;
use crate::{
    attach::{
        self, AttachError, AttachPoint, Attached, Block, Calls, Cause, Context, Dispatch, Guard, HitActions,
        Hooks, Job, Planned, Request, Session, Threads, Writer, ids,
    },
    engine::{
        attachments::deferred_close::DeferredClose,
        facts::Facts,
        hooks::{self, AttachPlan},
        probes::Candidate,
        recorder,
        records::record_intake::Taken,
    },
    event::{EventId, Format, Slot},
    plan::{
        filter::Filter,
        source::ProgramContext,
        trigger::{self, Trigger},
    },
    sys::bpf::ring::{RingMemory, Seen},
};

/// Bytes of a CPU's BPF ring buffer: what may come between two visits of the reader.
const RING_BYTES: u32 = 2 << 20;
/// Events that an instance can have on at once.
const SLOTS: u32 = 8192;

/// An instance's part in the kernel.
#[derive(Debug)]
pub(in crate::engine) struct InstanceSession {
    session: Session,
    pub(in crate::engine) rings: Vec<RingMemory>,
    /// Records out of the rings that are not in the buffers yet: as they came, and in order.
    pub(in crate::engine) taken: Vec<Taken>,
    pub(in crate::engine) ordered: VecDeque<Taken>,
    /// How often records were waited for that are to be put in order with those.
    pub(in crate::engine) settling: u32,
    attached: HashMap<EventId, (Attached, AttachPlan)>,
    /// Dynamic events.
    probes: HashMap<EventId, AttachedProbes>,
    /// Dynamic events that were hung up together and are about to be turned on.
    pub(in crate::engine) together: HashMap<EventId, (Attached, Candidate)>,
    /// Probes of files that are linked, for [`InstanceSession::attach_probes`].
    pub(in crate::engine) linked: HashMap<EventId, AttachedProbes>,
    /// Synthetic events and probes on events that have no hook, and how their values are had.
    emitted: HashMap<EventId, (Attached, ProgramContext)>,
    /// What hands the records of dynamic events to what follows them.
    pub(in crate::engine) relays: HashMap<EventId, Vec<(Attached, Candidate)>>,
    /// Events that are off and in soft mode for what has programs of its own: they have none.
    idle: BTreeSet<EventId>,
    /// Programs that records written to `inject` go through, made when they are needed.
    injected: HashMap<EventId, Attached>,
    /// Runs the triggers of `trace_marker`, where there are any.
    marker: Option<Attached>,
    rest: DeferredClose,
    /// By CPU: the counts of events that are off by now, and how many hits that found the ring full were told of.
    gone: Vec<Counters>,
    told: Vec<u64>,
}

/// What programs can learn of their context, found once.
#[derive(Debug)]
pub(in crate::engine) struct SessionFactory {
    context: Context,
    own: ids::Ids,
    calls: Option<Calls>,
}

impl SessionFactory {
    /// Finds them.
    pub(in crate::engine) fn find(facts: &Facts) -> Result<Self, AttachError> {
        let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
        let context = recorder::context(facts);
        let calls = context.registers.map(|registers| Calls::new(registers, context.cast));
        Ok(Self { context, own, calls })
    }

    /// Where histograms on system calls have their places.
    pub(in crate::engine) fn calls(&self) -> Option<&Calls> {
        self.calls.as_ref()
    }

    /// A session with its rings.
    pub(in crate::engine) fn session(
        &self,
        ring_bytes: u32,
        slots: u32,
        facts: &Facts,
    ) -> Result<(Session, Vec<RingMemory>), AttachError> {
        let sizes = attach::Options {
            ring_bytes,
            watermark: ring_bytes / 2,
            cpus: facts.cpus(),
            slots,
            pid_gate: false,
            pid_lists: true,
            own_tgid: self.own.process,
            trace_own: false,
        };
        Session::new(&sizes, self.context.clone())
    }
}

impl InstanceSession {
    /// Makes the session; nothing is traced yet.
    pub(in crate::engine) fn new(grounds: &SessionFactory, facts: &Facts) -> Result<Self, AttachError> {
        let (session, rings) = grounds.session(RING_BYTES, SLOTS, facts)?;
        let cpus = rings.len();
        Ok(Self {
            session,
            rings,
            taken: Vec::new(),
            ordered: VecDeque::new(),
            settling: 0,
            attached: HashMap::new(),
            probes: HashMap::new(),
            together: HashMap::new(),
            linked: HashMap::new(),
            emitted: HashMap::new(),
            relays: HashMap::new(),
            idle: BTreeSet::new(),
            injected: HashMap::new(),
            marker: None,
            rest: DeferredClose::default(),
            gone: vec![Counters::default(); cpus],
            told: vec![0; cpus],
        })
    }

    /// The session.
    pub(in crate::engine) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The session, to be asked.
    pub(in crate::engine) fn asked(&self) -> &Session {
        &self.session
    }

    /// The slot of an event that hangs on its hook.
    pub(in crate::engine) fn slot(&self, event: EventId) -> Option<Slot> {
        let attached = self.attached.get(&event).and_then(|(attached, _)| attached.slot());
        // What turns an event on and off is said at the slot of its first probe.
        let attached = attached.or_else(|| self.probes.get(&event)?.slots().next());
        attached.or_else(|| self.emitted.get(&event)?.0.slot())
    }

    /// Whether an event is off and still hangs on its hook.
    pub(in crate::engine) fn rests(&self, event: EventId) -> bool {
        self.rest.has(event)
    }

    /// Whether an event that hangs on its hook is turned off by a trigger, or as one would do it.
    pub(in crate::engine) fn is_soft_off(&self, event: EventId) -> bool {
        self.is_idle(event) || self.slot(event).is_some_and(|slot| self.session.switches().soft(slot))
    }

    /// Whether an event is off and has no program, although it counts as one that hangs.
    pub(in crate::engine) fn is_idle(&self, event: EventId) -> bool {
        self.idle.contains(&event)
    }

    /// Takes the program of an event away that is off and counts as one that hangs.
    pub(in crate::engine) fn idle_at(&mut self, event: EventId) {
        self.detach([event]);
        self.idle.insert(event);
    }

    /// Turns an event that hangs on its hook off or on as a trigger would do it.
    pub(in crate::engine) fn set_soft_off(&self, event: EventId, off: bool) {
        if let Some(slot) = self.slot(event) {
            self.session.switches().set_soft(slot, off);
        }
    }

    /// Hangs an event on its hook or, where the kernel takes no program there, on its perf tracepoint.
    pub(in crate::engine) fn attach_hook(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        wanted: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        if self.attached.contains_key(&event) {
            return Ok(());
        }
        self.attach_at(event, chosen, wanted)
    }

    /// Plans how an event hangs at a file; nothing for another one, and for one that rests there.
    pub(in crate::engine) fn plan_attach(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        wanted: &EventConfig<'_>,
    ) -> Result<Option<(Planned, Job)>, AttachError> {
        let is_there = self.attached.contains_key(&event) || self.rest.has(event);
        if is_there || !matches!(chosen.via, AttachPoint::Uprobe(_)) {
            return Ok(None);
        }
        self.session.plan(&wanted.request(&chosen.via, &chosen.hook), Dispatch::Table).map(Some)
    }

    /// Takes it up once its link is made; [`InstanceSession::attach_hook`] finds it there.
    pub(in crate::engine) fn finish_attach(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        planned: Planned,
        made: Hooks,
    ) -> Result<(), AttachError> {
        let attached = self.session.finish(planned, made)?;
        self.attached.insert(event, (attached, chosen.clone()));
        self.idle.remove(&event);
        self.drop_injected(event);
        Ok(())
    }

    fn attach_at(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        wanted: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let request = wanted.request(&chosen.via, &chosen.hook);
        let attached = match self.rest.take(event).filter(|resting| *resting.via() == chosen.via) {
            Some(resting) => {
                let attached = self.session.resume(resting, &request)?;
                if let Some(slot) = attached.slot() {
                    for (cpu, gone) in (0..).zip(&mut self.gone) {
                        *gone = gone.minus(self.session.counters().of(slot, cpu));
                    }
                }
                attached
            }
            None => self.session.attach(&request, Dispatch::Table)?,
        };
        self.attached.insert(event, (attached, chosen.clone()));
        self.idle.remove(&event);
        self.drop_injected(event);
        Ok(())
    }

    /// Changes what becomes of the hits of an event that hangs on its hook.
    pub(in crate::engine) fn change(
        &mut self,
        event: EventId,
        wanted: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        self.drop_injected(event);
        if self.probes.contains_key(&event) {
            return self.change_probes(event, wanted);
        }
        if let Some((on, hook)) = self.emitted.get_mut(&event) {
            return self.session.replace(on, &emitted(wanted, &AttachPoint::Inject, hook));
        }
        // It stays on its hook: a raw tracepoint has every value that a filter or trigger can ask for, and a program that the
        // kernel refuses leaves the old one in place.
        let Some((attached, chosen)) = self.attached.get_mut(&event) else { return Ok(()) };
        self.session.replace(attached, &wanted.request(&chosen.via, &chosen.hook))
    }

    /// Turns an event on that has no hook.
    pub(in crate::engine) fn attach_emitted(
        &mut self,
        event: EventId,
        hook: ProgramContext,
        wanted: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        if !self.emitted.contains_key(&event) {
            let on = self.session.attach(&emitted(wanted, &AttachPoint::Inject, &hook), Dispatch::Direct)?;
            self.emitted.insert(event, (on, hook));
            self.drop_injected(event);
        }
        Ok(())
    }

    /// What a program does here with a record of such an event, or of the one that it sits on; nothing where the event is not
    /// on.
    pub(in crate::engine) fn emitted_block(
        &self,
        event: EventId,
        wanted: &EventConfig<'_>,
    ) -> Result<Option<Block>, AttachError> {
        let on = self.emitted.get(&event);
        on.map(|(on, hook)| self.session.block(on, &emitted(wanted, &AttachPoint::Emitted, hook))).transpose()
    }

    /// Hands a record of user space to an event without a hook, if it is on; what its triggers ask for.
    pub(in crate::engine) fn emit(
        &self,
        event: EventId,
        record: &[u8],
        writer: &Writer,
    ) -> Result<u64, AttachError> {
        self.emitted.get(&event).map_or(Ok(0), |(on, _)| on.run(record, writer))
    }

    /// Takes a record written to an event's `inject`; what its triggers ask for. Those that do not look at records do not
    /// run where none does.
    pub(in crate::engine) fn inject(
        &mut self,
        event: EventId,
        wanted: &EventConfig<'_>,
        record: &[u8],
        writer: &Writer,
    ) -> Result<u64, AttachError> {
        if !self.injected.contains_key(&event) {
            let triggers =
                if wanted.counted || trigger::sees_record(wanted.triggers) { wanted.triggers } else { &[] };
            let wanted = EventConfig { triggers, begins_off: false, ..*wanted };
            let mut request = emitted(&wanted, &AttachPoint::Inject, &ProgramContext::Inject);
            request.extras.soft_slot = self.slot(event);
            request.extras.soft &= request.extras.soft_slot.is_some();
            let on = self.session.attach(&request, Dispatch::Direct)?;
            self.injected.insert(event, on);
        }
        self.injected.get(&event).map_or(Ok(0), |on| on.run(record, writer))
    }

    /// Forgets the program of an event's `inject`: another one is right by now.
    fn drop_injected(&mut self, event: EventId) {
        if let Some(on) = self.injected.remove(&event) {
            self.note_dropped(on.slot());
        }
    }

    /// Sets what runs the triggers of `trace_marker`, or takes it away.
    pub(in crate::engine) fn set_marker(
        &mut self,
        wanted: Option<&EventConfig<'_>>,
    ) -> Result<(), AttachError> {
        let marker = match wanted {
            Some(wanted) => {
                let mut request = wanted.request(&AttachPoint::Inject, &ProgramContext::Inject);
                request.extras.no_record = true;
                Some(self.session.attach(&request, Dispatch::Direct)?)
            }
            None => None,
        };
        self.marker = marker;
        Ok(())
    }

    /// Runs the triggers of `trace_marker` on a record; what they ask for.
    pub(in crate::engine) fn marked(&self, record: &[u8], writer: &Writer) -> Result<u64, AttachError> {
        self.marker.as_ref().map_or(Ok(0), |marker| marker.run(record, writer))
    }

    /// Turns events off, at once.
    pub(in crate::engine) fn detach(&mut self, events: impl IntoIterator<Item = EventId>) {
        let mut resting = Vec::new();
        for event in events {
            self.drop_injected(event);
            self.idle.remove(&event);
            if let Some(probes) = self.probes.remove(&event) {
                self.note_dropped(probes.slots());
                continue;
            }
            if let Some((on, _)) = self.emitted.remove(&event) {
                self.note_dropped(on.slot());
                continue;
            }
            let Some((attached, _)) = self.attached.remove(&event) else { continue };
            let slot = attached.slot();
            resting.push((event, attached.park()));
            self.note_dropped(slot);
        }
        self.rest.add(resting);
    }

    /// Has perf tracepoints guarded that are not.
    pub(in crate::engine) fn guard(&mut self, guard: &Arc<Guard>) {
        crate::attach::guard_events(guard, self.attached.values_mut().map(|(attached, _)| attached));
    }

    /// Takes all events off their hooks; what is left to be closed ([`attach::detach_all`]).
    pub(in crate::engine) fn end(mut self) -> Vec<OwnedFd> {
        let all: Vec<EventId> = self.attached.keys().chain(self.probes.keys()).copied().collect();
        self.detach(all);
        attach::detach_all(self.rest.end())
    }

    /// Forgets an event that is gone.
    pub(in crate::engine) fn forget(&mut self, event: EventId) {
        self.detach([event]);
        // What rests would be taken for the event again.
        drop(self.rest.take(event));
    }

    /// Throws away what was recorded and not collected.
    pub(in crate::engine) fn discard(&mut self) {
        self.taken.clear();
        self.ordered.clear();
        for ring in &mut self.rings {
            ring.drain(|_| Seen::Taken);
        }
    }

    /// Remembers the losses of rows that others get.
    fn note_dropped(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            for (cpu, gone) in (0..).zip(&mut self.gone) {
                *gone = gone.plus(self.session.counters().of(slot, cpu));
            }
        }
    }

    /// A dynamic event's probes.
    pub(in crate::engine) fn probes(&self, event: EventId) -> Option<&AttachedProbes> {
        self.probes.get(&event)
    }

    pub(in crate::engine) fn take_probes(&mut self, event: EventId) -> Option<AttachedProbes> {
        self.probes.remove(&event)
    }

    pub(in crate::engine) fn put_probes(&mut self, event: EventId, probes: AttachedProbes) {
        self.drop_injected(event);
        self.probes.insert(event, probes);
    }

    /// Hits for which the kernel ran no program.
    pub(in crate::engine) fn missed(&self) -> u64 {
        self.session.missed() + self.attached.values().map(|(attached, _)| attached.missed()).sum::<u64>()
    }

    /// The counts of all events on a CPU, those that are off by now included.
    pub(in crate::engine) fn counts(&self, cpu: u32) -> Counters {
        let slots = self.attached.values().filter_map(|(attached, _)| attached.slot());
        let slots = slots.chain(self.probes.values().flat_map(AttachedProbes::slots));
        let slots = slots.chain(self.emitted.values().filter_map(|(on, _)| on.slot()));
        let slots = slots.chain(self.injected.values().filter_map(Attached::slot));
        let gone = self.gone.get(cpu as usize).copied().unwrap_or_default();
        slots.map(|slot| self.session.counters().of(slot, cpu)).fold(gone, Counters::plus)
    }

    /// Hits on a CPU that found the ring full since the last call.
    pub(in crate::engine) fn newly_dropped(&mut self, cpu: u32) -> u64 {
        let all = self.counts(cpu).dropped;
        let told = self.told.get_mut(cpu as usize).map_or(all, |told| std::mem::replace(told, all));
        all.saturating_sub(told)
    }
}

impl Drop for InstanceSession {
    fn drop(&mut self) {
        let all: Vec<EventId> =
            self.attached.keys().chain(self.probes.keys()).chain(self.emitted.keys()).copied().collect();
        self.detach(all);
    }
}

/// What is to become of an event's hits.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct EventConfig<'a> {
    pub(in crate::engine) format: &'a Format,
    pub(in crate::engine) filter: Option<&'a Filter>,
    pub(in crate::engine) triggers: &'a [Trigger],
    /// Whether triggers turn the event on and off.
    pub(in crate::engine) soft: bool,
    /// Whether histograms stand behind its triggers.
    pub(in crate::engine) counted: bool,
    /// Whether it is turned off in that sense when it comes to hang on its hook.
    pub(in crate::engine) begins_off: bool,
    /// Whether records are followed by the kernel's stack and by the thread's own.
    pub(in crate::engine) stacks: [bool; 2],
    /// Kinds of these records.
    pub(in crate::engine) kinds: [u16; 2],
}

impl<'a> EventConfig<'a> {
    /// What is asked of the session.
    pub(in crate::engine) fn request<'b>(&self, via: &'b AttachPoint, hook: &'b ProgramContext) -> Request<'b>
    where
        'a: 'b,
    {
        Request {
            format: self.format,
            hook,
            via,
            filter: self.filter,
            irqs_off: hooks::irqs_off(self.format),
            kind: self.format.id,
            threads: Threads::Traced,
            other: hooks::other(self.format, hook),
            extras: HitActions {
                triggers: self.triggers,
                soft: self.soft,
                soft_slot: None,
                begins_off: self.begins_off,
                kernel_stack: self.stacks[0],
                user_stack: self.stacks[1],
                stacks: self.kinds,
                no_record: false,
                shared_row: false,
                counted: self.counted,
            },
        }
    }
}

/// What is asked of the session for an event without a hook.
fn emitted<'a>(wanted: &EventConfig<'a>, via: &'a AttachPoint, hook: &'a ProgramContext) -> Request<'a> {
    let mut request = wanted.request(via, hook);
    request.other = None;
    request.extras.shared_row = true;
    request
}

/// Tells what the kernel refused, and with which number the command fails.
pub(in crate::engine) fn log_to_errno(error: &AttachError) -> rustix::io::Errno {
    tracing::warn!("{error}");
    errno(error)
}

/// The number that a refusal of the kernel's is told with.
pub(in crate::engine) fn errno(error: &AttachError) -> rustix::io::Errno {
    match error.cause() {
        Cause::Map(_, errno) | Cause::Hook(_, errno) | Cause::System(_, errno) => *errno,
        Cause::Load(_, error) => error.errno,
        Cause::TooMany(_) => rustix::io::Errno::NOMEM,
        _ => rustix::io::Errno::NOSYS,
    }
}
