//! An instance's part in the kernel: the session of the attach layer, and the attached events.
//!
//! It is made when a program is attached for the instance for the first time. Programs are attached behind a gate, so
//! that each can be replaced and detached while its event fires. A disabled event stays parked on its hook for a
//! while, because closing perf events is slow and events are often enabled again ([`deferred_close`]).

pub(crate) mod attach_style;
pub(crate) mod attached_event;
pub(crate) mod count_ledger;
mod deferred_close;
pub(crate) mod event_config;
pub(crate) mod probes;
pub(crate) mod ring_queue;
pub(crate) mod table;

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
};

use tracer_abi::Counters;

use self::table::{AttachedPart, AttachedParts, AttachedTable, ProgramRole};
use crate::{
    attach::{
        self, AttachError, AttachPoint, Attached, Block, Calls, Chains, Context, Dispatch, Guard, Hooks, Job,
        Planned, Session, Writer, ids,
    },
    engine::{
        attachments::options::{AttachOptions, RecordingOptions},
        attachments::session::{
            attach_style::AttachStyle, count_ledger::CountLedger, deferred_close::DeferredClose,
            event_config::EventConfig, ring_queue::RingQueue,
        },
        context,
        facts::Facts,
        hooks::AttachPlan,
    },
    event::{EventId, Slot},
    plan::{source::ProgramContext, trigger},
    sys::bpf::cpu_ring::CpuRing,
};

/// Bytes of a CPU's ring, which holds the records between two visits of the reader.
const RING_BYTES: u32 = 2 << 20;
/// Largest number of events that an instance can have attached.
const SLOTS: u32 = 8192;

/// An instance's part in the kernel.
#[derive(Debug)]
pub(crate) struct InstanceSession {
    session: Session,
    pub(crate) style: AttachStyle,
    pub(crate) queue: RingQueue,
    pub(crate) table: AttachedTable,
    /// Probes whose links are made, and that are about to be attached.
    prepared: HashMap<EventId, AttachedParts>,
    /// Idle events: they are disabled and in soft mode, and have no program, because other programs do all the work.
    idle: BTreeSet<EventId>,
    deferred_close: DeferredClose,
    ledger: CountLedger,
}

/// The threads that a session traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All threads, unless a request selects others.
    Every,
    /// The threads that the session's lists select. The lists may be inactive.
    Lists,
    /// Only the threads in the list.
    Listed,
}

/// Makes sessions, from facts that are found once and objects that all sessions share.
#[derive(Debug)]
pub(crate) struct SessionFactory {
    context: Context,
    own: ids::Ids,
    calls: Option<Calls>,
    options: AttachOptions,
    chains: Chains,
}

impl SessionFactory {
    /// Finds the facts: how programs read their context, and the ids of this process.
    pub(crate) fn find(facts: &Facts, options: AttachOptions) -> Result<Self, AttachError> {
        let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
        let context = context::find(facts);
        let calls = context.registers.map(|registers| Calls::new(registers, context.cast));
        Ok(Self { context, own, calls, options, chains: Chains::new(SLOTS) })
    }

    /// The options that hold for all instances.
    pub(crate) fn options(&self) -> AttachOptions {
        self.options
    }

    /// The dispatchers for histograms on system calls.
    pub(crate) fn calls(&self) -> Option<&Calls> {
        self.calls.as_ref()
    }

    /// The chains of tracepoints, which all sessions and histograms share.
    pub(crate) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Makes a session and its rings.
    pub(crate) fn session(
        &self,
        ring_bytes: u32,
        slots: u32,
        scope: Scope,
        facts: &Facts,
    ) -> Result<(Session, Vec<CpuRing>), AttachError> {
        let sizes = attach::Options {
            ring_bytes,
            watermark: ring_bytes / 2,
            cpus: facts.cpus(),
            slots,
            pid_gate: scope == Scope::Listed,
            pid_lists: scope == Scope::Lists,
            own_tgid: self.own.process,
            trace_own: self.options.own,
        };
        // A recording has one session, with its own number of slots.
        if self.options.recording.is_some() {
            return Session::new(&sizes, self.context.clone());
        }
        Session::with_chains(&sizes, self.context.clone(), self.chains.clone())
    }
}

