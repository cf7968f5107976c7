//! Reconciliation: makes the attached programs match an instance's wanted state.
//!
//! A command changes wanted state: the enabled events, filters, triggers, references for soft mode, options.
//! [`reconcile`] then compares it with the attached programs, event by event ([`step`]), and applies the difference.
//! Many events are handled in batches, with programs and links made by several threads. If something is refused, the
//! program that was attached before stays, and the command takes its change of wanted state back.
//!
//! Programs share one piece of this state: a word says whether an event in soft mode is disabled, and triggers change
//! it. A disabled event stays attached while it is in soft mode. If all references for soft mode have programs of
//! their own, such an event is idle: it counts as attached and has no program.

use crate::{
    attach::Opening,
    engine::{
        Cooperative, Engine,
        attachments::{attach_event::attach_event, bulk_enable, bulk_functions, desired, off_thread},
        command::error::{CommandError, ErrorKind},
        dependents,
        operations::probe_counts,
    },
    event::{EventId, InstanceId, dynamic::Target},
};

/// Number of events that are detached before readers are served.
const BATCH: usize = 32;

/// The goal for events, in addition to their instance's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The events are recorded.
    On,
    /// User space disables the events. Triggers may enable them.
    Off,
    /// The events stay enabled or disabled.
    Unchanged,
}

/// The wanted and the attached state of an event.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
struct Situation {
    /// Triggers may enable and disable the event.
    soft: bool,
    /// Nothing needs the event's own program while the event is disabled.
    may_idle: bool,
    /// The event counts as attached.
    attached: bool,
    /// It counts as attached and has no program.
    idle: bool,
    /// It is soft-disabled, by a trigger or by user space.
    off: bool,
}

/// The change that brings an event from its situation to a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A program is attached, soft-disabled at first or not.
    Attach { begins_off: bool },
    /// The attached program records again.
    TurnOn,
    /// The attached program stays and records nothing.
    TurnOff,
    /// The program is removed, and the event counts as attached.
    Idle,
    /// The event is detached.
    Detach,
    /// The program is replaced by the wanted one.
    Replace,
}

fn step(goal: Goal, is: Situation) -> Step {
    match goal {
        Goal::On if is.attached && !is.idle => Step::TurnOn,
        Goal::On => Step::Attach { begins_off: false },
        Goal::Off if !is.soft => Step::Detach,
        Goal::Off if is.may_idle => Step::Idle,
        Goal::Off => Step::TurnOff,
        // The first reference for soft mode was added.
        Goal::Unchanged if is.soft && !is.attached && is.may_idle => Step::Idle,
        Goal::Unchanged if is.soft && (!is.attached || (is.idle && !is.may_idle)) => {
            Step::Attach { begins_off: true }
        }
        // The last reference was removed.
        Goal::Unchanged if is.attached && is.off && !is.soft => Step::Detach,
        // The last reference that needs a program was removed.
        Goal::Unchanged if is.attached && is.off && is.may_idle && !is.idle => Step::Idle,
        Goal::Unchanged => Step::Replace,
    }
}

fn situation(engine: &Engine, instance: InstanceId, event: EventId) -> Situation {
    let Some(state) = engine.instances.get(instance) else { return Situation::default() };
    Situation {
        soft: state.triggers.is_soft(event),
        // The programs that are attached for an event without a tracepoint make its records.
        may_idle: state.triggers.is_idle(event) && !engine.registry.events().is_made(event),
        attached: state.is_enabled(event),
        idle: engine.attachments.is_idle(instance, event),
        off: engine.attachments.is_soft_off(instance, event),
    }
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
        let done = match step(Goal::On, situation(engine, instance, *event)) {
            Step::TurnOn => {
                if let Some(session) = engine.attachments.session(instance) {
                    session.set_soft_off(*event, false);
                }
                Ok(())
            }
            _ => attach_event(engine, instance, *event, false),
        };
        first = first.and(done.map_err(|error| engine.log_error(instance, error)));
    }
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.kernel_mut().forget_ahead();
        session.drop_prepared();
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
    let steps = events.iter().map(|event| (*event, step(Goal::Off, situation(engine, instance, *event))));
    let steps: Vec<(EventId, Step)> = steps.collect();
    let of = |wanted: Step| steps.iter().filter(move |(_, step)| *step == wanted).map(|(event, _)| *event);
    let mut gone = Vec::new();
    let detached: Vec<EventId> = of(Step::Detach).collect();
    for batch in detached.chunks(BATCH) {
        gone.extend(detach_events(engine, instance, batch)?);
        engine.yield_to_readers();
    }
    if let Some(session) = engine.attachments.session(instance) {
        of(Step::TurnOff).chain(of(Step::Idle)).for_each(|event| session.set_soft_off(event, true));
    }
    of(Step::Idle).for_each(|event| make_idle(engine, instance, event));
    let mut first = Ok(());
    for event in gone {
        first = first.and(link_eprobe(engine, instance, event, false));
        engine.yield_to_readers();
    }
    for event in events {
        first = first.and(dependents::propagate_enabled(engine, instance, *event));
        engine.yield_to_readers();
    }
    first
}

