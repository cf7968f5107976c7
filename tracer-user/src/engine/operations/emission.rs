//! Emitting synthetic events: from user space, and as a part of programs in the kernel.

use std::path::Path;

use rustix::io::Errno;
use tracer_abi::asked;

use crate::{
    attach::{self, Block, published::KINDS},
    engine::{
        Engine,
        attachments::{desired, session},
        histograms::programs as hist_programs,
        records::mark::Writer,
        registry::published::PublishedEvents,
    },
    event::{EventId, InstanceId, synthetic::Value},
};

impl Engine {
    /// Emits a synthetic event from user space in all instances that have it enabled: through its filter, triggers and
    /// histograms.
    ///
    /// # Errors
    /// `ENOENT` for an event that does not exist, `EINVAL` for values that are not its fields'.
    pub fn emit(&mut self, name: &str, values: &[Value<'_>], writer: Writer) -> Result<(), Errno> {
        let event = self.registry.synthetic().number(name).ok_or(Errno::NOENT)?;
        let record = self.registry.synthetic_record(event, values, writer.pid, &self.facts)?;
        let all: Vec<InstanceId> = self.numbers().collect();
        for instance in all {
            self.emit_record(instance, event, &record, writer);
        }
        Ok(())
    }

    /// Emits a synthetic event from user space in one instance, if it is enabled there (`synth_event_trace()`).
    ///
    /// # Errors
    /// `ENODEV` for an event that is gone; `EINVAL` for one that is not synthetic, for values that are not its fields', and
    /// where nothing is recorded.
    pub fn emit_in(
        &mut self,
        instance: InstanceId,
        event: EventId,
        values: &[Value<'_>],
        writer: Writer,
    ) -> Result<(), Errno> {
        if !self.registry.synthetic().contains(event) {
            return Err(if self.registry.events().get(event).is_none() {
                Errno::NODEV
            } else {
                Errno::INVAL
            });
        }
        let state = self.state(instance)?;
        if !state.is_enabled(event) {
            return Ok(());
        }
        if !self.status(instance).is_some_and(|status| status.records()) {
            return Err(Errno::INVAL);
        }
        let record = self.registry.synthetic_record(event, values, writer.pid, &self.facts)?;
        self.emit_record(instance, event, &record, writer);
        Ok(())
    }

    fn emit_record(&mut self, instance: InstanceId, event: EventId, record: &[u8], writer: Writer) {
        self.tasks.meet(writer.pid.cast_signed(), true);
        let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
        if self.hand(instance, event, record, &hit) & asked::STACK != 0 {
            self.collect(instance);
            self.stack_of_writer(instance, record, writer);
        }
    }

    /// What a program calls to emit a synthetic event in the kernel, for that program alone (`code::lower::emission` has its
    /// arguments). None when no instance has the event enabled. It is valid for the present state of the event: once that
    /// changes, [`Engine::relink`] lets the programs that contain it be built again.
    ///
    /// # Errors
    /// `ENOENT` for an event that there is none of, and what the kernel refuses.
    pub fn emission(&mut self, name: &str) -> Result<Option<Block>, Errno> {
        self.emission_within(name, &mut Vec::new())
    }

    /// The same, within emissions of other events.
    pub(in crate::engine) fn emission_within(
        &mut self,
        name: &str,
        outer: &mut Vec<EventId>,
    ) -> Result<Option<Block>, Errno> {
        let event = self.registry.synthetic().find(name).ok_or(Errno::NOENT)?;
        let number = self.registry.synthetic().number(name).ok_or(Errno::NOENT)?;
        let (catalogue, facts) = (self.registry.events().clone(), self.facts.clone());
        let format = catalogue.format(number, &facts).ok_or(Errno::NOENT)?;
        let id = format.id;
        let mut parts = Vec::new();
        for instance in self.numbers().collect::<Vec<_>>() {
            if self.attachments.session(instance).is_some() {
                parts.extend(desired::with_config(self, instance, number, format, |session, config| {
                    session.emitted_block(number, config).map_err(|error| session::log_to_errno(&error))
                })?);
            }
        }
        for instance in self.numbers().collect::<Vec<_>>() {
            parts.extend(self.following(instance, number, outer)?);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        attach::emission(&event, id, &parts).map_err(|error| session::log_to_errno(&error))
    }

    /// Rebuilds the programs that emit a synthetic event: it is enabled elsewhere, or otherwise, than before.
    pub(in crate::engine) fn relink(&mut self, event: EventId) {
        if self.registry.synthetic().contains(event) {
            self.registry.synthetic_mut().count_change(event);
            hist_programs::rebuild_emitters(self);
        }
    }

    /// Lets programs outside of the engine emit synthetic events, by maps below a directory of a BPF file system.
    ///
    /// # Errors
    /// When the directory cannot be made or read, or is not on a BPF file system.
    pub fn publish_at(&mut self, dir: &Path) -> std::io::Result<()> {
        self.published = Some(PublishedEvents::take_over(dir)?);
        self.publish();
        Ok(())
    }

    /// Publishes the synthetic events whose programs changed to programs outside of the engine.
    pub fn publish(&mut self) {
        let Some(mut published) = self.published.take() else { return };
        for name in published.stale(self.registry.synthetic()) {
            if let Err(errno) = self.publish_one(&mut published, &name) {
                tracing::warn!("{name}: {errno}");
            }
        }
        published.disable_deleted(self.registry.synthetic());
        self.published = Some(published);
    }

    fn publish_one(&mut self, published: &mut PublishedEvents, name: &str) -> Result<(), Errno> {
        published.open(name)?;
        // One a kind: the memory that a record is built in belongs to one program.
        let mut emissions = Vec::new();
        for _ in KINDS {
            emissions.extend(self.emission(name)?);
        }
        published.update(self.registry.synthetic(), name, emissions)
    }
}
