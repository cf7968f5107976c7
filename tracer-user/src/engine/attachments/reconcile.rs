//! Reconciliation: makes the attached programs match an instance's wanted state.
//!
//! A command changes wanted state: the enabled events, filters, triggers, references for soft mode, options, probes.
//! [`reconcile`] then plans the changes of each event ([`plan`]) and makes them. Many events are handled in batches,
//! with programs and links made by several threads. If something is refused, the program that was attached before
//! stays, and the command takes its change of wanted state back.

pub(crate) use super::plan::Goal;
use super::plan::{AttachedState, Change, Mode, SoftMode, Wanted, WantedProbe, plan};
use crate::{
    attach::Opening,
    engine::{
        Cooperative, Engine,
        attachments::{
            apply::{EventOperations, apply},
            attach_event::{arrange_probes, attach_event},
            bulk_enable, bulk_functions, desired, off_thread,
            session::{
                event_config::{EventConfig, EventSettings},
                table::{AttachedParts, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        dependents::{self, sources::RecordSources},
        operations::probe_counts,
        probes,
    },
    event::{EventId, InstanceId, dynamic::Target},
    lang::define::Defined,
};

/// Number of events that are detached before readers are served.
const BATCH: usize = 32;

/// Plans the changes of an event.
fn plan_event(
    engine: &Engine,
    instance: InstanceId,
    event: EventId,
    goal: Goal,
) -> Result<Vec<Change>, CommandError> {
    let state = engine.instances.get(instance).ok_or(ErrorKind::Gone)?;
    let session = engine.attachments.session(instance);
    let parts = session.and_then(|session| session.table.event(event)).map(|(_, parts)| parts);
    let is = AttachedState {
        mode: match session.and_then(|session| session.is_off(event)) {
            _ if !state.is_enabled(event) => Mode::Disabled,
            None => Mode::Idle,
            Some(true) => Mode::Off,
            Some(false) => Mode::On,
        },
        probes: Vec::new(),
        settings: parts.and_then(|parts| parts.settings.as_ref()),
    };
    // The programs that are attached for an event without a tracepoint make its records.
    let may_idle = !engine.registry.events().is_made(event);
    let soft = match (state.triggers.is_soft(event), state.triggers.is_idle(event)) {
        (false, _) => SoftMode::Unused,
        (true, true) if may_idle => SoftMode::OwnPrograms,
        (true, _) => SoftMode::Needed,
    };
    let mode = is.mode.after(goal, soft);
    if !(is.mode.has_program() && mode.has_program()) {
        return Ok(plan::<&EventSettings>(&Wanted { mode, probes: Vec::new(), settings: None }, &is));
    }
    let settings = desired::settings(engine, instance, event)?;
    let definitions = engine.registry.dynamic().probes_of(event).unwrap_or_default();
    if definitions.is_empty() || RecordSources::of(engine).record_context(event, &definitions).is_some() {
        return Ok(plan(&Wanted { mode, probes: Vec::new(), settings: Some(&settings) }, &is));
    }
    let wanted = |Defined { probe, serial, .. }: &Defined| WantedProbe {
        serial: *serial,
        waits: probes::waits(probe, &engine.facts),
    };
    let probes = definitions.iter().map(wanted).collect();
    let is = AttachedState { probes: parts.into_iter().flat_map(AttachedParts::states).collect(), ..is };
    Ok(plan(&Wanted { mode, probes, settings: Some(&settings) }, &is))
}

/// Makes the attached programs of events match their instance's wanted state. As in the kernel, an error of one event
/// does not keep the others from their goal.
///
/// # Errors
/// The first error of an event.
pub(crate) fn reconcile(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
    goal: Goal,
) -> Result<(), CommandError> {
    match goal {
        Goal::On => turn_on(engine, instance, events),
        Goal::Off => turn_off(engine, instance, events),
        Goal::Unchanged => {
            let mut first = Ok(());
            for event in events {
                // A call for a single event may be a step of a change that is not consistent yet.
                if events.len() > 1 {
                    engine.yield_to_readers();
                }
                first = first.and(follow_state(engine, instance, *event));
            }
            first
        }
    }
}

/// Enables events. Many at once share programs and links where they can.
fn turn_on(engine: &mut Engine, instance: InstanceId, events: &[EventId]) -> Result<(), CommandError> {
    engine.instances.state(instance)?.expand();
    let _opening = Opening::begin_at_once();
    if let Some(session) = engine.attachments.session_mut(instance) {
        for event in events {
            session.claim(*event);
        }
    }
    let bulk = bulk_enable::begin_bulk(engine, instance, events);
    engine.make_session(instance)?;
    off_thread::choose_hooks(engine, events);
    let bulk = bulk_enable::prepare(engine, instance, events, bulk);
    bulk_functions::attach_together(engine, instance, events);
    let mut first = Ok(());
    for event in events {
        await_opened(engine, instance, *event);
        if engine.scheduler.is_stopping() {
            first = first.and(Err(ErrorKind::Interrupted.into()));
            break;
        }
        let planned = plan_event(engine, instance, *event, Goal::On);
        let done = planned
            .and_then(|changes| apply(&mut EventPrograms { engine, instance, event: *event }, &changes));
        first = first.and(done.map_err(|error| engine.log_error(instance, error)));
    }
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.forget_ahead();
    }
    if bulk.is_some() {
        engine.attachments.guard_events(instance);
    }
    first
}

/// Disables events, in batches.
fn turn_off(engine: &mut Engine, instance: InstanceId, events: &[EventId]) -> Result<(), CommandError> {
    engine.instances.state(instance)?.expand();
    engine.collect(instance);
    let mut first = Ok(());
    let (mut detached, mut others) = (Vec::new(), Vec::new());
    for event in events {
        match plan_event(engine, instance, *event, Goal::Off) {
            Ok(changes) if changes == [Change::Detach] => detached.push(*event),
            Ok(changes) => others.push((*event, changes)),
            Err(error) => first = first.and(Err(error)),
        }
    }
    let mut gone = Vec::new();
    for batch in detached.chunks(BATCH) {
        gone.extend(detach_events(engine, instance, batch)?);
        engine.yield_to_readers();
    }
    for (event, changes) in others {
        first = first.and(apply(&mut EventPrograms { engine, instance, event }, &changes));
        engine.yield_to_readers();
    }
    for event in &gone {
        first = first.and(link_eprobe(engine, instance, *event, false));
        engine.yield_to_readers();
    }
    for event in gone {
        first = first.and(dependents::propagate_enabled(engine, instance, event));
        engine.yield_to_readers();
    }
    first
}

/// Makes one event match its instance's state. The event stays enabled or disabled.
fn follow_state(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    if engine.registry.is_special(event) {
        return reconcile_marker(engine, instance, event);
    }
    let changes = plan_event(engine, instance, event, Goal::Unchanged)?;
    if changes.iter().any(|change| matches!(change, Change::Attach { .. })) {
        off_thread::choose_hooks(engine, &[event]);
    }
    apply(&mut EventPrograms { engine, instance, event }, &changes)
}

/// An event of an instance.
struct EventPrograms<'a> {
    engine: &'a mut Engine,
    instance: InstanceId,
    event: EventId,
}

impl EventOperations for EventPrograms<'_> {
    fn attach(&mut self, begins_off: bool) -> Result<(), CommandError> {
        attach_event(self.engine, self.instance, self.event, begins_off)
    }

    fn detach(&mut self) {
        probe_counts::keep_counts(self.engine, self.instance, &[self.event]);
        if let Some(session) = self.engine.attachments.session_mut(self.instance) {
            session.detach([self.event]);
        }
    }

    fn replace(&mut self) -> Result<(), CommandError> {
        let catalogue = self.engine.registry.events().clone();
        let format = catalogue.known_format(self.event).ok_or(ErrorKind::Gone)?;
        let settings = desired::settings(self.engine, self.instance, self.event)?;
        let session = self.engine.attachments.session_mut(self.instance).ok_or(ErrorKind::Gone)?;
        Ok(session.change(self.event, &EventConfig { format, settings: &settings, begins_off: false })?)
    }

    fn arrange(&mut self) -> Result<(), CommandError> {
        arrange_probes(self.engine, self.instance, self.event)
    }

    fn set_off(&mut self, off: bool) {
        if let Some(session) = self.engine.attachments.session_mut(self.instance) {
            session.set_off(self.event, off);
        }
    }

    fn set_enabled(&mut self, on: bool) -> bool {
        let Some(state) = self.engine.instances.get_mut(self.instance) else { return false };
        if on { state.enabled.insert(self.event) } else { state.enabled.remove(&self.event) }
    }

    fn link_eprobe(&mut self, on: bool) -> Result<(), CommandError> {
        link_eprobe(self.engine, self.instance, self.event, on)
    }

    fn propagate(&mut self) -> Result<(), CommandError> {
        dependents::propagate_enabled(self.engine, self.instance, self.event)
    }

    fn follow_slot(&mut self) -> Result<(), CommandError> {
        let switching = self.engine.instances.state(self.instance)?.triggers.switching(self.event, false);
        let followed = switching.into_iter().map(|other| follow_state(self.engine, self.instance, other));
        followed.fold(Ok(()), Result::and)
    }
}

