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
        let done = planned.and_then(|changes| apply(engine, instance, *event, &changes));
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
        first = first.and(apply(engine, instance, event, &changes));
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
    apply(engine, instance, event, &changes)
}

/// Makes the changes of an event, up to the first that is refused. A refused probe does not keep the event's other
/// probes from their changes.
fn apply(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    changes: &[Change],
) -> Result<(), CommandError> {
    let mut refused = Ok(());
    for change in changes {
        match change {
            Change::Attach { begins_off } => {
                attach_event(engine, instance, event, *begins_off)?;
                follow_slot(engine, instance, event)?;
            }
            Change::SetOff(off) => {
                if let Some(session) = engine.attachments.session_mut(instance) {
                    session.set_off(event, *off);
                }
            }
            Change::Replace => replace_program(engine, instance, event)?,
            Change::Arrange => {
                refused = arrange_probes(engine, instance, event);
                follow_slot(engine, instance, event)?;
            }
            Change::MakeIdle => {
                probe_counts::keep_counts(engine, instance, &[event]);
                if let Some(session) = engine.attachments.session_mut(instance) {
                    session.detach([event]);
                }
                engine.instances.state(instance)?.enabled.insert(event);
                dependents::propagate_enabled(engine, instance, event)?;
            }
            Change::Detach => {
                let gone = detach_events(engine, instance, &[event])?;
                let linked = gone.into_iter().map(|event| link_eprobe(engine, instance, event, false));
                let linked = linked.fold(Ok(()), Result::and);
                linked.and(dependents::propagate_enabled(engine, instance, event))?;
            }
        }
    }
    refused
}

/// Replaces the programs of the triggers that enable or disable an event, which may be its own, if the event has another
/// slot now.
fn follow_slot(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let switching = engine.instances.state(instance)?.triggers.switching(event, false);
    switching.into_iter().map(|other| follow_state(engine, instance, other)).fold(Ok(()), Result::and)
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

/// Replaces the programs of an attached event by the wanted ones.
fn replace_program(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let catalogue = engine.registry.events().clone();
    let format = catalogue.known_format(event).ok_or(ErrorKind::Gone)?;
    desired::with_config(engine, instance, event, format, |session, config| {
        Ok(session.change(event, config)?)
    })?;
    dependents::propagate_enabled(engine, instance, event)
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
pub(super) fn link_eprobe(
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
