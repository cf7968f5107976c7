//! Records from user space, on their way to the programs of their event and of its dependents.

use super::Dependents;
use crate::{
    attach::{self, AttachPoint},
    engine::{
        Engine,
        attachments::session::{
            part::Part,
            table::{AttachedPart, AttachedParts, ProgramRole},
        },
        command::error::{CommandError, ErrorKind},
        dependents::sources::RecordSources,
        hooks::AttachPlan,
        records::mark::Writer,
    },
    event::{EventId, InstanceId},
    lang::hist::Trigger,
    plan::source::ProgramContext,
};

/// A record from user space in an instance.
pub(crate) struct Delivery<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) instance: InstanceId,
    pub(super) record: &'e [u8],
    pub(super) writer: Writer,
}

impl<'e> Delivery<'e> {
    pub(crate) fn of(engine: &'e mut Engine, instance: InstanceId, record: &'e [u8], writer: Writer) -> Self {
        Self { engine, instance, record, writer }
    }

    /// Passes the record to an event, if it is enabled, and to its dependents, and performs the actions that their
    /// triggers request.
    pub(crate) fn deliver(&mut self, event: EventId) {
        self.count_in_histograms(event);
        self.pass_to_event(event);
        self.pass_to_eprobes(event);
    }

    /// Passes the record to the event probes on its event, and to their histograms.
    pub(crate) fn pass_to_eprobes(&mut self, event: EventId) {
        let hit = self.hit();
        for (probe, _) in RecordSources::of(self.engine).probes_on(event) {
            self.pass_to_event(probe);
            let Some(session) = self.engine.attachments.session(self.instance) else { continue };
            let relays = session.table.get(probe, ProgramRole::Relay);
            for relay in relays.into_iter().flat_map(AttachedParts::iter) {
                if let Err(error) = relay.attached.run(self.record, &hit) {
                    tracing::warn!("{error}");
                }
            }
        }
    }

    /// Records the record, and performs the actions that the event's triggers request.
    fn pass_to_event(&mut self, event: EventId) {
        match self.run(event, ProgramRole::Emitted) {
            Ok(actions) => self.perform(actions),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Runs the triggers of an event of marks, whose record is in the buffer.
    pub(crate) fn run_marker_triggers(&mut self, event: EventId) {
        match self.run(event, ProgramRole::Marker) {
            Ok(actions) => {
                // The snapshot must be taken before anything else is recorded.
                self.engine.collect(self.instance);
                self.perform(actions);
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Runs an event's program of this role, if there is one. Returns the requested actions.
    fn run(&self, event: EventId, role: ProgramRole) -> Result<u64, attach::AttachError> {
        let session = self.engine.attachments.session(self.instance);
        session.map_or(Ok(0), |session| session.run(event, role, self.record, &self.hit()))
    }

    /// Counts the record in an event's histograms.
    pub(crate) fn count_in_histograms(&mut self, event: EventId) {
        let triggers: Vec<Trigger> = self.engine.histograms.counting(self.instance, event).cloned().collect();
        for trigger in triggers {
            if let Err(errno) = self.count(event, &trigger) {
                tracing::warn!("cannot count in a histogram of {}: {errno}", trigger.event.full_name());
            }
        }
    }

    fn count(&mut self, event: EventId, trigger: &Trigger) -> Result<(), CommandError> {
        let hit = self.hit();
        let [own, injected] = [ProgramRole::Histogram(trigger.id), ProgramRole::HistogramInject(trigger.id)];
        let mut dependents = Dependents::of(self.engine, self.instance);
        let table = &dependents.session()?.table;
        let has_hook = |part: &AttachedPart| *part.attached.point() != AttachPoint::Inject;
        let role = if table.first(event, own).is_none_or(has_hook) { injected } else { own };
        if role == injected {
            let wanted = vec![Part::Count(dependents.own_count(trigger))];
            let known = dependents.session()?.table.get(event, role);
            if known.and_then(|parts| parts.receivers.as_ref()) != Some(&wanted) {
                let place = AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
                let made = dependents.start_hist(trigger, &place)?;
                dependents.session()?.table.insert(event, role, made);
            }
        }
        let ran = dependents.session()?.run(event, role, self.record, &hit);
        ran.map(drop).map_err(|error| CommandError::from(error).answered_as(ErrorKind::Io))
    }

    fn hit(&self) -> attach::Writer {
        attach::Writer { cpu: self.writer.cpu, comm: self.writer.comm }
    }
}
