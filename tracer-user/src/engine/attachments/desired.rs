//! Derives the settings of each event's program from the wanted state.

use crate::{
    engine::{
        Engine,
        attachments::{
            session::InstanceSession,
            session::event_config::{EventConfig, EventSettings},
        },
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        registry::catalogue::{Events, SPECIAL, STACKS},
    },
    event::{EventId, Format, InstanceId},
};

/// Kinds of the records of the kernel stack and of the user stack.
pub(crate) fn stack_kinds(facts: &Facts, events: &Events) -> [u16; 2] {
    // TRACE_STACK and TRACE_USER_STACK of kernel/trace/trace.h, if the kernel shows no format for them.
    let [kernel, user] = STACKS;
    [(kernel, 4), (user, 12)].map(|(name, usual)| {
        let event = events.find_system(SPECIAL).and_then(|system| events.find(system, name));
        event.and_then(|event| events.format(event, facts)).map_or(usual, |format| format.id)
    })
}

/// The settings that an instance wants for the program of an event.
///
/// # Errors
/// `ENODEV` when the instance is gone.
pub(crate) fn settings(
    engine: &Engine,
    instance: InstanceId,
    event: EventId,
) -> Result<EventSettings, CommandError> {
    let state = engine.instances.get(instance).ok_or(ErrorKind::Gone)?;
    let session = engine.attachments.session(instance);
    let slot = |target| session.and_then(|session| session.slot(target));
    Ok(EventSettings {
        filter: state.filters.get(&event).and_then(|filtering| filtering.filter.clone()),
        triggers: state.triggers.plan(event, slot, |target| engine.histograms.places(instance, target)),
        soft: state.triggers.is_soft(event),
        counted: engine.histograms.counts_event(instance, event),
        stacks: [state.options.is("stacktrace"), state.options.is("userstacktrace")],
        stack_kinds: stack_kinds(&engine.facts, engine.registry.events()),
    })
}

/// Calls `act` with an instance's session and the configuration that the instance wants for an event.
///
/// # Errors
/// `ENODEV` when the instance is gone or has no session, and the errors of `act`.
pub(crate) fn with_config<T>(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    format: &Format,
    act: impl FnOnce(&mut InstanceSession, &EventConfig<'_>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let settings = settings(engine, instance, event)?;
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    act(session, &EventConfig { format, settings: &settings, begins_off: false })
}
