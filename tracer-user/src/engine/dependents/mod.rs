//! The dependents of events without a tracepoint: the event probes on such an event, and its histograms.
//!
//! The records of a synthetic event come from the programs that emit it. The records of an event probe on such an
//! event are made from the records of its target. The records of a dynamic event come from relays on the hooks of its
//! probes, which are attached as long as the event has dependents. Each instance has its own relays.
//!
//! After a change, the programs of all affected events are derived anew ([`parts`]) and compared
//! ([`Dependents::update`]).

mod affected;
pub(crate) mod delivery;
pub(crate) mod emission;
mod hist_programs;
mod parts;
mod relays;
pub(crate) mod sources;
mod writer_stack;

use self::{
    affected::{Containers, affected},
    sources::{RecordSources, Source},
};
use crate::{
    engine::{
        Engine,
        attachments::session::InstanceSession,
        command::error::{CommandError, ErrorKind},
    },
    event::{EventId, InstanceId},
};

/// The programs of an instance that depend on events without a tracepoint.
pub(crate) struct Dependents<'e> {
    engine: &'e mut Engine,
    instance: InstanceId,
}

impl<'e> Dependents<'e> {
    pub(crate) fn of(engine: &'e mut Engine, instance: InstanceId) -> Self {
        Self { engine, instance }
    }

    /// The instance's session.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    fn session(&mut self) -> Result<&mut InstanceSession, CommandError> {
        Ok(self.engine.attachments.session_mut(self.instance).ok_or(ErrorKind::Gone)?)
    }
}

impl Dependents<'_> {
    /// Updates the programs that have an event's records, after its dependents changed in an instance.
    pub(crate) fn update(&mut self, event: EventId) -> Result<(), CommandError> {
        self.update_from(event, 0)
    }

    /// Updates the programs that have an event as their dependent, after the event was enabled, disabled or changed in
    /// an instance.
    pub(crate) fn propagate_enabled(&mut self, event: EventId) -> Result<(), CommandError> {
        self.update_from(event, 1)
    }

    /// Updates the programs of all affected events, except the first ones.
    fn update_from(&mut self, event: EventId, skipped: usize) -> Result<(), CommandError> {
        let all = affected(self.instance, event, |instance, event| self.containers(instance, event));
        let mut first = Ok(());
        for (number, one) in all.into_iter().enumerate() {
            if self.engine.registry.synthetic().contains(one.event) {
                self.engine.registry.synthetic_mut().count_change(one.event);
            }
            if number < skipped || self.engine.attachments.session(one.instance).is_none() {
                continue;
            }
            let mut dependents = Dependents::of(self.engine, one.instance);
            let relayed = dependents.reconcile_relays(one.event);
            let done = relayed.and(dependents.reconcile_hists(one.event));
            if one.is_emitter {
                // The command that changed the synthetic event is complete.
                let name = self.engine.registry.events().full_name(one.event);
                done.unwrap_or_else(|error| tracing::warn!("{name}: {error}"));
            } else {
                first = first.and(done);
            }
        }
        first
    }

    /// The events whose programs contain the dependents of an event.
    fn containers(&self, instance: InstanceId, event: EventId) -> Containers {
        match RecordSources::of(self.engine).source(event) {
            Some(Source::Emission) => {
                let number = |name: &str| self.engine.registry.synthetic().number(name);
                let events = self.engine.histograms.emitters(|name| number(name) == Some(event)).collect();
                Containers { events, are_emitters: true }
            }
            Some(Source::Event(target)) => {
                Containers { events: vec![(instance, target)], are_emitters: false }
            }
            Some(Source::Hooks(_) | Source::Place(_) | Source::Writers) | None => Containers::default(),
        }
    }
}
