//! The triggers that stand on the events of an instance, in the kernel's order: the newest first.
//!
//! Two counts keep an event on its hook although it is off: it has triggers, and triggers of others may turn it on
//! (`tm_ref` and `sm_ref` of the kernel's `struct trace_event_file`; together, soft mode). Some reasons are idle: histograms
//! and event probes have programs of their own, and need none of the event's.

use std::collections::HashMap;

use rustix::io::Errno;
use tracer_abi::TRIGGER_COUNTS;

use crate::{
    event::{EventId, Slot},
    lang::trigger::{Act, HIST, Switch, UNLIMITED},
    plan::{
        filter::Filter,
        trigger::{Action, Count, Trigger},
    },
};

/// What a trigger does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Kind {
    /// Something by itself.
    Act(Act),
    /// Turns an event on or off.
    Switch(Switch, EventId),
}

impl Kind {
    /// Whether one event has only one trigger of the two, and to take one away takes the other
    /// (`register_trigger()`, `event_enable_register_trigger()`).
    fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Act(one), Self::Act(other)) => one.excludes(other),
            (Self::Switch(one, target), Self::Switch(other, its)) => one.hist == other.hist && target == its,
            _ => false,
        }
    }

    /// The event that it turns on and off, and whether only that one's histograms are meant.
    pub(in crate::engine) fn target(self) -> Option<(EventId, bool)> {
        match self {
            Self::Act(_) => None,
            Self::Switch(switch, target) => Some((target, switch.hist)),
        }
    }
}

/// A trigger.
#[derive(Clone, Debug)]
pub(in crate::engine) struct InstalledTrigger {
    pub(in crate::engine) kind: Kind,
    /// How often at most, as it was said.
    pub(in crate::engine) count: u64,
    /// Where it is counted; [`TriggerList::insert`] finds a place.
    place: Option<u16>,
    /// Text and filter.
    pub(in crate::engine) filter: Option<(Vec<u8>, Filter)>,
}

impl InstalledTrigger {
    /// A trigger that does not stand yet.
    pub(in crate::engine) fn new(kind: Kind, count: u64, filter: Option<(Vec<u8>, Filter)>) -> Self {
        Self { kind, count, place: None, filter }
    }
}

impl InstalledTrigger {
    /// The command and what it is about; `name` as in [`TriggerList::text`].
    fn what(&self, name: &impl Fn(EventId) -> String) -> String {
        match self.kind {
            Kind::Act(act) => act.name().to_owned(),
            Kind::Switch(switch, target) => format!("{}:{}", switch.name(), name(target)),
        }
    }

    /// How often it may still act, if that is counted.
    fn left(&self, left: &impl Fn(u16) -> u64) -> Option<i64> {
        let left = left(self.place?).cast_signed();
        // Who found nothing left may have taken one all the same.
        Some(if self.count.cast_signed() < 0 { left } else { left.max(0) })
    }

    /// ` if FILTER`, or nothing.
    fn condition(&self) -> Vec<u8> {
        self.filter.as_ref().map(|(text, _)| [b" if ", &text[..]].concat()).unwrap_or_default()
    }
}

/// How many reasons there are for soft mode, and how many of them are idle.
#[derive(Clone, Copy, Debug, Default)]
struct Soft {
    reasons: u32,
    idle: u32,
}

/// All triggers of an instance.
#[derive(Debug, Default)]
pub(in crate::engine) struct TriggerList {
    of: HashMap<EventId, Vec<InstalledTrigger>>,
    /// Why an event is in soft mode: one for its own triggers, one for each trigger that turns it on or off, for each
    /// histogram, and for each event probe.
    soft: HashMap<EventId, Soft>,
    free: Vec<u16>,
    used: u16,
}

impl TriggerList {
    /// The triggers of an event.
    pub(in crate::engine) fn of(&self, event: EventId) -> &[InstalledTrigger] {
        self.of.get(&event).map_or(&[], Vec::as_slice)
    }

    /// Whether triggers may turn an event on and off.
    pub(in crate::engine) fn is_soft(&self, event: EventId) -> bool {
        self.soft.contains_key(&event)
    }

    /// Whether all that keeps an event in soft mode has programs of its own.
    pub(in crate::engine) fn is_idle(&self, event: EventId) -> bool {
        self.soft.get(&event).is_some_and(|soft| soft.reasons == soft.idle)
    }

    /// The events with triggers that let an event's histograms count, or not.
    pub(in crate::engine) fn switching_hists(&self, event: EventId) -> Vec<EventId> {
        let switches = |standing: &InstalledTrigger| matches!(standing.kind, Kind::Switch(Switch { hist: true, .. }, target) if target == event);
        let of = self.of.iter().filter(|(_, list)| list.iter().any(switches));
        of.map(|(event, _)| *event).collect()
    }

