//! Work for an event that other threads do, so that the owner does not wait for the kernel.
//!
//! To link an event at a file, the kernel waits for every process that has the file mapped. To read a format or to
//! open a perf event, it waits for `event_mutex`, which it holds while it closes other events.

use crate::{
    attach::{self, AttachPoint, Cause, Job, Opening},
    engine::{
        Cooperative, Engine,
        attachments::{desired, session::event_config::EventConfig},
        command::error::{CommandError, ErrorKind},
        hooks::AttachPlan,
        probes,
        scheduler::FILE_WORK_LIMIT,
    },
    event::{EventId, Format, InstanceId, dynamic::Target},
    lang::define::{Defined, Probe},
};

/// Links those of an event's probes that are at files and not attached yet.
pub(crate) fn link_probes(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    probes: &[Defined],
    config: &EventConfig<'_>,
) -> Result<(), CommandError> {
    let facts = engine.facts.clone();
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    let (planned, jobs) = session.plan_probes(event, probes, config, &facts);
    let made =
        engine.run_off_thread_within(FILE_WORK_LIMIT, move || jobs.into_iter().map(Job::run).collect());
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    session.finish_probes(event, planned, made, config);
    Ok(())
}

/// Links an event of a program.
pub(crate) fn link_file(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    chosen: &AttachPlan,
    config: &EventConfig<'_>,
) -> Result<(), CommandError> {
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    let planned = session.plan_attach(event, chosen, config)?;
    let Some((planned, job)) = planned else { return Ok(()) };
    let made = engine.run_off_thread_within(FILE_WORK_LIMIT, move || job.run());
    let made = made.unwrap_or_else(|error| Err(Cause::Hook("uprobe", error.errno())));
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    session.finish_attach(event, chosen, (planned, made), config).map_err(CommandError::from)
}

/// Reads an event's format in another thread, if it is not known yet.
pub(crate) fn read_format(engine: &mut Engine, event: EventId) -> Result<(), CommandError> {
    if engine.registry.events().known_format(event).is_some() {
        return Ok(());
    }
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    engine.run_off_thread(|| catalogue.try_format(event, &facts).map(drop))
}

/// Opens the perf event for an event at an attach point, in another thread. Does nothing if the attach point has
/// none, or if it is open or being opened.
pub(crate) fn open_perf_event(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    point: &AttachPoint,
) {
    // A parked event has its perf event.
    let session = engine.attachments.session_mut(instance);
    if session.is_none_or(|session| session.claim(event) || session.kernel().has_perf_event(point)) {
        return;
    }
    let opened = engine.run_off_thread(|| {
        let _opening = Opening::begin();
        attach::open_perf_event(point)
    });
    if let (Some(session), Some(opened)) = (engine.attachments.session_mut(instance), opened) {
        session.kernel_mut().opened().give(point.clone(), opened);
    }
}

/// Opens the perf events for the first candidates of probes.
pub(crate) fn open_for_probes<'a>(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    probes: impl Iterator<Item = &'a Probe>,
) {
    let facts = engine.facts.clone();
    let opens = |probe: &&Probe| matches!(probe.event.target, Target::Kernel { .. } | Target::Event { .. });
    for probe in probes.filter(opens) {
        if probes::waits(probe, &facts) == Some(true) {
            continue;
        }
        // To find the candidates of an event probe, the event's format is read.
        let first = engine.run_off_thread(|| probes::candidates(probe, &facts).usable.into_iter().next());
        if let Some(first) = first {
            open_perf_event(engine, instance, event, &first.point);
        }
    }
}

/// Chooses the hooks of these events, in another thread.
pub(crate) fn choose_hooks(engine: &mut Engine, events: &[EventId]) {
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let Some(factory) = engine.attachments.factory().cloned() else { return };
    let mut choices = std::mem::take(engine.attachments.hooks_mut());
    // A recording has one instance, and tries hooks in its session.
    let recording = engine.attachments.options().recording;
    let mut session = recording.and_then(|_| engine.attachments.remove(InstanceId::TOP));
    engine.run_off_thread(|| {
        let traced = events.iter().filter(|event| !catalogue.is_made(**event));
        let formats: Vec<&Format> = traced.filter_map(|event| catalogue.format(*event, &facts)).collect();
        facts.learn_pages(formats.iter().copied());
        choices.learn(&formats, &factory, session.as_mut(), &facts);
    });
    *engine.attachments.hooks_mut() = choices;
    if let Some(session) = session {
        engine.attachments.insert(InstanceId::TOP, session);
    }
}

/// Attaches an event to its perf tracepoint, because a program at the raw tracepoint was refused.
pub(crate) fn attach_tracepoint(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    why: String,
    config: &EventConfig<'_>,
) -> Result<(), CommandError> {
    let plan = AttachPlan::tracepoint(config.format, why);
    open_perf_event(engine, instance, event, &plan.point);
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { settings: &settings, ..*config };
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    session.attach_hook(event, &plan, &config).map_err(CommandError::from)
}

/// Reads the formats of the events that a histogram's `onmatch(SYSTEM.EVENT)` names.
pub(crate) fn read_matched_formats(engine: &mut Engine, command: &[u8]) {
    let text = String::from_utf8_lossy(command);
    for named in text.split("onmatch(").skip(1) {
        let name = named.split(')').next().and_then(|name| name.split_once('.'));
        let event = name.and_then(|(system, name)| {
            engine.registry.events().find(engine.registry.events().find_system(system.trim())?, name.trim())
        });
        if let Some(event) = event {
            // The command finds the error again.
            let _ = read_format(engine, event);
        }
    }
}
