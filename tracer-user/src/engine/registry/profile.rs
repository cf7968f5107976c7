//! `kprobe_profile` and `uprobe_profile`: hits and misses of probes, as long as their events were on in any instance.
//!
//! Every instance hangs probes up for itself and would count the same hits. So one of those that have an event on counts for all;
//! when it turns the event off, another goes on from where its own count stands then.

use std::collections::HashMap;

use crate::{
    engine::Engine,
    event::{
        EventId, InstanceId,
        dynamic::{Kind, Target, raw},
    },
    lang::define::Defined,
};

/// Hits and misses.
type Count = (u64, u64);

/// What is known of counts.
#[derive(Debug, Default)]
pub(in crate::engine) struct Profile {
    /// By event and place among its probes: what was counted by those who count no more.
    past: HashMap<(EventId, usize), Count>,
    /// By event: the instance that counts, and what it had counted when it began to.
    counting: HashMap<EventId, (InstanceId, Vec<Count>)>,
}

impl Profile {
    /// An instance has an event on by now.
    pub(in crate::engine) fn begin(&mut self, event: EventId, instance: InstanceId) {
        self.counting.entry(event).or_insert((instance, Vec::new()));
    }

    /// Forgets an event.
    pub(in crate::engine) fn forget(&mut self, event: EventId) {
        self.counting.remove(&event);
        self.past.retain(|(known, _), _| *known != event);
    }
}

impl Engine {
    /// Hits and misses of an event's probes, as an instance counts them.
    fn counts(&self, instance: InstanceId, event: EventId) -> Option<Vec<Count>> {
        Some(self.attachments.session(instance)?.probes(event)?.counts())
    }

    /// What the instance that counts for an event has counted as such.
    fn counted(&self, event: EventId) -> Vec<Count> {
        let Some((instance, before)) = self.dynamic.profile.counting.get(&event) else { return Vec::new() };
        let now = self.counts(*instance, event).unwrap_or_default();
        let before = before.iter().copied().chain(std::iter::repeat((0, 0)));
        now.into_iter()
            .zip(before)
            .map(|(now, before)| (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1)))
            .collect()
    }

    /// Keeps what dynamic events counted in an instance that is about to turn them off.
    pub(in crate::engine) fn keep_counts(&mut self, instance: InstanceId, events: &[EventId]) {
        for &event in events {
            if self.dynamic.profile.counting.get(&event).is_none_or(|(counting, _)| *counting != instance) {
                continue;
            }
            // The next one first: hits of this moment are in one count at least.
            let next = self.numbered().find(|(other, state)| *other != instance && state.is_enabled(event));
            let next = next.map(|(other, _)| other);
            let next = next.and_then(|other| Some((other, self.counts(other, event)?)));
            let counted = self.counted(event);
            let profile = &mut self.dynamic.profile;
            for (place, (hits, missed)) in counted.into_iter().enumerate() {
                let past = profile.past.entry((event, place)).or_default();
                *past = (past.0 + hits, past.1 + missed);
            }
            match next {
                Some(next) => profile.counting.insert(event, next),
                None => profile.counting.remove(&event),
            };
        }
    }

    /// What `kprobe_profile` (or, for files, `uprobe_profile`) reads: hits and misses of each probe.
    pub fn profile(&self, kind: Kind) -> Vec<u8> {
        let mut text = Vec::new();
        let mut places: HashMap<EventId, usize> = HashMap::new();
        for Defined { probe, .. } in self.dynamic.probes() {
            let Some(event) = self.dynamic.number(probe) else { continue };
            let place = places.entry(event).or_default();
            let (mut hits, mut missed) =
                self.dynamic.profile.past.get(&(event, *place)).copied().unwrap_or_default();
            let now = self.counted(event).get(*place).copied().unwrap_or_default();
            (hits, missed) = (hits + now.0, missed + now.1);
            *place += 1;
            if probe.event.kind() != kind {
                continue;
            }
            let name = raw(&probe.event.name);
            text.extend(b"  ");
            if let Target::File { path, .. } = &probe.event.target {
                text.extend(path);
                text.push(b' ');
            }
            text.extend(&name);
            text.extend(std::iter::repeat_n(b' ', 44_usize.saturating_sub(name.len())));
            text.extend(format!(" {hits:15}").bytes());
            if kind == Kind::Kprobe {
                text.extend(format!(" {missed:15}").bytes());
            }
            text.push(b'\n');
        }
        text
    }
}
