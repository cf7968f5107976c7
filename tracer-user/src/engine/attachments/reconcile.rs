//! Reconciliation: from what an instance wants of events to what is attached for them.
//!
//! A command changes wanted state: the enabled events, filters, triggers, reasons for soft mode, options. [`reconcile`] then
//! compares it with what is attached, event by event ([`step`]), and makes the difference. Many events are handled in
//! batches, with programs and links made by several threads. If something is refused, what was attached before stays, and
//! the command takes its change of wanted state back.
//!
//! The kernel's side shares one piece of this state: a word says whether an event in soft mode is off, and triggers change
//! it. An event that is off stays attached while it is in soft mode. If all reasons for soft mode have programs of their own,
//! such an event is idle: it counts as attached and has no program.

use rustix::io::Errno;

use crate::{
    attach::Opening,
    engine::{
        Cooperative, Engine,
        attachments::{attach_event::attach_event, desired, session::log_to_errno},
    },
    event::{EventId, InstanceId, dynamic::Target},
};

/// Events that are detached between two turns of readers.
const BATCH: usize = 32;

/// What is wanted of events besides what their instance's state says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Goal {
    /// They are recorded.
    On,
    /// They are not recorded, as far as user space is concerned: triggers may turn them on.
    Off,
    /// They are what they were, on or off.
    Unchanged,
}

/// An event as it is wanted and as it is attached.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
struct Situation {
    /// Triggers may turn the event on and off.
    soft: bool,
    /// Nothing needs the event's own program while the event is off.
    may_idle: bool,
    /// The event counts as attached.
    attached: bool,
    /// It counts as attached and has no program.
    idle: bool,
    /// It is off, by a trigger or as one would do it.
    off: bool,
}

/// How an event comes from its situation to a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A program is attached, turned off at first or not.
    Attach { begins_off: bool },
    /// The attached program goes on recording.
    TurnOn,
    /// The attached program stays and records nothing.
    TurnOff,
    /// The program goes, and the event counts as attached.
    Idle,
    /// The event is detached.
    Detach,
    /// The program is replaced by the one that is wanted.
    Replace,
}

fn step(goal: Goal, is: Situation) -> Step {
    match goal {
        Goal::On if is.attached && !is.idle => Step::TurnOn,
        Goal::On => Step::Attach { begins_off: false },
        Goal::Off if !is.soft => Step::Detach,
        Goal::Off if is.may_idle => Step::Idle,
        Goal::Off => Step::TurnOff,
        // A first reason for soft mode came.
        Goal::Unchanged if is.soft && !is.attached && is.may_idle => Step::Idle,
        Goal::Unchanged if is.soft && (!is.attached || (is.idle && !is.may_idle)) => {
            Step::Attach { begins_off: true }
        }
        // The last reason went.
        Goal::Unchanged if is.attached && is.off && !is.soft => Step::Detach,
        // The last reason that needs a program went.
        Goal::Unchanged if is.attached && is.off && is.may_idle && !is.idle => Step::Idle,
        Goal::Unchanged => Step::Replace,
    }
}

fn situation(engine: &Engine, instance: InstanceId, event: EventId) -> Situation {
    let Some(state) = engine.get(instance) else { return Situation::default() };
    Situation {
        soft: state.triggers.is_soft(event),
        // An event without a tracepoint is made by the programs that are attached for it.
        may_idle: state.triggers.is_idle(event) && !engine.registry.events().is_made(event),
        attached: state.is_enabled(event),
        idle: engine.attachments.is_idle(instance, event),
        off: engine.attachments.is_soft_off(instance, event),
    }
}

/// Makes what is attached for events follow what their instance wants. As in the kernel, everything that can be done is done.
///
/// # Errors
/// The first error of an event.
pub(in crate::engine) fn reconcile(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
    goal: Goal,
) -> Result<(), Errno> {
    match goal {
        Goal::On => turn_on(engine, instance, events),
        Goal::Off => turn_off(engine, instance, events),
        Goal::Unchanged => events.iter().try_for_each(|event| {
            // A single event may be a step of a change that is not consistent yet.
            if events.len() > 1 {
                engine.yield_to_readers();
            }
            follow_state(engine, instance, *event)
        }),
    }
}

