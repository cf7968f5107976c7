//! Emitting synthetic events: from user space, and as a part of programs in the kernel.

use std::{path::Path, sync::Arc};

use crate::{
    attach::{self, Block, published::KINDS},
    engine::{
        Engine,
        attachments::desired,
        command::error::{CommandError, ErrorKind},
        dependents::{self, hist_programs},
        records::mark::Writer,
        registry::published::PublishedEvents,
    },
    event::{EventId, InstanceId, synthetic::Value},
};

impl Engine {
    /// Publishes changed synthetic events to programs outside the engine.
    pub fn publish(&mut self) {
        let Some(mut published) = self.published.take() else { return };
        for name in published.stale(self.registry.synthetic()) {
            if let Err(errno) = publish_one(self, &mut published, &name) {
                tracing::warn!("{name}: {errno}");
            }
        }
        published.disable_deleted(self.registry.synthetic());
        self.published = Some(published);
    }
}

/// Emits a synthetic event from user space in all instances that have it enabled: through its filter, triggers and
/// histograms.
///
/// # Errors
/// `ENOENT` for an unknown event, `EINVAL` for values that do not match its fields.
#[cfg(any(test, feature = "internals"))]
pub fn emit(
    engine: &mut Engine,
    name: &str,
    values: &[Value<'_>],
    writer: Writer,
) -> Result<(), CommandError> {
    let event = engine.registry.synthetic().number(name).ok_or(ErrorKind::NotFound)?;
    let record = engine.registry.synthetic_record(event, values, writer.pid, &engine.facts)?;
    let all: Vec<InstanceId> = engine.instances.ids();
    for instance in all {
        emit_record(engine, instance, event, &record, writer);
    }
    Ok(())
}

/// Emits a synthetic event from user space in one instance, if it is enabled there (`synth_event_trace()`).
///
/// # Errors
/// `ENODEV` for a deleted event; `EINVAL` for an event that is not synthetic, for values that do not match its fields,
/// and while nothing is recorded.
pub(crate) fn emit_in(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    values: &[Value<'_>],
    writer: Writer,
) -> Result<(), CommandError> {
    if !engine.registry.synthetic().contains(event) {
        let is_gone = engine.registry.events().get(event).is_none();
        return Err(if is_gone { ErrorKind::Gone } else { ErrorKind::Invalid }.into());
    }
    let state = engine.instances.state(instance)?;
    if !state.is_enabled(event) {
        return Ok(());
    }
    if !engine.status(instance).is_some_and(|status| status.records()) {
        return Err(ErrorKind::Invalid.into());
    }
    let record = engine.registry.synthetic_record(event, values, writer.pid, &engine.facts)?;
    emit_record(engine, instance, event, &record, writer);
    Ok(())
}

fn emit_record(engine: &mut Engine, instance: InstanceId, event: EventId, record: &[u8], writer: Writer) {
    Arc::make_mut(&mut engine.tasks).look_up(writer.pid.cast_signed(), true);
    dependents::pass_record(engine, instance, event, record, writer);
}

/// A function with which one program emits a synthetic event in the kernel (`code::lower::emission` describes its
/// arguments). `None` if no instance has the event enabled. It is valid for the present state of the event: after a
/// change, [`relink`] rebuilds the programs that contain it.
///
/// # Errors
/// `ENOENT` for an unknown event, and the kernel's errors.
pub fn emission(engine: &mut Engine, name: &str) -> Result<Option<Block>, CommandError> {
    emission_within(engine, name, &mut Vec::new())
}

/// Like [`emission`], within emissions of other events.
pub(crate) fn emission_within(
    engine: &mut Engine,
    name: &str,
    outer: &mut Vec<EventId>,
) -> Result<Option<Block>, CommandError> {
    let event = engine.registry.synthetic().find(name).ok_or(ErrorKind::NotFound)?;
    let number = engine.registry.synthetic().number(name).ok_or(ErrorKind::NotFound)?;
    let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
    let format = catalogue.format(number, &facts).ok_or(ErrorKind::NotFound)?;
    let id = format.id;
    let mut parts = Vec::new();
    for instance in engine.instances.ids() {
        if engine.attachments.session(instance).is_some() {
            parts.extend(desired::with_config(engine, instance, number, format, |session, config| {
                session.emitted_block(number, config, false).map_err(CommandError::from)
            })?);
        }
    }
    for instance in engine.instances.ids() {
        parts.extend(dependents::dependent_parts(engine, instance, number, outer)?);
    }
    if parts.is_empty() {
        return Ok(None);
    }
    attach::emission(&event, id, &parts).map_err(CommandError::from)
}

/// Rebuilds the programs that emit a synthetic event, after the event's instances or programs changed.
pub(crate) fn relink(engine: &mut Engine, event: EventId) {
    if engine.registry.synthetic().contains(event) {
        engine.registry.synthetic_mut().count_change(event);
        hist_programs::rebuild_emitters(engine);
    }
}

/// Lets programs outside the engine emit synthetic events, through maps in a directory of a BPF file system.
///
/// # Errors
/// The directory cannot be created or read, or is not on a BPF file system.
pub fn publish_at(engine: &mut Engine, dir: &Path) -> std::io::Result<()> {
    engine.published = Some(PublishedEvents::take_over(dir)?);
    engine.publish();
    Ok(())
}

/// Whether it pins maps in a BPF file system.
pub fn is_published(engine: &Engine) -> bool {
    engine.published.is_some()
}

fn publish_one(engine: &mut Engine, published: &mut PublishedEvents, name: &str) -> Result<(), CommandError> {
    published.open(name)?;
    // One per kind of program, because the memory that a record is built in belongs to one program.
    let mut emissions = Vec::new();
    for _ in KINDS {
        emissions.extend(emission(engine, name)?);
    }
    published.update(engine.registry.synthetic(), name, emissions)
}
