//! Emitting synthetic events: from user space, and as a part of programs in the kernel.

use std::{path::Path, sync::Arc};

use crate::{
    attach::{Block, published::KINDS},
    engine::{
        Engine,
        command::error::{CommandError, ErrorKind},
        dependents::{delivery::Delivery, parts::Derivation},
        instances::change::InstanceChange,
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
    let record = engine.registry.synthetic().record(event, values, writer.pid, engine.registry.events())?;
    let all: Vec<InstanceId> = engine.instances.ids();
    for instance in all {
        InstanceChange::of(engine, instance).emit_record(event, &record, writer);
    }
    Ok(())
}

impl InstanceChange<'_> {
    /// Emits a synthetic event from user space in one instance, if it is enabled there (`synth_event_trace()`).
    ///
    /// # Errors
    /// `ENODEV` for a deleted event; `EINVAL` for an event that is not synthetic, for values that do not match its
    /// fields, and while nothing is recorded.
    pub(crate) fn emit_in(
        &mut self,
        event: EventId,
        values: &[Value<'_>],
        writer: Writer,
    ) -> Result<(), CommandError> {
        if !self.engine.registry.synthetic().contains(event) {
            let is_gone = self.engine.registry.events().get(event).is_none();
            return Err(if is_gone { ErrorKind::Gone } else { ErrorKind::Invalid }.into());
        }
        let state = self.engine.instances.state(self.instance)?;
        if !state.is_enabled(event) {
            return Ok(());
        }
        if !self.engine.status(self.instance).is_some_and(|status| status.records()) {
            return Err(ErrorKind::Invalid.into());
        }
        let registry = &self.engine.registry;
        let record = registry.synthetic().record(event, values, writer.pid, registry.events())?;
        self.emit_record(event, &record, writer);
        Ok(())
    }

    fn emit_record(&mut self, event: EventId, record: &[u8], writer: Writer) {
        Arc::make_mut(&mut self.engine.tasks).look_up(writer.pid.cast_signed(), true);
        Delivery::of(self.engine, self.instance, record, writer).deliver(event);
    }
}

/// A function with which one program emits a synthetic event in the kernel (`code::lower::emission` describes its
/// arguments). `None` if no instance has the event enabled. It is valid for the present state of the event.
///
/// # Errors
/// `ENOENT` for an unknown event, and the kernel's errors.
pub fn emission(engine: &Engine, name: &str) -> Result<Option<Block>, CommandError> {
    let event = engine.registry.synthetic().number(name).ok_or(ErrorKind::NotFound)?;
    Derivation::of(engine).emission(event).map_or(Ok(None), |part| part.build(engine))
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

fn publish_one(engine: &Engine, published: &mut PublishedEvents, name: &str) -> Result<(), CommandError> {
    published.open(name)?;
    // One per kind of program, because the memory that a record is built in belongs to one program.
    let emissions: Result<Vec<_>, _> = KINDS.iter().map(|_| emission(engine, name)).collect();
    // Programs outside the engine do not emit an event whose emission is refused.
    let (emissions, done) = match emissions {
        Ok(emissions) => (emissions.into_iter().flatten().collect(), Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    done.and(published.update(engine.registry.synthetic(), name, emissions))
}