/// Makes one event match its instance's state. The event stays enabled or disabled.
fn follow_state(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let is = situation(engine, instance, event);
    match step(Goal::Unchanged, is) {
        Step::Attach { begins_off } => {
            off_thread::choose_hooks(engine, &[event]);
            attach_event(engine, instance, event, begins_off)
        }
        Step::Detach => {
            let mut first = Ok(());
            for gone in detach_events(engine, instance, &[event])? {
                first = first.and(link_eprobe(engine, instance, gone, false));
            }
            first.and(dependents::propagate_enabled(engine, instance, event))
        }
        Step::Idle => {
            make_idle(engine, instance, event);
            engine.instances.state(instance)?.enabled.insert(event);
            dependents::propagate_enabled(engine, instance, event)
        }
        Step::Replace | Step::TurnOn | Step::TurnOff => replace_program(engine, instance, event),
    }
}

/// Removes the program of an event that counts as attached.
fn make_idle(engine: &mut Engine, instance: InstanceId, event: EventId) {
    probe_counts::keep_counts(engine, instance, &[event]);
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.idle_at(event);
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

/// Replaces the program of an attached event by the wanted one. An event that is not attached stays detached.
fn replace_program(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    engine.instances.state(instance)?;
    if engine.attachments.session(instance).is_none() {
        return Ok(());
    }
    let catalogue = engine.registry.events().clone();
    // An event whose format was never read was never attached.
    let Some(format) = catalogue.known_format(event) else {
        return dependents::propagate_enabled(engine, instance, event);
    };
    let special = catalogue.get(event).is_some_and(|known| catalogue.is_special(known.system));
    desired::with_config(engine, instance, event, format, |session, config| {
        let done = if special {
            session.set_marker(event, (!config.settings.triggers.is_empty()).then_some(config))
        } else {
            session.change(event, config)
        };
        done.map_err(CommandError::from)
    })?;
    dependents::propagate_enabled(engine, instance, event)
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
    for probe in probes {
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

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACHED: Situation =
        Situation { soft: false, may_idle: false, attached: true, idle: false, off: false };

    #[test]
    fn user_space_turns_events_on_and_off() {
        let nothing = Situation::default();
        assert_eq!(step(Goal::On, nothing), Step::Attach { begins_off: false });
        assert_eq!(step(Goal::On, ATTACHED), Step::TurnOn);
        let idle = Situation { soft: true, may_idle: true, idle: true, off: true, ..ATTACHED };
        assert_eq!(step(Goal::On, idle), Step::Attach { begins_off: false });
        assert_eq!(step(Goal::Off, ATTACHED), Step::Detach);
        assert_eq!(step(Goal::Off, Situation { soft: true, ..ATTACHED }), Step::TurnOff);
        assert_eq!(step(Goal::Off, Situation { soft: true, may_idle: true, ..ATTACHED }), Step::Idle);
        assert_eq!(step(Goal::Off, nothing), Step::Detach);
    }

    #[test]
    fn reasons_for_soft_mode_come_and_go() {
        let unchanged = |is| step(Goal::Unchanged, is);
        let soft = Situation { soft: true, ..Situation::default() };
        assert_eq!(unchanged(soft), Step::Attach { begins_off: true });
        assert_eq!(unchanged(Situation { may_idle: true, ..soft }), Step::Idle);
        let idle = Situation { soft: true, may_idle: true, idle: true, off: true, ..ATTACHED };
        assert_eq!(unchanged(idle), Step::Replace);
        assert_eq!(unchanged(Situation { may_idle: false, ..idle }), Step::Attach { begins_off: true });
        assert_eq!(unchanged(Situation { idle: false, ..idle }), Step::Idle);
        assert_eq!(unchanged(Situation { soft: false, may_idle: false, idle: false, ..idle }), Step::Detach);
        // The last reference is removed while the event is enabled.
        assert_eq!(unchanged(ATTACHED), Step::Replace);
        assert_eq!(unchanged(Situation { soft: true, ..ATTACHED }), Step::Replace);
        assert_eq!(unchanged(Situation::default()), Step::Replace);
    }
}