impl InstanceSession {
    /// Makes the session; nothing is traced yet.
    pub(crate) fn new(factory: &SessionFactory, facts: &Facts) -> Result<Self, AttachError> {
        let recording = factory.options.recording;
        let (ring_bytes, slots, scope) = match recording {
            Some(RecordingOptions { ring_bytes, slots, listed_only }) => {
                (ring_bytes, slots, if listed_only { Scope::Listed } else { Scope::Every })
            }
            None => (RING_BYTES, SLOTS, Scope::Lists),
        };
        let (session, rings) = factory.session(ring_bytes, slots, scope, facts)?;
        let cpus = rings.len();
        Ok(Self {
            session,
            style: AttachStyle::new(recording.is_some()),
            queue: RingQueue::new(rings),
            table: AttachedTable::default(),
            prepared: HashMap::new(),
            idle: BTreeSet::new(),
            deferred_close: DeferredClose::default(),
            ledger: CountLedger::new(cpus),
        })
    }

    /// The session of the attach layer, mutable.
    pub(crate) fn kernel_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The session of the attach layer.
    pub(crate) fn kernel(&self) -> &Session {
        &self.session
    }

    /// The slot of an attached event.
    pub(crate) fn slot(&self, event: EventId) -> Option<Slot> {
        // A dynamic event is soft-disabled through the slot of its first probe.
        self.table.of_event(event).find_map(|part| part.attached.slot())
    }

    /// Whether a disabled event is still parked on its hook.
    pub(crate) fn is_parked(&self, event: EventId) -> bool {
        self.deferred_close.has(event)
    }

    /// Whether an attached event is soft-disabled, by a trigger or by user space.
    pub(crate) fn is_soft_off(&self, event: EventId) -> bool {
        self.is_idle(event) || self.slot(event).is_some_and(|slot| self.session.switches().soft(slot))
    }

    /// Whether a disabled event has no program, although it counts as attached.
    pub(crate) fn is_idle(&self, event: EventId) -> bool {
        self.idle.contains(&event)
    }

    /// Removes the program of a disabled event that counts as attached.
    pub(crate) fn idle_at(&mut self, event: EventId) {
        self.detach([event]);
        self.idle.insert(event);
    }

    /// Soft-disables or soft-enables an attached event, as a trigger would.
    pub(crate) fn set_soft_off(&self, event: EventId, off: bool) {
        if let Some(slot) = self.slot(event) {
            self.session.switches().set_soft(slot, off);
        }
    }

    /// Attaches an event to its hook, or resumes it if it is parked there.
    pub(crate) fn attach_hook(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        if self.table.has(event, ProgramRole::Hook) {
            return Ok(());
        }
        let request = config.request(&chosen.point, &chosen.context);
        let attached = match self.deferred_close.take(event).filter(|parked| *parked.point() == chosen.point)
        {
            Some(parked) => {
                let attached = self.session.resume(parked, &request)?;
                if let Some(slot) = attached.slot() {
                    self.ledger.remove_row(slot);
                }
                attached
            }
            None => self.session.attach(&request, self.style.event(&chosen.point))?,
        };
        self.put_hook(event, attached, chosen);
        Ok(())
    }

    fn put_hook(&mut self, event: EventId, attached: Attached, plan: &AttachPlan) {
        self.table.insert(event, ProgramRole::Hook, AttachedPart::new(attached, plan.clone()));
        self.idle.remove(&event);
        self.drop_injected(event);
    }

    /// Plans the link of an event at a file. `None` for an event elsewhere, and for one that is attached or parked.
    pub(crate) fn plan_attach(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        config: &EventConfig<'_>,
    ) -> Result<Option<(Planned, Job)>, AttachError> {
        let is_there = self.table.has(event, ProgramRole::Hook) || self.deferred_close.has(event);
        if is_there || !matches!(chosen.point, AttachPoint::Uprobe(_)) {
            return Ok(None);
        }
        self.session.plan(&config.request(&chosen.point, &chosen.context), Dispatch::Table).map(Some)
    }

    /// Stores a planned event whose link was made. [`InstanceSession::attach_hook`] finds it attached.
    pub(crate) fn finish_attach(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        planned: Planned,
        made: Hooks,
    ) -> Result<(), AttachError> {
        let attached = self.session.finish(planned, made)?;
        self.put_hook(event, attached, chosen);
        Ok(())
    }

