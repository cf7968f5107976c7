//! `kprobe_profile` and `uprobe_profile`: hits and misses of probes, while their events were enabled in any instance.
//!
//! Every instance attaches its own probes and counts the same hits. So one of the instances that have an event
//! enabled counts for all. When it disables the event, another instance continues from its own count at that moment.

use std::collections::HashMap;

use crate::{
    event::{
        EventId, InstanceId,
        dynamic::{Kind, Target, raw},
    },
    lang::define::Probe,
};

/// Hits and misses.
pub(crate) type Count = (u64, u64);

/// The counts of an event's probes in an instance; `None` if they are not attached.
pub(crate) type ProbeCounts<'a> = &'a dyn Fn(InstanceId, EventId) -> Option<Vec<Count>>;

/// The counts of all probes.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// By event and index among its probes: the counts of instances that no longer count.
    past: HashMap<(EventId, usize), Count>,
    /// By event: the instance that counts, and its counts at the start.
    counting: HashMap<EventId, (InstanceId, Vec<Count>)>,
}

impl Profile {
    /// Starts counting for an event that an instance has enabled.
    pub(crate) fn begin(&mut self, event: EventId, instance: InstanceId) {
        self.counting.entry(event).or_insert((instance, Vec::new()));
    }

    /// Whether an instance counts for an event.
    pub(crate) fn is_counting(&self, event: EventId, instance: InstanceId) -> bool {
        self.counting.get(&event).is_some_and(|(counting, _)| *counting == instance)
    }

    /// Forgets an event.
    pub(crate) fn forget(&mut self, event: EventId) {
        self.counting.remove(&event);
        self.past.retain(|(known, _), _| *known != event);
    }

    /// The counts of the counting instance since its start.
    fn counted(&self, event: EventId, counts: ProbeCounts<'_>) -> Vec<Count> {
        let Some((instance, before)) = self.counting.get(&event) else { return Vec::new() };
        let now = counts(*instance, event).unwrap_or_default();
        let before = before.iter().copied().chain(std::iter::repeat((0, 0)));
        now.into_iter()
            .zip(before)
            .map(|(now, before)| (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1)))
            .collect()
    }

    /// Stores the counts of the counting instance, which is about to disable the event. `next` counts from now on.
    pub(crate) fn switch_counter(
        &mut self,
        event: EventId,
        next: Option<InstanceId>,
        counts: ProbeCounts<'_>,
    ) {
        // The next instance's counts are read first, so that no hit of this moment is lost.
        let next = next.and_then(|next| Some((next, counts(next, event)?)));
        for (place, (hits, missed)) in self.counted(event, counts).into_iter().enumerate() {
            let past = self.past.entry((event, place)).or_default();
            *past = (past.0 + hits, past.1 + missed);
        }
        match next {
            Some(next) => self.counting.insert(event, next),
            None => self.counting.remove(&event),
        };
    }

    /// The content of `kprobe_profile` or `uprobe_profile`: hits and misses of each probe of a kind.
    pub(super) fn text<'a>(
        &self,
        probes: impl Iterator<Item = (EventId, &'a Probe)>,
        kind: Kind,
        counts: ProbeCounts<'_>,
    ) -> Vec<u8> {
        let mut text = Vec::new();
        let mut places: HashMap<EventId, usize> = HashMap::new();
        for (event, probe) in probes {
            let place = places.entry(event).or_default();
            let (mut hits, mut missed) = self.past.get(&(event, *place)).copied().unwrap_or_default();
            let now = self.counted(event, counts).get(*place).copied().unwrap_or_default();
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
