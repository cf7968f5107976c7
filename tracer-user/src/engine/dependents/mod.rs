//! The dependents of events without a tracepoint: the event probes on such an event, and its histograms.
//!
//! The records of a synthetic event come from the programs that emit it. The records of an event probe on such an
//! event are made from the records of its target. The records of a dynamic event come from relays on the hooks of its
//! probes, which are attached as long as the event has dependents. Each instance has its own relays.
//!
//! After a change, the programs of all affected events are derived anew ([`parts`]) and compared ([`update`]).

mod affected;
pub(crate) mod emission;
pub(crate) mod hist_programs;
mod parts;
mod relays;
pub(crate) mod sources;
pub(crate) mod writer_stack;

use self::{
    affected::{Containers, affected},
    sources::{RecordSources, Source},
};
use crate::{
    attach,
    engine::{
        Engine,
        attachments::session::table::{AttachedParts, ProgramRole},
        command::error::CommandError,
        records::mark::Writer,
    },
    event::{EventId, InstanceId},
};

/// Updates the programs that have an event's records, after its dependents changed in an instance.
pub(crate) fn update(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    update_from(engine, instance, event, 0)
}

/// Updates the programs that have an event as their dependent, after the event was enabled, disabled or changed in an
/// instance.
pub(crate) fn propagate_enabled(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
) -> Result<(), CommandError> {
    update_from(engine, instance, event, 1)
}

/// Updates the programs of all affected events, except the first ones.
fn update_from(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    skipped: usize,
) -> Result<(), CommandError> {
    let all = affected(instance, event, |instance, event| containers(engine, instance, event));
    let mut first = Ok(());
    for (number, one) in all.into_iter().enumerate() {
        if engine.registry.synthetic().contains(one.event) {
            engine.registry.synthetic_mut().count_change(one.event);
        }
        if number < skipped || engine.attachments.session(one.instance).is_none() {
            continue;
        }
        let relayed = relays::reconcile(engine, one.instance, one.event);
        let done = relayed.and(hist_programs::reconcile(engine, one.instance, one.event));
        if one.is_emitter {
            // The command that changed the synthetic event is complete.
            let name = engine.registry.events().full_name(one.event);
            done.unwrap_or_else(|error| tracing::warn!("{name}: {error}"));
        } else {
            first = first.and(done);
        }
    }
    first
}

/// The events whose programs contain the dependents of an event.
fn containers(engine: &Engine, instance: InstanceId, event: EventId) -> Containers {
    match RecordSources::of(engine).source(event) {
        Some(Source::Emission) => {
            let number = |name: &str| engine.registry.synthetic().number(name);
            let events = engine.histograms.emitters(|name| number(name) == Some(event)).collect();
            Containers { events, are_emitters: true }
        }
        Some(Source::Event(target)) => Containers { events: vec![(instance, target)], are_emitters: false },
        Some(Source::Hooks(_) | Source::Place(_) | Source::Writers) | None => Containers::default(),
    }
}

/// Passes a record from user space to an event, if it is enabled in an instance, and to the dependents there, and
/// performs the actions that their triggers request.
pub(crate) fn pass_record(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: Writer,
) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    hist_programs::count_record(engine, instance, event, record, &hit);
    emit_one(engine, instance, event, record, writer);
    pass_to_eprobes(engine, instance, event, record, writer);
}

/// Passes a record from user space to the event probes on its event, and to their histograms.
pub(crate) fn pass_to_eprobes(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: Writer,
) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    for (probe, _) in RecordSources::of(engine).probes_on(event) {
        emit_one(engine, instance, probe, record, writer);
        let Some(session) = engine.attachments.session(instance) else { continue };
        for relay in session.table.get(probe, ProgramRole::Relay).into_iter().flat_map(AttachedParts::iter) {
            if let Err(error) = relay.attached.run(record, &hit) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Records a record from user space, and performs the actions that the event's triggers request.
fn emit_one(engine: &mut Engine, instance: InstanceId, event: EventId, record: &[u8], writer: Writer) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    let session = engine.attachments.session(instance);
    match session.map_or(Ok(0), |session| session.run(event, ProgramRole::Emitted, record, &hit)) {
        Ok(actions) => writer_stack::perform(engine, instance, actions, record, writer),
        Err(error) => tracing::warn!("{error}"),
    }
}