/// Detaches events. Returns those that were attached.
fn detach_events(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
) -> Result<Vec<EventId>, CommandError> {
    probe_counts::keep_counts(engine, instance, events);
    let state = engine.instances.state(instance)?;
    let gone = events.iter().copied().filter(|event| state.enabled.remove(event)).collect();
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.detach(events.iter().copied());
    }
    Ok(gone)
}

/// Serves readers until the perf event for an event is open.
fn await_opened(engine: &mut Engine, instance: InstanceId, event: EventId) {
    engine.yield_to_readers();
    let id = engine
        .registry
        .events()
        .format(event, &engine.facts)
        .and_then(|format| engine.attachments.hooks().perf_id(format));
    let is_due = |engine: &mut Engine| {
        let session = engine.attachments.session_mut(instance);
        id.zip(session).is_some_and(|(id, session)| session.kernel_mut().opened().is_being_opened(id))
    };
    while is_due(engine) && !engine.scheduler.is_stopping() && engine.wait_for_readers() {}
}

/// Makes the program that runs the triggers of an event of marks match its instance's state.
fn reconcile_marker(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let settings = desired::settings(engine, instance, event)?;
    let catalogue = engine.registry.events().clone();
    let session = engine.attachments.session_mut(instance);
    let Some((format, session)) = catalogue.known_format(event).zip(session) else { return Ok(()) };
    let is = session.table.state(event, ProgramRole::Marker, |parts| parts.settings.as_ref());
    let is_wanted = !settings.triggers.is_empty();
    match plan(&Wanted::part(is_wanted, vec![WantedProbe::ONLY], &settings), &is)[..] {
        [] => Ok(()),
        [Change::Detach] => {
            session.table.take(event, ProgramRole::Marker);
            Ok(())
        }
        _ => {
            let config = EventConfig { format, settings: &settings, begins_off: false };
            Ok(session.attach_marker(event, &config)?)
        }
    }
}

