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
    lang::define::Defined,
};

/// Hits and misses.
pub(crate) type Count = (u64, u64);

/// Counts by the serial number of the probe.
pub(crate) type BySerial = HashMap<u64, Count>;

/// The counts of an event's probes in an instance; `None` if they are not attached.
pub(crate) type ProbeCounts<'a> = &'a dyn Fn(InstanceId, EventId) -> Option<BySerial>;

#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// By event: the counts of instances that no longer count.
    past: HashMap<EventId, BySerial>,
    /// By event: the instance that counts, and its counts at the start.
    counting: HashMap<EventId, (InstanceId, BySerial)>,
}

impl Profile {
    /// Starts counting for an event that an instance has enabled.
    pub(crate) fn begin(&mut self, event: EventId, instance: InstanceId) {
        self.counting.entry(event).or_insert((instance, BySerial::new()));
    }

    pub(crate) fn is_counting(&self, event: EventId, instance: InstanceId) -> bool {
        self.counting.get(&event).is_some_and(|(counting, _)| *counting == instance)
    }

    pub(crate) fn forget(&mut self, event: EventId) {
        self.counting.remove(&event);
        self.past.remove(&event);
    }

    /// Forgets the deleted probes of an event; `left` are the serial numbers of the others.
    pub(crate) fn forget_deleted(&mut self, event: EventId, left: &[u64]) {
        if let Some(past) = self.past.get_mut(&event) {
            past.retain(|serial, _| left.contains(serial));
        }
    }

    /// Adds the counts of the counting instance so far to those of the past. To be called before the instance attaches
    /// and detaches probes of the event.
    pub(crate) fn add_counted(&mut self, event: EventId, counts: ProbeCounts<'_>) {
        let Some(instance) = self.counting.get(&event).map(|(instance, _)| *instance) else { return };
        let Some(now) = counts(instance, event) else { return };
        let at_this_moment = |_: InstanceId, _: EventId| Some(now.clone());
        self.switch_counter(event, Some(instance), &at_this_moment);
    }

    /// Starts the count of a probe that the counting instance has attached anew.
    pub(crate) fn begin_probe(&mut self, event: EventId, serial: u64) {
        if let Some((_, before)) = self.counting.get_mut(&event) {
            before.remove(&serial);
        }
    }

    /// The counts of the counting instance since its start.
    fn counted(&self, event: EventId, counts: ProbeCounts<'_>) -> BySerial {
        let Some((instance, before)) = self.counting.get(&event) else { return BySerial::new() };
        let mut counted = counts(*instance, event).unwrap_or_default();
        for (serial, now) in &mut counted {
            let before = before.get(serial).copied().unwrap_or_default();
            *now = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        }
        counted
    }

    /// Hits and misses of a probe so far.
    fn total(&self, event: EventId, serial: u64, counts: ProbeCounts<'_>) -> Count {
        let past = self.past.get(&event).and_then(|past| past.get(&serial)).copied().unwrap_or_default();
        let now = self.counted(event, counts).get(&serial).copied().unwrap_or_default();
        (past.0 + now.0, past.1 + now.1)
    }

    /// Adds the counts of the counting instance to those of the past. `next` counts from now on.
    pub(crate) fn switch_counter(
        &mut self,
        event: EventId,
        next: Option<InstanceId>,
        counts: ProbeCounts<'_>,
    ) {
        // The next instance's counts are read first, so that no hit of this moment is lost.
        let next = next.and_then(|next| Some((next, counts(next, event)?)));
        let counted = self.counted(event, counts);
        let past = self.past.entry(event).or_default();
        for (serial, (hits, missed)) in counted {
            let past = past.entry(serial).or_default();
            *past = (past.0 + hits, past.1 + missed);
        }
        match next {
            Some(next) => self.counting.insert(event, next),
            None => self.counting.remove(&event),
        };
    }

    pub(super) fn text<'a>(
        &self,
        probes: impl Iterator<Item = (EventId, &'a Defined)>,
        kind: Kind,
        counts: ProbeCounts<'_>,
    ) -> Vec<u8> {
        let mut text = Vec::new();
        for (event, Defined { probe, serial, .. }) in probes {
            if probe.event.kind() != kind {
                continue;
            }
            let (hits, missed) = self.total(event, *serial, counts);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_keep_their_counts_while_others_come_and_go() {
        let (event, [first, second]) = (EventId::new(3), [InstanceId::TOP, InstanceId::new(1)]);
        let mut profile = Profile::default();
        let at = |all: &[(u64, u64)]| {
            let all: BySerial = all.iter().map(|(serial, hits)| (*serial, (*hits, 1))).collect();
            move |_: InstanceId, _: EventId| Some(all.clone())
        };
        let sum = |profile: &Profile, counts: ProbeCounts<'_>, serial| profile.total(event, serial, counts).0;
        profile.begin(event, first);
        profile.begin(event, second);
        assert!(profile.is_counting(event, first) && !profile.is_counting(event, second));
        // Probe 7 is deleted, probe 8 stays, and probe 9 is new.
        profile.forget_deleted(event, &[8, 9]);
        profile.add_counted(event, &at(&[(7, 100), (8, 10)]));
        profile.forget_deleted(event, &[8, 9]);
        profile.begin_probe(event, 9);
        let now = at(&[(8, 15), (9, 2)]);
        assert_eq!([7, 8, 9].map(|serial| sum(&profile, &now, serial)), [0, 15, 2]);
        // Probe 9 is attached again, so its count restarts.
        profile.add_counted(event, &now);
        profile.begin_probe(event, 9);
        let now = at(&[(8, 16), (9, 1)]);
        assert_eq!([8, 9].map(|serial| sum(&profile, &now, serial)), [16, 3]);
        profile.switch_counter(event, None, &now);
        assert_eq!([8, 9].map(|serial| sum(&profile, &at(&[]), serial)), [16, 3]);
        profile.forget(event);
        assert_eq!(sum(&profile, &at(&[]), 8), 0);
    }
}
