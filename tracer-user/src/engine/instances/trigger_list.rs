//! The triggers of an instance's events, in the kernel's order: the newest first.
//!
//! Two reference counts keep a disabled event attached: its own triggers, and triggers of other events that may
//! enable it (`tm_ref` and `sm_ref` of the kernel's `struct trace_event_file`). An event with such a reference is in
//! soft mode. Some references are idle: histograms and event probes have their own programs, and do not need the
//! event's.

use std::collections::HashMap;

use tracer_abi::TRIGGER_COUNTS;

use crate::{
    engine::command::error::{CommandError, ErrorKind},
    event::{EventId, Slot},
    lang::trigger::{HIST, SimpleAction, Switch, UNLIMITED},
    plan::{
        filter::Filter,
        trigger::{Action, Count, Trigger},
    },
};

/// The action of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An action without a target.
    Simple(SimpleAction),
    /// Enables or disables an event.
    Switch(Switch, EventId),
}

impl Kind {
    /// Whether an event can have only one trigger of the two kinds, and removing one removes the other
    /// (`register_trigger()`, `event_enable_register_trigger()`).
    fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Simple(one), Self::Simple(other)) => one.excludes(other),
            (Self::Switch(one, target), Self::Switch(other, its)) => one.hist == other.hist && target == its,
            _ => false,
        }
    }

    /// The event that it enables or disables, and whether it acts only on that event's histograms.
    pub(crate) fn target(self) -> Option<(EventId, bool)> {
        match self {
            Self::Simple(_) => None,
            Self::Switch(switch, target) => Some((target, switch.hist)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct InstalledTrigger {
    pub(crate) kind: Kind,
    /// Its count as written.
    pub(crate) count: u64,
    /// The place of its count; [`TriggerList::insert`] assigns it.
    place: Option<u16>,
    /// Text and filter.
    pub(crate) filter: Option<(Vec<u8>, Filter)>,
}

impl InstalledTrigger {
    /// A trigger that is not installed yet.
    pub(crate) fn new(kind: Kind, count: u64, filter: Option<(Vec<u8>, Filter)>) -> Self {
        Self { kind, count, place: None, filter }
    }
}

impl InstalledTrigger {
    /// The command and its target; `name` as in [`TriggerList::text`].
    fn what(&self, name: &impl Fn(EventId) -> String) -> String {
        match self.kind {
            Kind::Simple(act) => act.name().to_owned(),
            Kind::Switch(switch, target) => format!("{}:{}", switch.name(), name(target)),
        }
    }

    /// How often it can still act, if it is counted.
    fn left(&self, left: &impl Fn(u16) -> u64) -> Option<i64> {
        let left = left(self.place?).cast_signed();
        // A program that found no count left may have taken one before.
        Some(if self.count.cast_signed() < 0 { left } else { left.max(0) })
    }

    /// ` if FILTER`, or an empty text.
    fn condition(&self) -> Vec<u8> {
        self.filter.as_ref().map(|(text, _)| [b" if ", &text[..]].concat()).unwrap_or_default()
    }
}

/// The number of references for soft mode, and the number of idle ones among them.
#[derive(Clone, Copy, Debug, Default)]
struct Soft {
    reasons: u32,
    idle: u32,
}

/// All triggers of an instance.
#[derive(Debug, Default)]
pub(crate) struct TriggerList {
    of: HashMap<EventId, Vec<InstalledTrigger>>,
    /// References that keep an event in soft mode: one for its own triggers, and one for each trigger that enables or
    /// disables it, each histogram, and each event probe.
    soft: HashMap<EventId, Soft>,
    free: Vec<u16>,
    used: u16,
}

impl TriggerList {
    pub(crate) fn of(&self, event: EventId) -> &[InstalledTrigger] {
        self.of.get(&event).map_or(&[], Vec::as_slice)
    }

    /// Whether an event is in soft mode.
    pub(crate) fn is_soft(&self, event: EventId) -> bool {
        self.soft.contains_key(&event)
    }

    /// Whether all references of an event in soft mode are idle.
    pub(crate) fn is_idle(&self, event: EventId) -> bool {
        self.soft.get(&event).is_some_and(|soft| soft.reasons == soft.idle)
    }

    /// The events with triggers that enable or disable an event, or its histograms (`hists`).
    pub(crate) fn switching(&self, event: EventId, hists: bool) -> Vec<EventId> {
        let switches = |trigger: &InstalledTrigger| trigger.kind.target() == Some((event, hists));
        let of = self.of.iter().filter(|(_, list)| list.iter().any(switches));
        of.map(|(event, _)| *event).collect()
    }

    /// Adds a reference for soft mode. Returns whether it is the first.
    pub(crate) fn soft_mode_get(&mut self, event: EventId, idle: bool) -> bool {
        let soft = self.soft.entry(event).or_default();
        soft.reasons += 1;
        soft.idle += u32::from(idle);
        soft.reasons == 1
    }

    /// Removes a reference. Returns whether it was the last.
    pub(crate) fn soft_mode_put(&mut self, event: EventId, idle: bool) -> bool {
        let Some(soft) = self.soft.get_mut(&event) else { return false };
        soft.reasons -= 1;
        soft.idle -= u32::from(idle);
        let last = soft.reasons == 0;
        if last {
            self.soft.remove(&event);
        }
        last
    }

    /// The index in an event's list of the trigger that one of this kind would replace.
    pub(crate) fn find(&self, event: EventId, kind: Kind) -> Option<usize> {
        self.of(event).iter().position(|trigger| trigger.kind.excludes(kind))
    }

    /// Inserts a trigger before the event's other triggers. Returns the place of its count, if it has one.
    ///
    /// # Errors
    /// `ENOMEM` if all places for counts are in use.
    pub(crate) fn insert(
        &mut self,
        event: EventId,
        mut trigger: InstalledTrigger,
    ) -> Result<Option<u16>, CommandError> {
        if trigger.count != UNLIMITED {
            let place = self.free.pop().or_else(|| {
                let more = usize::from(self.used) < TRIGGER_COUNTS;
                self.used += u16::from(more);
                more.then(|| self.used - 1)
            });
            trigger.place = Some(place.ok_or(ErrorKind::NoMemory)?);
        }
        let place = trigger.place;
        self.of.entry(event).or_default().insert(0, trigger);
        Ok(place)
    }

    /// Removes a trigger from an event's list.
    pub(crate) fn remove(&mut self, event: EventId, at: usize) -> Option<InstalledTrigger> {
        let list = self.of.get_mut(&event).filter(|list| at < list.len())?;
        let trigger = list.remove(at);
        if list.is_empty() {
            self.of.remove(&event);
        }
        self.free.extend(trigger.place);
        Some(trigger)
    }

    /// Forgets a removed event.
    pub(crate) fn forget(&mut self, event: EventId) {
        while self.remove(event, 0).is_some() {}
        self.soft.remove(&event);
    }

    /// The plan of an event's triggers for its program. `slot` maps an event to the place of its word, `hists` to
    /// those of its histograms.
    pub(crate) fn plan(
        &self,
        event: EventId,
        slot: impl Fn(EventId) -> Option<Slot>,
        hists: impl Fn(EventId) -> Vec<u16>,
    ) -> Vec<Trigger> {
        let planned = |trigger: &InstalledTrigger| {
            let action = match trigger.kind {
                Kind::Simple(SimpleAction::TraceOn) => Action::TraceOn,
                Kind::Simple(SimpleAction::TraceOff) => Action::TraceOff,
                Kind::Simple(SimpleAction::Snapshot) => Action::Snapshot,
                Kind::Simple(SimpleAction::StackTrace) => Action::StackTrace,
                Kind::Switch(switch, target) if switch.hist => {
                    Action::Hists { places: hists(target), enable: switch.enable }
                }
                Kind::Switch(switch, target) => Action::Event { slot: slot(target)?, enable: switch.enable },
            };
            let limited = trigger.count.cast_signed() >= 0;
            let count = trigger.place.map(|place| Count { place, limited });
            let filter = trigger.filter.as_ref().map(|(_, filter)| filter.clone());
            Some(Trigger { action, count, filter })
        };
        self.of(event).iter().filter_map(planned).collect()
    }

    /// The content of an event's `trigger` file. `left` returns the remaining count at a place, and `name` the name
    /// of an event with its system, separated by a colon.
    pub(crate) fn text(
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
        for trigger in list {
            text.extend_from_slice(trigger.what(&name).as_bytes());
            match trigger.left(&left) {
                None => text.extend_from_slice(b":unlimited"),
                Some(left) => text.extend_from_slice(format!(":count={left}").as_bytes()),
            }
            text.extend(trigger.condition());
            text.push(b'\n');
        }
        text
    }

    /// The events with triggers, and for each the lines that recreate them, in the order of writing.
    pub(crate) fn lines(
        &self,
        left: impl Fn(u16) -> u64,
        name: impl Fn(EventId) -> String,
    ) -> impl Iterator<Item = (EventId, Vec<Vec<u8>>)> {
        self.of.iter().map(move |(event, list)| {
            let line = |trigger: &InstalledTrigger| {
                // The kernel reads a count of 2^63 or more as negative, so it is written unsigned.
                let left = trigger.left(&left).map(|left| format!(":{}", left.cast_unsigned()));
                let head = trigger.what(&name) + &left.unwrap_or_default();
                [head.into_bytes(), trigger.condition()].concat()
            };
            (*event, list.iter().rev().map(line).collect())
        })
    }
}

/// The list of available triggers, for an event without triggers.
fn available() -> Vec<u8> {
    let mut text = b"# Available triggers:\n#".to_vec();
    let switches = Switch::ALL.into_iter().map(Switch::name);
    for name in SimpleAction::ALL.into_iter().map(SimpleAction::name).chain(switches).chain([HIST]) {
        text.push(b' ');
        text.extend_from_slice(name.as_bytes());
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(act: SimpleAction, count: u64) -> InstalledTrigger {
        InstalledTrigger::new(Kind::Simple(act), count, None)
    }

    #[test]
    fn the_newest_is_the_first() {
        let mut all = TriggerList::default();
        let [one, two, three, four, seven, eight, nine] = [1, 2, 3, 4, 7, 8, 9].map(EventId::new);
        let switch = Kind::Switch(Switch { enable: true, hist: false }, seven);
        assert_eq!(all.insert(one, act(SimpleAction::TraceOff, 3)), Ok(Some(0)));
        let filter = Some((b"x == 1".to_vec(), Filter::Const(true)));
        assert_eq!(all.insert(one, InstalledTrigger::new(switch, UNLIMITED, filter)), Ok(None));
        assert_eq!(all.insert(two, act(SimpleAction::Snapshot, 0)), Ok(Some(1)));
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
        assert_eq!(all.find(one, Kind::Simple(SimpleAction::TraceOn)), Some(1));
        assert_eq!(all.find(one, Kind::Simple(SimpleAction::Snapshot)), None);
        let disable = Switch { enable: false, hist: false };
        assert_eq!(all.find(one, Kind::Switch(disable, seven)), Some(0));
        assert_eq!(all.find(one, Kind::Switch(disable, eight)), None);
        let hists = Kind::Switch(Switch { enable: false, hist: true }, nine);
        assert_eq!(all.insert(four, InstalledTrigger::new(hists, 2, None)), Ok(Some(2)));
        assert_eq!((all.switching(nine, true), all.switching(seven, true)), (vec![four], vec![]));
        let paused = all.plan(four, |_| None, |_| vec![3, 8]);
        assert_eq!(paused[0].action, Action::Hists { places: vec![3, 8], enable: false });
        assert_eq!((all.switching(seven, false), all.switching(nine, false)), (vec![one], vec![]));
        assert!(all.remove(four, 0).is_some());
        let plan = all.plan(one, |_| Some(Slot::new(5)), |_| Vec::new());
        assert_eq!(plan[0].action, Action::Event { slot: Slot::new(5), enable: true });
        assert_eq!(plan[1].count, Some(Count { place: 0, limited: true }));
        assert!(all.remove(one, 1).is_some() && all.remove(one, 1).is_none());
        assert_eq!(all.insert(three, act(SimpleAction::TraceOn, 1)), Ok(Some(0)));
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