    /// One reason more for soft mode; whether it is the first.
    pub(in crate::engine) fn soft_mode_get(&mut self, event: EventId, idle: bool) -> bool {
        let soft = self.soft.entry(event).or_default();
        soft.reasons += 1;
        soft.idle += u32::from(idle);
        soft.reasons == 1
    }

    /// One reason less; whether it was the last.
    pub(in crate::engine) fn soft_mode_put(&mut self, event: EventId, idle: bool) -> bool {
        let Some(soft) = self.soft.get_mut(&event) else { return false };
        soft.reasons -= 1;
        soft.idle -= u32::from(idle);
        let last = soft.reasons == 0;
        if last {
            self.soft.remove(&event);
        }
        last
    }

    /// The place in an event's list of the trigger that one of this kind would take the place of.
    pub(in crate::engine) fn find(&self, event: EventId, kind: Kind) -> Option<usize> {
        self.of(event).iter().position(|standing| standing.kind.excludes(kind))
    }

    /// Puts a trigger in front of an event's others; where it is counted, if it is.
    ///
    /// # Errors
    /// `ENOMEM` when nothing more can be counted.
    pub(in crate::engine) fn insert(
        &mut self,
        event: EventId,
        mut standing: InstalledTrigger,
    ) -> Result<Option<u16>, Errno> {
        if standing.count != UNLIMITED {
            let place = self.free.pop().or_else(|| {
                let more = usize::from(self.used) < TRIGGER_COUNTS;
                self.used += u16::from(more);
                more.then(|| self.used - 1)
            });
            standing.place = Some(place.ok_or(Errno::NOMEM)?);
        }
        let place = standing.place;
        self.of.entry(event).or_default().insert(0, standing);
        Ok(place)
    }

    /// Takes a trigger out of an event's list.
    pub(in crate::engine) fn remove(&mut self, event: EventId, at: usize) -> Option<InstalledTrigger> {
        let list = self.of.get_mut(&event).filter(|list| at < list.len())?;
        let standing = list.remove(at);
        if list.is_empty() {
            self.of.remove(&event);
        }
        self.free.extend(standing.place);
        Some(standing)
    }

    /// Forgets an event that is gone.
    pub(in crate::engine) fn forget(&mut self, event: EventId) {
        while self.remove(event, 0).is_some() {}
        self.soft.remove(&event);
    }

    /// An event's triggers as its program has them. `slot` says where an event's word is, `hists` where those of its
    /// histograms are.
    pub(in crate::engine) fn plan(
        &self,
        event: EventId,
        slot: impl Fn(EventId) -> Option<Slot>,
        hists: impl Fn(EventId) -> Vec<u16>,
    ) -> Vec<Trigger> {
        let planned = |standing: &InstalledTrigger| {
            let action = match standing.kind {
                Kind::Act(Act::TraceOn) => Action::TraceOn,
                Kind::Act(Act::TraceOff) => Action::TraceOff,
                Kind::Act(Act::Snapshot) => Action::Snapshot,
                Kind::Act(Act::StackTrace) => Action::StackTrace,
                Kind::Switch(switch, target) if switch.hist => {
                    Action::Hists { places: hists(target), enable: switch.enable }
                }
                Kind::Switch(switch, target) => Action::Event { slot: slot(target)?, enable: switch.enable },
            };
            let limited = standing.count.cast_signed() >= 0;
            let count = standing.place.map(|place| Count { place, limited });
            let filter = standing.filter.as_ref().map(|(_, filter)| filter.clone());
            Some(Trigger { action, count, filter })
        };
        self.of(event).iter().filter_map(planned).collect()
    }

    /// What an event's `trigger` file reads. `left` says what a count has come to, `name` the name of an event with its
    /// system, a colon between.
    pub(in crate::engine) fn text(
        &self,
        event: EventId,
        left: impl Fn(u16) -> u64,
        name: impl Fn(EventId) -> String,
    ) -> Vec<u8> {
        let list = self.of(event);
        if list.is_empty() {
            return available();
        }
        let mut text = Vec::new();
        for standing in list {
            text.extend_from_slice(standing.what(&name).as_bytes());
            match standing.left(&left) {
                None => text.extend_from_slice(b":unlimited"),
                Some(left) => text.extend_from_slice(format!(":count={left}").as_bytes()),
            }
            text.extend(standing.condition());
            text.push(b'\n');
        }
        text
    }

