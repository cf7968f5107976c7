//! The events whose programs a change of one event's dependents affects.

use crate::event::{EventId, InstanceId};

/// The events whose programs contain the dependents of an event.
#[derive(Clone, Debug, Default)]
pub(super) struct Containers {
    pub(super) events: Vec<(InstanceId, EventId)>,
    /// Whether their histograms emit the event.
    pub(super) are_emitters: bool,
}

/// An event whose programs are affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affected {
    pub(super) instance: InstanceId,
    pub(super) event: EventId,
    /// Whether its programs emit, directly or not, a synthetic event whose dependents changed.
    pub(super) is_emitter: bool,
}

/// The events that a change of an event's dependents affects: the event itself, then those whose programs contain it,
/// each once.
pub(super) fn affected(
    instance: InstanceId,
    event: EventId,
    containers: impl Fn(InstanceId, EventId) -> Containers,
) -> Vec<Affected> {
    let mut all = vec![Affected { instance, event, is_emitter: false }];
    let mut next = 0;
    while let Some(Affected { instance, event, is_emitter }) = all.get(next).copied() {
        next += 1;
        let Containers { events, are_emitters } = containers(instance, event);
        for (instance, event) in events {
            if !all.iter().any(|known| (known.instance, known.event) == (instance, event)) {
                all.push(Affected { instance, event, is_emitter: is_emitter || are_emitters });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const INSTANCE: InstanceId = InstanceId::TOP;

    fn graph() -> impl Strategy<Value = HashMap<EventId, Containers>> {
        let one = (any::<bool>(), proptest::collection::vec(0..8_u32, 0..4));
        proptest::collection::vec(one, 8).prop_map(|all| {
            let each = (0..).zip(all).map(|(event, (are_emitters, others))| {
                let events = others.into_iter().map(|other| (INSTANCE, EventId::new(other))).collect();
                (EventId::new(event), Containers { events, are_emitters })
            });
            each.collect()
        })
    }

    fn contains(containers: &Containers, event: EventId) -> bool {
        containers.events.contains(&(INSTANCE, event))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn each_container_follows_once_behind_a_part_of_it(graph in graph(), start in 0..8_u32) {
            let all = affected(INSTANCE, EventId::new(start), |_, event| graph[&event].clone());
            let events: Vec<EventId> = all.iter().map(|one| one.event).collect();
            prop_assert_eq!(events[0], EventId::new(start));
            for (number, one) in all.iter().enumerate() {
                prop_assert!(!events[..number].contains(&one.event), "twice: {events:?}");
                prop_assert!(graph[&one.event].events.iter().all(|(_, event)| events.contains(event)));
                let part = all[..number].iter().find(|part| contains(&graph[&part.event], one.event));
                prop_assert_eq!(number > 0, part.is_some(), "not behind a part of it: {:?}", events);
                let emits = part.is_some_and(|part| part.is_emitter || graph[&part.event].are_emitters);
                prop_assert_eq!(one.is_emitter, emits);
            }
        }
    }
}
