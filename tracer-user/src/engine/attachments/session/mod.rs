//! An instance's part in the kernel: the session of the attach layer, and the attached events.
//!
//! It is made when a program is attached for the instance for the first time. Programs are attached behind a gate, so
//! that each can be replaced and detached while its event fires. A disabled event stays parked on its hook for a
//! second, because events are often enabled again ([`deferred_close`]).

pub(crate) mod attach_style;
pub(crate) mod count_ledger;
mod deferred_close;
pub(crate) mod event_config;
pub(crate) mod part;
pub(crate) mod probes;
pub(crate) mod ring_queue;
pub(crate) mod table;

use std::{collections::HashMap, os::fd::OwnedFd};

use tracer_abi::Counters;

use self::{
    probes::Prepared,
    table::{AttachedPart, AttachedParts, AttachedTable, ProgramRole},
};
use crate::{
    attach::{
        self, AttachError, AttachPoint, Attached, Block, Built, Calls, Chains, Context, Dispatch, Hooks, Job,
        Parked, Planned, Request, Session, Writer, ids,
    },
    engine::{
        attachments::options::{AttachOptions, RecordingOptions},
        attachments::session::{
            attach_style::AttachStyle,
            count_ledger::CountLedger,
            deferred_close::DeferredClose,
            event_config::{EventConfig, EventSettings},
            ring_queue::RingQueue,
        },
        context,
        facts::Facts,
        hooks::{AttachPlan, Trial},
    },
    event::{EventId, Slot},
    plan::{source::ProgramContext, trigger},
    sys::bpf::cpu_ring::CpuRing,
};

/// Bytes of a CPU's ring, which holds the records between two visits of the reader.
const RING_BYTES: u32 = 2 << 20;
/// Largest number of events that an instance can have attached.
const SLOTS: u32 = 8192;

