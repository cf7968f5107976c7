//! The part of an instance that is in the kernel: the attach layer's session, and the events that are attached.
//!
//! It is made when something of the instance is attached for the first time. Programs are attached behind a gate, so that
//! each can be replaced and detached while its event fires. A detached event stays parked on its hook for a while, because
//! closing perf events is slow and events are often enabled again ([`deferred_close`]).

pub(in crate::engine) mod count_ledger;
mod deferred_close;
pub(in crate::engine) mod event_config;
pub(in crate::engine) mod probes;
pub(in crate::engine) mod ring_queue;

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
};

use tracer_abi::Counters;

use self::probes::AttachedProbes;
use crate::{
    attach::{
        self, AttachError, AttachPoint, Attached, Block, Calls, Cause, Context, Dispatch, Guard, Hooks, Job,
        Planned, Session, Writer, ids,
    },
    engine::{
        attachments::session::{
            count_ledger::CountLedger, deferred_close::DeferredClose, event_config::EventConfig,
            ring_queue::RingQueue,
        },
        facts::Facts,
        hooks::AttachPlan,
        probes::Candidate,
        recorder,
    },
    event::{EventId, Slot},
    plan::{source::ProgramContext, trigger},
    sys::bpf::ring::RingMemory,
};

/// Bytes of a CPU's BPF ring buffer: what may come between two visits of the reader.
const RING_BYTES: u32 = 2 << 20;
/// Events that an instance can have on at once.
const SLOTS: u32 = 8192;

/// An instance's part in the kernel.
#[derive(Debug)]
pub(in crate::engine) struct InstanceSession {
    session: Session,
    pub(in crate::engine) queue: RingQueue,
    attached: HashMap<EventId, (Attached, AttachPlan)>,
    /// Dynamic events.
    probes: HashMap<EventId, AttachedProbes>,
    /// Dynamic events that share links and are about to be turned on.
    shared: HashMap<EventId, (Attached, Candidate)>,
    /// Probes of files that are linked, for [`InstanceSession::attach_probes`].
    linked: HashMap<EventId, AttachedProbes>,
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
    ledger: CountLedger,
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
    pub(in crate::engine) fn new(factory: &SessionFactory, facts: &Facts) -> Result<Self, AttachError> {
        let (session, rings) = factory.session(RING_BYTES, SLOTS, facts)?;
        let cpus = rings.len();
        Ok(Self {
            session,
            queue: RingQueue::new(rings),
            attached: HashMap::new(),
            probes: HashMap::new(),
            shared: HashMap::new(),
            linked: HashMap::new(),
            emitted: HashMap::new(),
            relays: HashMap::new(),
            idle: BTreeSet::new(),
            injected: HashMap::new(),
            marker: None,
            rest: DeferredClose::default(),
            ledger: CountLedger::new(cpus),
        })
    }

    /// The kernel's side, to be changed.
    pub(in crate::engine) fn kernel_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The kernel's side.
    pub(in crate::engine) fn kernel(&self) -> &Session {
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
    pub(in crate::engine) fn is_parked(&self, event: EventId) -> bool {
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
        let request = wanted.request(&chosen.via, &chosen.hook);
        let attached = match self.rest.take(event).filter(|resting| *resting.via() == chosen.via) {
            Some(resting) => {
                let attached = self.session.resume(resting, &request)?;
                if let Some(slot) = attached.slot() {
                    self.ledger.remove_row(|cpu| self.session.counters().of(slot, cpu));
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
            return self.session.replace(on, &wanted.emitted_request(&AttachPoint::Inject, hook));
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
            let on = self
                .session
                .attach(&wanted.emitted_request(&AttachPoint::Inject, &hook), Dispatch::Direct)?;
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
        on.map(|(on, hook)| self.session.block(on, &wanted.emitted_request(&AttachPoint::Emitted, hook)))
            .transpose()
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
            let mut settings = wanted.settings.clone();
            if !settings.counted && !trigger::sees_record(&settings.triggers) {
                settings.triggers.clear();
            }
            let wanted = EventConfig { settings: &settings, begins_off: false, ..*wanted };
            let mut request = wanted.emitted_request(&AttachPoint::Inject, &ProgramContext::Inject);
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

    /// Remembers the losses of rows that others get.
    fn note_dropped(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.ledger.add_row(|cpu| self.session.counters().of(slot, cpu));
        }
    }

    /// A dynamic event's probes.
    pub(in crate::engine) fn probes(&self, event: EventId) -> Option<&AttachedProbes> {
        self.probes.get(&event)
    }

    pub(in crate::engine) fn put_probes(&mut self, event: EventId, probes: AttachedProbes) {
        self.drop_injected(event);
        self.probes.insert(event, probes);
    }

    fn all_missed(&self) -> u64 {
        self.session.missed() + self.attached.values().map(|(attached, _)| attached.missed()).sum::<u64>()
    }

    /// Hits for which the kernel ran no program, since the buffers were last emptied. At a perf tracepoint it runs none
    /// while another program runs on that CPU. It counts them for all CPUs together.
    pub(in crate::engine) fn missed(&self) -> u64 {
        self.ledger.missed_since_emptied(self.all_missed())
    }

    /// The counts of all events on a CPU, those that are off by now included.
    fn all_counts(&self, cpu: u32) -> Counters {
        let slots = self.attached.values().filter_map(|(attached, _)| attached.slot());
        let slots = slots.chain(self.probes.values().flat_map(AttachedProbes::slots));
        let slots = slots.chain(self.emitted.values().filter_map(|(on, _)| on.slot()));
        let slots = slots.chain(self.injected.values().filter_map(Attached::slot));
        slots
            .map(|slot| self.session.counters().of(slot, cpu))
            .fold(self.ledger.returned(cpu), Counters::plus)
    }

    /// Hits on a CPU since its buffer was last emptied, and what became of them.
    pub(in crate::engine) fn counts(&self, cpu: u32) -> Counters {
        self.ledger.since_emptied(cpu, self.all_counts(cpu))
    }

    /// Counts from now on, as the buffers of one CPU or of all are emptied.
    pub(in crate::engine) fn reset_counts(&mut self, cpu: Option<u32>) {
        for number in (0..self.queue.cpus()).filter(|number| cpu.is_none_or(|cpu| cpu == *number)) {
            self.ledger.set_baseline(number, self.all_counts(number));
        }
        if cpu.is_none() {
            self.ledger.set_missed_baseline(self.all_missed());
        }
    }

    /// Hits on a CPU that found the ring full since the last call.
    pub(in crate::engine) fn newly_dropped(&mut self, cpu: u32) -> u64 {
        self.ledger.report_lost(cpu, self.all_counts(cpu).dropped)
    }
}

impl Drop for InstanceSession {
    fn drop(&mut self) {
        let all: Vec<EventId> =
            self.attached.keys().chain(self.probes.keys()).chain(self.emitted.keys()).copied().collect();
        self.detach(all);
    }
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
