//! `events/SYSTEM/EVENT/inject`: a record of any event, made in user space. It passes the event's filter. It also
//! passes the triggers that read the record, even if the event is disabled (`trace_inject_entry()`).

use std::sync::Arc;

use tracer_abi::COMMON_SIZE;

use crate::{
    attach,
    engine::{
        attachments::{desired, session::event_config::EventConfig},
        command::error::{CommandError, ErrorKind},
        dependents::delivery::Delivery,
        instances::change::InstanceChange,
        records::mark::Writer,
    },
    event::EventId,
    lang,
};

/// A write must be shorter than a page.
const LIMIT: usize = 4096;

impl InstanceChange<'_> {
    /// Records a write to an event's `inject`.
    ///
    /// # Errors
    /// The errors of [`lang::inject::record`]; `EINVAL` for a text as long as a page; the kernel's error for the
    /// program.
    pub(crate) fn inject(&mut self, event: EventId, text: &[u8], writer: Writer) -> Result<(), CommandError> {
        if text.len() >= LIMIT {
            return Err(ErrorKind::Invalid.into());
        }
        self.reconciler().read_format(event)?;
        let (catalogue, facts) = (self.engine.registry.events().clone(), self.engine.facts.clone());
        let format = catalogue.try_format(event, &facts)?;
        let mut common = [0; COMMON_SIZE];
        common[..2].copy_from_slice(&format.id.to_ne_bytes());
        common[4..].copy_from_slice(&writer.pid.to_ne_bytes());
        let record = lang::inject::record(text, format, common)?;
        self.engine.make_session(self.instance)?;
        Arc::make_mut(&mut self.engine.tasks).look_up(writer.pid.cast_signed(), true);
        let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
        if self.engine.histograms.counts_event(self.instance, event) {
            Delivery::of(self.engine, self.instance, &record, writer).count_in_histograms(event);
        }
        self.state()?.recorded.insert(event);
        let settings = desired::settings(self.engine, self.instance, event)?;
        let config = EventConfig { format, settings: &settings, begins_off: false };
        let session = self.engine.attachments.session_mut(self.instance).ok_or(ErrorKind::Gone)?;
        let actions = session.inject(event, &config, &record, &hit)?;
        let mut delivery = Delivery::of(self.engine, self.instance, &record, writer);
        delivery.perform(actions);
        delivery.pass_to_eprobes(event);
        Ok(())
    }
}