    /// The events with triggers, and for each the lines that make them, the first to be written first.
    pub(in crate::engine) fn lines(
        &self,
        left: impl Fn(u16) -> u64,
        name: impl Fn(EventId) -> String,
    ) -> impl Iterator<Item = (EventId, Vec<Vec<u8>>)> {
        self.of.iter().map(move |(event, list)| {
            let line = |standing: &InstalledTrigger| {
                // A count that the kernel takes for a negative number can be written as what it is only.
                let left = standing.left(&left).map(|left| format!(":{}", left.cast_unsigned()));
                let head = standing.what(&name) + &left.unwrap_or_default();
                [head.into_bytes(), standing.condition()].concat()
            };
            (*event, list.iter().rev().map(line).collect())
        })
    }
}

/// What there is, for an event without triggers.
fn available() -> Vec<u8> {
    let mut text = b"# Available triggers:\n#".to_vec();
    let switches = Switch::ALL.into_iter().map(Switch::name);
    for name in Act::ALL.into_iter().map(Act::name).chain(switches).chain([HIST]) {
        text.push(b' ');
        text.extend_from_slice(name.as_bytes());
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(act: Act, count: u64) -> InstalledTrigger {
        InstalledTrigger::new(Kind::Act(act), count, None)
    }

    #[test]
    fn the_newest_is_the_first() {
        let mut all = TriggerList::default();
        let [one, two, three, four, seven, eight, nine] = [1, 2, 3, 4, 7, 8, 9].map(EventId::new);
        let switch = Kind::Switch(Switch { enable: true, hist: false }, seven);
        assert_eq!(all.insert(one, act(Act::TraceOff, 3)), Ok(Some(0)));
        let filter = Some((b"x == 1".to_vec(), Filter::Const(true)));
        assert_eq!(all.insert(one, InstalledTrigger::new(switch, UNLIMITED, filter)), Ok(None));
        assert_eq!(all.insert(two, act(Act::Snapshot, 0)), Ok(Some(1)));
        let text = all.text(one, |place| 10 + u64::from(place), |event| format!("s:e{event}"));
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "enable_event:s:e7:unlimited if x == 1\ntraceoff:count=10\n"
        );
        assert_eq!(all.text(two, |_| u64::MAX, |_| String::new()), b"snapshot:count=0\n");
        let mut lines: Vec<_> = all.lines(|_| 4, |event| format!("s:e{event}")).collect();
        lines.sort();
        let first = [&b"traceoff:4"[..], b"enable_event:s:e7 if x == 1"].map(<[u8]>::to_vec);
        assert_eq!(lines, [(one, first.to_vec()), (two, vec![b"snapshot:4".to_vec()])]);
        assert_eq!(all.find(one, Kind::Act(Act::TraceOn)), Some(1));
        assert_eq!(all.find(one, Kind::Act(Act::Snapshot)), None);
        let disable = Switch { enable: false, hist: false };
        assert_eq!(all.find(one, Kind::Switch(disable, seven)), Some(0));
        assert_eq!(all.find(one, Kind::Switch(disable, eight)), None);
        let hists = Kind::Switch(Switch { enable: false, hist: true }, nine);
        assert_eq!(all.insert(four, InstalledTrigger::new(hists, 2, None)), Ok(Some(2)));
        assert_eq!((all.switching_hists(nine), all.switching_hists(seven)), (vec![four], vec![]));
        let paused = all.plan(four, |_| None, |_| vec![3, 8]);
        assert_eq!(paused[0].action, Action::Hists { places: vec![3, 8], enable: false });
        assert!(all.remove(four, 0).is_some());
        let plan = all.plan(one, |_| Some(Slot::new(5)), |_| Vec::new());
        assert_eq!(plan[0].action, Action::Event { slot: Slot::new(5), enable: true });
        assert_eq!(plan[1].count, Some(Count { place: 0, limited: true }));
        assert!(all.remove(one, 1).is_some() && all.remove(one, 1).is_none());
        assert_eq!(all.insert(three, act(Act::TraceOn, 1)), Ok(Some(0)));
        assert!(String::from_utf8(all.text(nine, |_| 0, |_| String::new())).unwrap().starts_with(
            "# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n"
        ));
    }

    #[test]
    fn soft_mode_is_counted() {
        let mut all = TriggerList::default();
        let one = EventId::new(1);
        assert!(
            all.soft_mode_get(one, true)
                && all.is_idle(one)
                && !all.soft_mode_get(one, false)
                && all.is_soft(one)
        );
        assert!(!all.is_idle(one) && !all.soft_mode_put(one, false) && all.is_idle(one));
        assert!(
            all.soft_mode_put(one, true)
                && !all.is_soft(one)
                && !all.is_idle(one)
                && !all.soft_mode_put(one, false)
        );
    }
}
