//! Counts of the hits of dynamic events' probes, which remain after the instance that counted them.

use crate::{
    engine::{Engine, registry::profile::BySerial},
    event::{EventId, InstanceId},
};

/// Stores the counts of dynamic events before an instance disables them.
pub(crate) fn keep_counts(engine: &mut Engine, instance: InstanceId, events: &[EventId]) {
    for &event in events {
        if !engine.registry.dynamic().profile().is_counting(event, instance) {
            continue;
        }
        let next =
            engine.instances.iter().find(|(other, state)| *other != instance && state.is_enabled(event));
        let next = next.map(|(other, _)| other);
        let counts: Vec<(InstanceId, Option<BySerial>)> = next
            .into_iter()
            .chain([instance])
            .map(|one| (one, engine.attachments.probe_counts(one, event)))
            .collect();
        let counts =
            |instance: InstanceId, _: EventId| counts.iter().find(|(one, _)| *one == instance)?.1.clone();
        engine.registry.dynamic_mut().profile_mut().switch_counter(event, next, &counts);
    }
}
