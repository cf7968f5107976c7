//! Counts of the hits of dynamic events' probes, which remain after the instance that counted them.

use crate::{
    engine::{attachments::reconcile::Reconciler, registry::profile::BySerial},
    event::{EventId, InstanceId},
};

impl Reconciler<'_> {
    /// Stores the counts of dynamic events before an instance disables them.
    pub(crate) fn keep_counts(&mut self, events: &[EventId]) {
        for &event in events {
            if !self.engine.registry.dynamic().profile().is_counting(event, self.instance) {
                continue;
            }
            let next = self
                .engine
                .instances
                .iter()
                .find(|(other, state)| *other != self.instance && state.is_enabled(event));
            let next = next.map(|(other, _)| other);
            let counts: Vec<(InstanceId, Option<BySerial>)> = next
                .into_iter()
                .chain([self.instance])
                .map(|one| (one, self.engine.attachments.probe_counts(one, event)))
                .collect();
            let counts =
                |instance: InstanceId, _: EventId| counts.iter().find(|(one, _)| *one == instance)?.1.clone();
            self.engine.registry.dynamic_mut().profile_mut().switch_counter(event, next, &counts);
        }
    }
}
