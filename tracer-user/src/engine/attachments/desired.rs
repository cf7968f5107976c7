//! Derives the settings of each event's program from the wanted state.

use crate::{
    engine::{
        Engine,
        attachments::session::event_config::EventSettings,
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        registry::catalogue::{Events, SPECIAL, STACKS},
    },
    event::{EventId, InstanceId},
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