    /// Replaces the program of an attached event.
    pub(crate) fn change(&mut self, event: EventId, config: &EventConfig<'_>) -> Result<(), AttachError> {
        self.drop_injected(event);
        if self.table.has(event, ProgramRole::Probe) {
            return self.change_probes(event, config);
        }
        if let Some(part) = self.table.first_mut(event, ProgramRole::Emitted) {
            let request = config.emitted_request(&AttachPoint::Inject, &part.plan.context);
            return self.session.replace(&mut part.attached, &request);
        }
        // The event keeps its hook. If the kernel refuses the new program, the old one stays.
        let Some(part) = self.table.first_mut(event, ProgramRole::Hook) else { return Ok(()) };
        self.session.replace(&mut part.attached, &config.request(&part.plan.point, &part.plan.context))
    }

    /// Enables an event without a hook.
    pub(crate) fn attach_emitted(
        &mut self,
        event: EventId,
        context: ProgramContext,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        if !self.table.has(event, ProgramRole::Emitted) {
            let request = config.emitted_request(&AttachPoint::Inject, &context);
            let attached = self.session.attach(&request, Dispatch::Direct)?;
            let plan = AttachPlan::new(context, AttachPoint::Inject);
            self.table.insert(event, ProgramRole::Emitted, AttachedPart::new(attached, plan));
            self.drop_injected(event);
        }
        Ok(())
    }

    /// The code by which another program processes a record of an event without a hook. `None` if the event is not
    /// enabled in this instance.
    pub(crate) fn emitted_block(
        &self,
        event: EventId,
        config: &EventConfig<'_>,
        irqs_off: bool,
    ) -> Result<Option<Block>, AttachError> {
        let Some(part) = self.table.first(event, ProgramRole::Emitted) else { return Ok(None) };
        let request = config.emitted_request(&AttachPoint::Emitted, &part.plan.context);
        self.session.block(&part.attached, &attach::Request { irqs_off, ..request }).map(Some)
    }

    /// Runs the program of an event in a role on a record from user space, if there is one. Returns the requests of its
    /// triggers.
    pub(crate) fn run(
        &self,
        event: EventId,
        role: ProgramRole,
        record: &[u8],
        writer: &Writer,
    ) -> Result<u64, AttachError> {
        self.table.first(event, role).map_or(Ok(0), |part| part.attached.run(record, writer))
    }

    /// Processes a record that is written to an event's `inject`. Returns the requests of its triggers. If neither a
    /// trigger nor a histogram reads the record, the triggers do not run.
    pub(crate) fn inject(
        &mut self,
        event: EventId,
        config: &EventConfig<'_>,
        record: &[u8],
        writer: &Writer,
    ) -> Result<u64, AttachError> {
        if !self.table.has(event, ProgramRole::Inject) {
            let mut settings = config.settings.clone();
            if !settings.counted && !trigger::sees_record(&settings.triggers) {
                settings.triggers.clear();
            }
            let config = EventConfig { settings: &settings, begins_off: false, ..*config };
            let mut request = config.emitted_request(&AttachPoint::Inject, &ProgramContext::Inject);
            request.hit_actions.soft_slot = self.slot(event);
            request.hit_actions.soft &= request.hit_actions.soft_slot.is_some();
            let attached = self.session.attach(&request, Dispatch::Direct)?;
            let plan = AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
            self.table.insert(event, ProgramRole::Inject, AttachedPart::new(attached, plan));
        }
        self.run(event, ProgramRole::Inject, record, writer)
    }

    /// Drops the program of an event's `inject`, which is outdated.
    fn drop_injected(&mut self, event: EventId) {
        if let Some(parts) = self.table.take(event, ProgramRole::Inject) {
            note_dropped(&self.session, &mut self.ledger, parts.slots());
        }
    }

    /// Sets or removes the program that runs the triggers of `trace_marker`, on records of this event.
    pub(crate) fn set_marker(
        &mut self,
        event: EventId,
        config: Option<&EventConfig<'_>>,
    ) -> Result<(), AttachError> {
        let Some(config) = config else {
            self.table.take(event, ProgramRole::Marker);
            return Ok(());
        };
        let mut request = config.request(&AttachPoint::Inject, &ProgramContext::Inject);
        request.hit_actions.no_record = true;
        let attached = self.session.attach(&request, Dispatch::Direct)?;
        let plan = AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
        self.table.insert(event, ProgramRole::Marker, AttachedPart::new(attached, plan));
        Ok(())
    }