/// Adds or removes the reference of an event probe to its target event, which has the probe among its triggers
/// (`enable_eprobe()`).
fn link_eprobe(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    on: bool,
) -> Result<(), CommandError> {
    // The events of a recording are never disabled one by one.
    if engine.attachments.options().recording.is_some() {
        return Ok(());
    }
    let probes = engine.registry.dynamic().probes_of(event).unwrap_or_default();
    for Defined { probe, .. } in probes {
        let Target::Event { system, name, .. } = &probe.event.target else { continue };
        let target = engine
            .registry
            .events()
            .find_system(system)
            .and_then(|system| engine.registry.events().find(system, name));
        let Some(target) = target else { continue };
        if on {
            soft_mode_get(engine, instance, target, true)?;
        } else {
            soft_mode_put(engine, instance, target, true)?;
        }
    }
    Ok(())
}

/// Adds a reference for soft mode (`__ftrace_event_enable_disable(file, 1, 1)`). The event is attached from here on,
/// and stays enabled or disabled. An idle reference has programs of its own.
///
/// # Errors
/// The kernel's errors. The reference is then not added.
pub(crate) fn soft_mode_get(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    idle: bool,
) -> Result<(), CommandError> {
    engine.instances.state(instance)?.triggers.soft_mode_get(event, idle);
    let done = reconcile(engine, instance, &[event], Goal::Unchanged);
    if done.is_err() {
        engine.instances.state(instance)?.triggers.soft_mode_put(event, idle);
    }
    done
}

/// Removes a reference for soft mode. After the last one, the event stays attached if it is enabled.
///
/// # Errors
/// The kernel's errors.
pub(crate) fn soft_mode_put(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    idle: bool,
) -> Result<(), CommandError> {
    engine.instances.state(instance)?.triggers.soft_mode_put(event, idle);
    reconcile(engine, instance, &[event], Goal::Unchanged)
}