#[derive(Debug)]
pub(crate) struct InstanceSession {
    session: Session,
    pub(crate) style: AttachStyle,
    pub(crate) queue: RingQueue,
    pub(crate) table: AttachedTable,
    /// Probes whose links are made, and that are about to be attached.
    prepared: HashMap<EventId, Prepared>,
    /// The settings of the programs that were made ahead.
    built: HashMap<EventId, EventSettings>,
    deferred_close: DeferredClose,
    /// Parked events that a command is about to enable.
    claimed: HashMap<EventId, Parked>,
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
        let calls =
            context.registers.map(|registers| Calls::new(registers, context.cast, context.pages.clone()));
        let chains = Chains::new(SLOTS, facts.cpus(), &context);
        Ok(Self { context, own, calls, options, chains })
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
            built: HashMap::new(),
            deferred_close: DeferredClose::default(),
            claimed: HashMap::new(),
            ledger: CountLedger::new(cpus),
        })
    }

    pub(crate) fn kernel_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The session of the attach layer.
    pub(crate) fn kernel(&self) -> &Session {
        &self.session
    }

    /// The trial of hooks in a session that does not trace yet, with hits of this thread.
    pub(crate) fn trial(&mut self, own_thread: u32) -> Trial<'_> {
        Trial { session: &mut self.session, drain: &mut self.queue.drain, own_thread }
    }

    pub(crate) fn slot(&self, event: EventId) -> Option<Slot> {
        self.table.event(event)?.1.slot()
    }

    /// Keeps a disabled event parked that is about to be enabled. Returns whether it is parked.
    pub(crate) fn claim(&mut self, event: EventId) -> bool {
        self.claimed.extend(self.deferred_close.take(event).map(|parked| (event, parked)));
        self.is_claimed(event)
    }

    /// Whether an event that is about to be enabled is parked on its hook.
    pub(crate) fn is_claimed(&self, event: EventId) -> bool {
        self.claimed.contains_key(&event)
    }

    /// Whether an event is soft-disabled, by a trigger or by user space. `None` for an event without programs.
    pub(crate) fn is_off(&self, event: EventId) -> Option<bool> {
        let (_, parts) = self.table.event(event)?;
        Some(parts.is_off(|slot| self.session.switches().soft(slot)))
    }

    /// Soft-disables or soft-enables an attached event, as a trigger would.
    pub(crate) fn set_off(&mut self, event: EventId, off: bool) {
        if let Some(slot) = self.table.event_mut(event).and_then(|(_, parts)| parts.set_off(off)) {
            self.session.switches().set_soft(slot, off);
        }
    }

    /// Takes programs that were made ahead, with their settings.
    pub(crate) fn take_built(&mut self, built: Vec<Built>, settings: HashMap<EventId, EventSettings>) {
        self.session.take_built(built);
        self.built = settings;
    }

    pub(crate) fn forget_ahead(&mut self) {
        self.session.forget_ahead();
        self.built.clear();
        self.prepared.clear();
        self.deferred_close.add(self.claimed.drain());
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
        if self.built.remove(&event).is_some_and(|built| built != *config.settings) {
            self.session.forget_built(config.format.id);
        }
        self.claim(event);
        let attached = match self.claimed.remove(&event) {
            Some(parked) if *parked.point() == chosen.point => {
                let attached = self.session.resume(parked, &request)?;
                if let Some(slot) = attached.slot() {
                    self.ledger.remove_row(slot);
                }
                attached
            }
            parked => {
                // It is at a hook that was chosen among others.
                if let Some(parked) = parked {
                    self.deferred_close.discard(event, parked);
                }
                self.session.attach(&request, self.style.event(&chosen.point))?
            }
        };
        self.put_hook(event, attached, chosen, config);
        Ok(())
    }

    fn put_hook(&mut self, event: EventId, attached: Attached, plan: &AttachPlan, config: &EventConfig<'_>) {
        let part = AttachedPart::new(attached, plan.clone());
        self.table.insert(event, ProgramRole::Hook, AttachedParts::single(part, config));
        self.drop_injected(event);
    }

    /// Plans the link of an event at a file. `None` for an event elsewhere, and for one that is attached or parked.
    pub(crate) fn plan_attach(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        config: &EventConfig<'_>,
    ) -> Result<Option<(Planned, Job)>, AttachError> {
        let is_there = self.table.has(event, ProgramRole::Hook) || self.claim(event);
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
        (planned, made): (Planned, Hooks),
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let attached = self.session.finish(planned, made)?;
        self.put_hook(event, attached, chosen, config);
        Ok(())
    }

    /// Replaces the programs of an attached event, all or none.
    pub(crate) fn change(&mut self, event: EventId, config: &EventConfig<'_>) -> Result<(), AttachError> {
        let Self { table, session, .. } = self;
        let Some((role, parts)) = table.event_mut(event) else { return Ok(()) };
        // The event keeps its hooks. If the kernel refuses a new program, the old ones stay.
        let (done, replaced) = replace(session, role, parts, usize::MAX, config);
        if replaced.is_ok() {
            parts.settings = Some(config.settings.clone());
        } else if let Some(old) = parts.settings.take() {
            let back = replace(session, role, parts, done, &EventConfig { settings: &old, ..*config }).1;
            parts.settings = back.is_ok().then_some(old);
        }
        replaced
    }

    /// Enables an event without a hook.
    pub(crate) fn attach_emitted(
        &mut self,
        event: EventId,
        context: &ProgramContext,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        if !self.table.has(event, ProgramRole::Emitted) {
            let request = config.emitted_request(&AttachPoint::Inject, context);
            self.attach_unhooked(event, ProgramRole::Emitted, &request, config)?;
            self.drop_injected(event);
        }
        Ok(())
    }

    /// Attaches a program that runs on records from user space.
    fn attach_unhooked(
        &mut self,
        event: EventId,
        role: ProgramRole,
        request: &Request<'_>,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let attached = self.session.attach(request, Dispatch::Direct)?;
        let plan = AttachPlan::new(request.context.clone(), AttachPoint::Inject);
        self.table.insert(event, role, AttachedParts::single(AttachedPart::new(attached, plan), config));
        Ok(())
    }

    /// Enables an event of which no record fits.
    pub(crate) fn attach_nothing(&mut self, event: EventId, config: &EventConfig<'_>) {
        self.table.insert(event, ProgramRole::Emitted, AttachedParts::new(Vec::new(), config));
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
        self.session.block(&part.attached, &Request { irqs_off, ..request }).map(Some)
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
        let known = self.table.get(event, ProgramRole::Inject).and_then(|parts| parts.settings.as_ref());
        if known != Some(config.settings) {
            self.drop_injected(event);
            let mut settings = config.settings.clone();
            if !settings.counted && !trigger::sees_record(&settings.triggers) {
                settings.triggers.clear();
            }
            let seen = EventConfig { settings: &settings, begins_off: false, ..*config };
            let mut request = seen.emitted_request(&AttachPoint::Inject, &ProgramContext::Inject);
            request.hit_actions.soft_slot = self.slot(event);
            request.hit_actions.soft &= request.hit_actions.soft_slot.is_some();
            self.attach_unhooked(event, ProgramRole::Inject, &request, config)?;
        }
        self.run(event, ProgramRole::Inject, record, writer)
    }

    /// Drops the program of an event's `inject`, which uses the slot of the event.
    fn drop_injected(&mut self, event: EventId) {
        if let Some(parts) = self.table.take(event, ProgramRole::Inject) {
            self.release(parts, drop);
        }
    }

    /// Ends programs by `end`, and keeps the counts of their rows. These are read after the programs are off, and
    /// cleared only when another event gets the rows.
    fn release(&mut self, parts: AttachedParts, end: impl FnOnce(AttachedParts)) {
        let slots: Vec<Slot> = parts.slots().collect();
        end(parts);
        for slot in slots {
            self.ledger.add_row(slot, |cpu| self.session.counters().of(slot, cpu));
        }
    }

    /// Attaches the program that runs the triggers of `trace_marker` on records of this event, in place of an old one.
    pub(crate) fn attach_marker(
        &mut self,
        event: EventId,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let mut request = config.request(&AttachPoint::Inject, &ProgramContext::Inject);
        request.hit_actions.no_record = true;
        self.attach_unhooked(event, ProgramRole::Marker, &request, config)
    }

    /// Disables events, at once.
    pub(crate) fn detach(&mut self, events: impl IntoIterator<Item = EventId>) {
        let mut parked = Vec::new();
        for event in events {
            self.drop_injected(event);
            let Some((role, parts)) = self.table.take_event(event) else { continue };
            self.release(parts, |parts| {
                if role == ProgramRole::Hook {
                    parked.extend(parts.into_attached().map(|attached| (event, attached.park())));
                }
            });
        }
        self.deferred_close.add(parked);
    }

    /// Detaches all events. Returns the perf events to close ([`attach::detach_all`]).
    pub(crate) fn end(mut self) -> Vec<OwnedFd> {
        let attached = self.table.take_hooks().into_iter().flat_map(AttachedParts::into_attached);
        let claimed = std::mem::take(&mut self.claimed).into_values();
        let parked = claimed.chain(self.deferred_close.end());
        attach::detach_all(attached.map(Attached::park).chain(parked))
    }

    /// Removes a deleted event.
    pub(crate) fn forget(&mut self, event: EventId) {
        self.detach([event]);
        // Otherwise a new event with the same number would resume the parked one.
        self.claim(event);
        drop(self.claimed.remove(&event));
    }

    fn all_missed(&self) -> u64 {
        self.session.missed() + self.table.all().map(|part| part.attached.missed()).sum::<u64>()
    }

    /// Hits for which the kernel ran no program, since the buffers were last emptied, those of histograms included. At a
    /// perf tracepoint it runs none while another program runs on that CPU; elsewhere none while the same program is
    /// interrupted or preempted. It counts them for all CPUs together.
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

/// Replaces up to `limit` programs of an attached event. Stops at the first error. Returns how many were replaced.
fn replace(
    session: &mut Session,
    role: ProgramRole,
    parts: &mut AttachedParts,
    limit: usize,
    config: &EventConfig<'_>,
) -> (usize, Result<(), AttachError>) {
    let first = parts.slot();
    for (done, AttachedPart { attached, plan }) in parts.iter_mut().take(limit).enumerate() {
        let request = match role {
            ProgramRole::Probe => probes::request(config, plan, first),
            ProgramRole::Emitted => config.emitted_request(&AttachPoint::Inject, &plan.context),
            _ => config.request(&plan.point, &plan.context),
        };
        if let Err(error) = session.replace(attached, &request) {
            return (done, Err(error));
        }
    }
    (limit, Ok(()))
}

impl Drop for InstanceSession {
    fn drop(&mut self) {
        let all: Vec<EventId> = self.table.events().collect();
        self.detach(all);
    }
}
