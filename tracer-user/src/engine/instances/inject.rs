//! `events/SYSTEM/EVENT/inject`: a record of any event, made in user space. It goes through the event's filter, and through
//! its triggers where one of them wants the record, be the event on or off (`trace_inject_entry()`).

use rustix::io::Errno;
use tracer_abi::{COMMON_SIZE, asked};

use crate::{
    attach,
    engine::histograms::programs as hist_programs,
    engine::{
        Engine,
        attachments::{desired, session},
        records::mark::Writer,
    },
    event::{EventId, InstanceId},
    lang,
};

/// What is written at once is shorter than a page.
const LIMIT: usize = 4096;

impl Engine {
    /// Records what was written to an event's `inject`.
    ///
    /// # Errors
    /// Those of [`lang::inject::record`]; `EINVAL` for a text as long as a page; what the kernel says of a program.
    pub fn inject(
        &mut self,
        instance: InstanceId,
        event: EventId,
        text: &[u8],
        writer: Writer,
    ) -> Result<(), Errno> {
        if text.len() >= LIMIT {
            return Err(Errno::INVAL);
        }
        self.read_format(event)?;
        let (catalogue, facts) = (self.registry.events().clone(), self.facts.clone());
        let format = catalogue.try_format(event, &facts)?;
        let mut common = [0; COMMON_SIZE];
        common[..2].copy_from_slice(&format.id.to_ne_bytes());
        common[4..].copy_from_slice(&writer.pid.to_ne_bytes());
        let record = lang::inject::record(text, format, common)?;
        self.make_session(instance)?;
        self.tasks.meet(writer.pid.cast_signed(), true);
        let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
        if self.histograms.counts_event(instance, event) {
            hist_programs::count_record(self, instance, event, &record, &hit);
        }
        self.state(instance)?.recorded.insert(event);
        let asked = desired::with_config(self, instance, event, format, |session, config| {
            session.inject(event, config, &record, &hit).map_err(|error| session::log_to_errno(&error))
        })?;
        self.hand_to_probes(instance, event, &record, &hit);
        if asked & asked::STACK != 0 {
            self.collect(instance);
            self.stack_of_writer(instance, &record, writer);
        }
        Ok(())
    }
}