    /// Disables events, at once.
    pub(crate) fn detach(&mut self, events: impl IntoIterator<Item = EventId>) {
        let mut parked = Vec::new();
        for event in events {
            self.drop_injected(event);
            self.idle.remove(&event);
            let Some((role, parts)) = self.table.take_event(event) else { continue };
            let slots: Vec<Slot> = parts.slots().collect();
            // The rows are read after the programs are off, and cleared only when another event gets them.
            if role == ProgramRole::Hook {
                parked.extend(parts.into_attached().map(|attached| (event, attached.park())));
            } else {
                drop(parts);
            }
            note_dropped(&self.session, &mut self.ledger, slots);
        }
        self.deferred_close.add(parked);
    }

    /// Passes to the guard the perf tracepoints that it does not hold yet.
    pub(crate) fn guard(&self, guard: &Arc<Guard>) {
        self.session.guard(guard);
    }

    /// Detaches all events. Returns the perf events to close ([`attach::detach_all`]).
    pub(crate) fn end(mut self) -> Vec<OwnedFd> {
        let attached = self.table.take_hooks().into_iter().flat_map(AttachedParts::into_attached);
        attach::detach_all(attached.map(Attached::park).chain(self.deferred_close.end()))
    }

    /// Removes a deleted event.
    pub(crate) fn forget(&mut self, event: EventId) {
        self.detach([event]);
        // Otherwise a new event with the same number would resume the parked one.
        drop(self.deferred_close.take(event));
    }

    pub(crate) fn put_probes(&mut self, event: EventId, probes: AttachedParts) {
        self.drop_injected(event);
        self.table.insert(event, ProgramRole::Probe, probes);
    }

    fn all_missed(&self) -> u64 {
        self.session.missed()
            + self.table.in_role(ProgramRole::Hook).map(|part| part.attached.missed()).sum::<u64>()
    }

    /// Hits for which the kernel ran no program, since the buffers were last emptied. At a perf tracepoint it runs none
    /// while another program runs on that CPU. It counts them for all CPUs together.
    pub(crate) fn missed(&self) -> u64 {
        self.ledger.missed_since_emptied(self.all_missed())
    }

    /// The counts of all events on a CPU, including disabled events.
    fn all_counts(&self, cpu: u32) -> Counters {
        self.table
            .slots()
            .map(|slot| self.session.counters().of(slot, cpu))
            .fold(self.ledger.returned(cpu), Counters::plus)
    }

    /// Hits on a CPU since its buffer was last emptied, by outcome.
    pub(crate) fn counts(&self, cpu: u32) -> Counters {
        self.ledger.since_emptied(cpu, self.all_counts(cpu))
    }

    /// Restarts the counts when the buffers of one CPU or of all are emptied.
    pub(crate) fn reset_counts(&mut self, cpu: Option<u32>) {
        for number in (0..self.queue.cpus()).filter(|number| cpu.is_none_or(|cpu| cpu == *number)) {
            self.ledger.set_baseline(number, self.all_counts(number));
            self.queue.reset_tally(number);
        }
        if cpu.is_none() {
            self.ledger.set_missed_baseline(self.all_missed());
        }
    }

    /// Hits on a CPU that found the ring full, and records that were overwritten there, since the last call.
    pub(crate) fn newly_lost(&mut self, cpu: u32, is_event: impl Fn(&[u8]) -> bool) -> (u64, u64) {
        let counts = self.all_counts(cpu);
        let recorded = self.ledger.since_emptied(cpu, counts).recorded;
        let overwritten = self.queue.newly_overwritten(cpu, recorded, is_event);
        (self.ledger.report_lost(cpu, counts.dropped), overwritten)
    }
}

/// Adds the counts of released rows to the ledger.
fn note_dropped(session: &Session, ledger: &mut CountLedger, slots: impl IntoIterator<Item = Slot>) {
    for slot in slots {
        ledger.add_row(slot, |cpu| session.counters().of(slot, cpu));
    }
}

impl Drop for InstanceSession {
    fn drop(&mut self) {
        let all: Vec<EventId> = self.table.events().collect();
        self.detach(all);
    }
}
