//! Enabling many events at once: slow work begins early and runs in several threads.
//!
//! A thread opens the perf tracepoints while hooks are chosen and programs are made. As many threads as there are
//! CPUs make the programs, up to a limit ([`BulkBuilder`]). The events are then attached one by one, as a few events
//! are.

use std::sync::atomic::AtomicBool;

use crate::{
    attach::{Ahead, AttachPoint, Built, BulkBuilder, Opening},
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::event_config::{EventConfig, EventSettings},
        },
        hooks::{AttachPlan, BULK_THRESHOLD},
    },
    event::{EventId, Format, InstanceId},
};

/// Work that was begun for many events.
pub(crate) struct BulkEnable {
    opening: Opening,
    /// Perf events that are being opened. `None` while it is not known yet which perf tracepoints are needed.
    ahead: Option<Ahead>,
}

/// Makes closers of perf events wait while the events are attached.
pub(crate) struct BulkGuard {
    _opening: Opening,
}

/// Before many events are enabled, reads their formats and begins to open their perf tracepoints. `None` for at most
/// [`BULK_THRESHOLD`] events.
pub(crate) fn begin_bulk(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
) -> Option<BulkEnable> {
    if events.len() <= BULK_THRESHOLD {
        return None;
    }
    let opening = engine.run_off_thread(Opening::begin);
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    engine.run_off_thread(|| catalogue.read_formats(events, &facts));
    // A recording chooses its hooks before it opens perf events.
    let is_known = engine.attachments.options().recording.is_none();
    Some(BulkEnable { opening, ahead: is_known.then(|| open_ahead(engine, instance, events)) })
}

/// Makes the programs of many events. Gives them, and the perf events that are being opened, to the session.
pub(crate) fn prepare(
    engine: &mut Engine,
    instance: InstanceId,
    events: &[EventId],
    bulk: Option<BulkEnable>,
) -> Option<BulkGuard> {
    let BulkEnable { opening, ahead } = bulk?;
    let ahead = ahead.unwrap_or_else(|| open_ahead(engine, instance, events));
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.style.share();
    }
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let mut new: Vec<BuildInput<'_>> = Vec::new();
    for event in events {
        engine.yield_to_readers();
        if is_to_attach(engine, instance, *event)
            && let Some(format) = catalogue.format(*event, &facts)
            && let Ok(settings) = desired::settings(engine, instance, *event)
        {
            new.push(BuildInput {
                event: *event,
                format,
                plan: engine.attachments.hooks().of(format),
                settings,
            });
        }
    }
    if let Some(session) = engine.attachments.session(instance) {
        let (builder, stop) = (session.kernel().bulk_builder(), engine.scheduler.stop_flag());
        let built = engine.run_off_thread(|| build(&builder, &new, &stop));
        if let Some(session) = engine.attachments.session_mut(instance) {
            session.take_built(built, new.into_iter().map(|input| (input.event, input.settings)).collect());
            session.kernel_mut().opened().set_ahead(ahead);
        }
    }
    Some(BulkGuard { _opening: opening })
}

/// Inputs for the program of one event.
struct BuildInput<'a> {
    event: EventId,
    format: &'a Format,
    plan: AttachPlan,
    settings: EventSettings,
}

/// Makes the programs of those events that can share one with others.
fn build(builder: &BulkBuilder, new: &[BuildInput<'_>], stop: &AtomicBool) -> Vec<Built> {
    let shared = new.iter().filter(|input| input.plan.point.shares());
    let requests: Vec<_> = shared
        .map(|BuildInput { format, plan, settings, .. }| {
            EventConfig { format, settings, begins_off: false }.request(&plan.point, &plan.context)
        })
        .collect();
    builder.build(&requests, stop)
}

/// Begins to open the perf tracepoints that these events will be attached to, as far as they are known.
fn open_ahead(engine: &Engine, instance: InstanceId, events: &[EventId]) -> Ahead {
    let new = events.iter().filter(|event| is_to_attach(engine, instance, **event));
    let formats = new.filter_map(|event| engine.registry.events().format(*event, &engine.facts));
    let ids = formats.filter_map(|format| engine.attachments.hooks().perf_id(format));
    Ahead::start(ids.filter(|id| !engine.attachments.is_linked(&AttachPoint::Tracepoint(*id))).collect())
}

/// Whether enabling an event attaches a program to a kernel hook.
fn is_to_attach(engine: &Engine, instance: InstanceId, event: EventId) -> bool {
    let session = engine.attachments.session(instance);
    let is_there =
        session.is_some_and(|session| session.is_off(event).is_some() || session.is_claimed(event));
    !is_there && !engine.registry.events().is_made(event)
}