/// Turns events on: many at once share programs and links where they can.
fn turn_on(engine: &mut Engine, instance: InstanceId, events: &[EventId]) -> Result<(), Errno> {
    engine.state(instance)?.expand();
    let _opening = Opening::begin_at_once();
    let bulk = engine.begin_many(instance, events);
    engine.make_session(instance)?;
    engine.choose_hooks(events);
    let bulk = engine.prepare(instance, events, bulk);
    engine.attach_together(instance, events);
    let mut first = Ok(());
    for event in events {
        await_opened(engine, instance, *event);
        if engine.scheduler.is_stopping() {
            first = first.and(Err(Errno::INTR));
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
        first = first.and(done);
    }
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.kernel_mut().forget_ahead();
        session.drop_unused_shared();
    }
    if bulk.is_some() {
        engine.attachments.guard_events(instance);
    }
    first
}

/// Turns events off, in batches.
fn turn_off(engine: &mut Engine, instance: InstanceId, events: &[EventId]) -> Result<(), Errno> {
    engine.state(instance)?.expand();
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
    for event in gone {
        link_eprobe(engine, instance, event, false)?;
        engine.yield_to_readers();
    }
    for event in events {
        engine.changed(instance, *event)?;
        engine.yield_to_readers();
    }
    Ok(())
}

/// Lets one event follow its instance's state, on or off as it is.
fn follow_state(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), Errno> {
    let is = situation(engine, instance, event);
    match step(Goal::Unchanged, is) {
        Step::Attach { begins_off } => {
            engine.choose_hooks(&[event]);
            attach_event(engine, instance, event, begins_off)
        }
        Step::Detach => {
            for gone in detach_events(engine, instance, &[event])? {
                link_eprobe(engine, instance, gone, false)?;
            }
            engine.changed(instance, event)
        }
        Step::Idle => {
            make_idle(engine, instance, event);
            engine.state(instance)?.enabled.insert(event);
            engine.changed(instance, event)
        }
        Step::Replace | Step::TurnOn | Step::TurnOff => replace_program(engine, instance, event),
    }
}

/// Takes the program of an event away that counts as attached.
fn make_idle(engine: &mut Engine, instance: InstanceId, event: EventId) {
    engine.keep_counts(instance, &[event]);
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.idle_at(event);
    }
}

/// Detaches events; those that were attached.
fn detach_events(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
) -> Result<Vec<EventId>, Errno> {
    engine.keep_counts(instance, events);
    let state = engine.state(instance)?;
    let gone = events.iter().copied().filter(|event| state.enabled.remove(event)).collect();
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.detach(events.iter().copied());
    }
    Ok(gone)
}

/// Waits, while readers are served, until the perf event that an event will be attached to is opened.
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

/// Replaces the program of an attached event by the one that wanted state asks for. An event that is not attached stays so.
fn replace_program(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), Errno> {
    engine.state(instance)?;
    if engine.attachments.session(instance).is_none() {
        return Ok(());
    }
    let catalogue = engine.registry.events().clone();
    // An event whose format was never read was never attached.
    let Some(format) = catalogue.known_format(event) else {
        return engine.changed(instance, event);
    };
    let special = catalogue.get(event).is_some_and(|known| catalogue.is_special(known.system));
    desired::with_config(engine, instance, event, format, |session, config| {
        let done = if special {
            session.set_marker((!config.settings.triggers.is_empty()).then_some(config))
        } else {
            session.change(event, config)
        };
        done.map_err(|error| log_to_errno(&error))
    })?;
    engine.changed(instance, event)
}

/// Counts an event probe in or out on its event, which has it among its triggers (`enable_eprobe()`).
pub(super) fn link_eprobe(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    on: bool,
) -> Result<(), Errno> {
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

/// Adds a reason for soft mode (`__ftrace_event_enable_disable(file, 1, 1)`): the event is attached from here on, and is on or
/// off as it was. An idle reason has programs of its own.
///
/// # Errors
/// What the kernel refuses; the reason is not added then.
pub(in crate::engine) fn soft_mode_get(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    idle: bool,
) -> Result<(), Errno> {
    engine.state(instance)?.triggers.soft_mode_get(event, idle);
    let done = reconcile(engine, instance, &[event], Goal::Unchanged);
    if done.is_err() {
        engine.state(instance)?.triggers.soft_mode_put(event, idle);
    }
    done
}

/// Takes a reason for soft mode away. After the last one the event stays attached if it is on.
///
/// # Errors
/// What the kernel refuses.
pub(in crate::engine) fn soft_mode_put(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    idle: bool,
) -> Result<(), Errno> {
    engine.state(instance)?.triggers.soft_mode_put(event, idle);
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
        // The last reason goes while the event is on.
        assert_eq!(unchanged(ATTACHED), Step::Replace);
        assert_eq!(unchanged(Situation { soft: true, ..ATTACHED }), Step::Replace);
        assert_eq!(unchanged(Situation::default()), Step::Replace);
    }
}
