//! Adding and removing triggers of events: `events/SYSTEM/EVENT/trigger`.
//!
//! An event with triggers is attached even if it is disabled, and so is an event that triggers enable or disable. A
//! word on the kernel's side states whether such an event is recorded ([`tracer_abi::Switches::soft`]).

use crate::{
    engine::{
        Engine,
        attachments::reconcile::{self, Goal, reconcile},
        command::error::{CommandError, ErrorKind},
        histograms::commands as hist_commands,
        instances::{
            filter,
            trigger_list::{InstalledTrigger, Kind},
        },
    },
    event::{EventId, InstanceId},
    lang::trigger::{self, Argument, Command, SimpleAction, Target},
};

/// First kernel that logs an invalid filter of a trigger in `error_log`. Observed: not on 6.1, but on 6.12. The
/// versions in between were not checked.
const LOGGED: (u32, u32) = (6, 2);

/// Applies a write to an event's `trigger` file.
pub(crate) fn set_trigger(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    written: &[u8],
) -> Result<(), CommandError> {
    let line = trigger::read(written)?;
    let (kind, argument) = match line.command {
        Command::Simple(act, argument) => (Kind::Simple(act), argument),
        Command::Switch(switch, target, argument) => {
            (Kind::Switch(switch, event_of(engine, target)?), argument)
        }
        Command::Hist(text) => return hist_commands::set_hist(engine, instance, event, text, line.remove),
    };
    if line.remove {
        let state = engine.instances.state(instance)?;
        if let Some(at) = state.triggers.find(event, kind) {
            remove_trigger(engine, instance, event, at)?;
        }
        return Ok(());
    }
    let trigger = checked_trigger(engine, event, kind, argument)?;
    if engine.instances.state(instance)?.triggers.find(event, kind).is_some() {
        return Err(ErrorKind::Exists.into());
    }
    install_trigger(engine, instance, event, trigger)
}

/// The target event of a trigger. It must be an event that can be enabled.
fn event_of(engine: &Engine, target: Target<'_>) -> Result<EventId, CommandError> {
    let name = |text| std::str::from_utf8(text).map_err(|_| ErrorKind::Invalid);
    let system = engine.registry.events().find_system(name(target.system)?).ok_or(ErrorKind::Invalid)?;
    let event = engine.registry.events().find(system, name(target.event)?).ok_or(ErrorKind::Invalid)?;
    if engine.registry.events().is_special(system) { Err(ErrorKind::Invalid.into()) } else { Ok(event) }
}

/// A trigger with its count and filter, checked in the kernel's order.
fn checked_trigger(
    engine: &mut Engine,
    event: EventId,
    kind: Kind,
    argument: Argument<'_>,
) -> Result<InstalledTrigger, CommandError> {
    let count = argument.count()?;
    let filter = match argument.filter()? {
        None => None,
        Some(text) => match filter::resolve(engine, event, text)? {
            Ok(filter) => Some((text.to_vec(), filter)),
            Err(error) => {
                let error = CommandError::from(error);
                return Err(if engine.facts.version() >= LOGGED { error } else { error.unlogged() });
            }
        },
    };
    Ok(InstalledTrigger::new(kind, count, filter))
}

/// Installs a trigger. If something is refused, nothing changes.
fn install_trigger(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    trigger: InstalledTrigger,
) -> Result<(), CommandError> {
    let (kind, count) = (trigger.kind, trigger.count);
    engine.make_session(instance)?;
    if kind == Kind::Simple(SimpleAction::Snapshot) {
        // Programs do not overwrite records any more, so that a snapshot has those before it.
        engine.collect(instance);
        engine.instances.state(instance)?.arm_snapshot();
    }
    if let Some((target, idle)) = kind.target() {
        reconcile::soft_mode_get(engine, instance, target, idle)?;
    }
    let state = engine.instances.get_mut(instance).ok_or(ErrorKind::Gone)?;
    let first = state.triggers.of(event).is_empty();
    let done = match state.triggers.insert(event, trigger) {
        Err(errno) => Err(errno),
        Ok(place) => {
            if let (Some(place), Some(session)) = (place, engine.attachments.session(instance)) {
                session.kernel().switches().set_count(place, count);
            }
            let done = if first && !engine.registry.is_special(event) {
                reconcile::soft_mode_get(engine, instance, event, false)
            } else {
                reconcile(engine, instance, &[event], Goal::Unchanged)
            };
            if done.is_err() {
                engine.instances.state(instance)?.triggers.remove(event, 0);
            }
            done
        }
    };
    if let (Err(_), Some((target, idle))) = (&done, kind.target()) {
        reconcile::soft_mode_put(engine, instance, target, idle)?;
    }
    done
}

/// Removes the trigger at an index of an event's list.
fn remove_trigger(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    at: usize,
) -> Result<(), CommandError> {
    // Its earlier requests must take effect first.
    engine.collect(instance);
    let state = engine.instances.state(instance)?;
    let Some(trigger) = state.triggers.remove(event, at) else { return Ok(()) };
    let done = if state.triggers.of(event).is_empty() && !engine.registry.is_special(event) {
        reconcile::soft_mode_put(engine, instance, event, false)
    } else {
        reconcile(engine, instance, &[event], Goal::Unchanged)
    };
    match trigger.kind.target() {
        Some((target, idle)) => done.and(reconcile::soft_mode_put(engine, instance, target, idle)),
        None => done,
    }
}
