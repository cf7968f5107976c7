//! The events whose programs a change of one event's dependents affects.

use crate::event::{EventId, InstanceId};

/// The events whose programs contain the dependents of an event.
#[derive(Clone, Debug)]
pub(super) enum Containers {
    /// None but the event itself.
    None,
    /// The target of an event probe.
    Target(InstanceId, EventId),
    /// The events of the histograms that emit a synthetic event.
    Emitters(Vec<(InstanceId, EventId)>),
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
        let (outer, is_emitter) = match containers(instance, event) {
            Containers::None => (Vec::new(), is_emitter),
            Containers::Target(instance, target) => (vec![(instance, target)], is_emitter),
            Containers::Emitters(emitters) => (emitters, true),
        };
        for (instance, event) in outer {
            if !all.iter().any(|known| (known.instance, known.event) == (instance, event)) {
                all.push(Affected { instance, event, is_emitter });
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

    fn containers(event: u32, kind: u8, others: &[u32]) -> Containers {
        match kind {
            0 => Containers::None,
            1 => Containers::Target(INSTANCE, EventId::new((event + 1) % 8)),
            _ => Containers::Emitters(others.iter().map(|other| (INSTANCE, EventId::new(*other))).collect()),
        }
    }

    fn graph() -> impl Strategy<Value = HashMap<EventId, Containers>> {
        let one = (0..3_u8, proptest::collection::vec(0..8_u32, 0..4));
        proptest::collection::vec(one, 8).prop_map(|all| {
            let each = (0..).zip(all);
            each.map(|(event, (kind, others))| (EventId::new(event), containers(event, kind, &others)))
                .collect()
        })
    }

    fn outer(containers: &Containers) -> Vec<EventId> {
        match containers {
            Containers::None => Vec::new(),
            Containers::Target(_, target) => vec![*target],
            Containers::Emitters(emitters) => emitters.iter().map(|(_, event)| *event).collect(),
        }
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
                prop_assert!(outer(&graph[&one.event]).iter().all(|event| events.contains(event)));
                let part = all[..number].iter().find(|part| outer(&graph[&part.event]).contains(&one.event));
                prop_assert_eq!(number > 0, part.is_some(), "not behind a part of it: {:?}", events);
                let emits = part.is_some_and(|part| {
                    part.is_emitter || matches!(graph[&part.event], Containers::Emitters(_))
                });
                prop_assert_eq!(one.is_emitter, emits);
            }
        }
    }
}
