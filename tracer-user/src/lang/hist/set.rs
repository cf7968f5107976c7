//! The set of existing histograms: the effects of commands, the lookup of variables, the comparison of commands, and
//! the dependencies that prevent removal (`event_hist_trigger_parse()` from the filter on).
//!
//! The set has no counters. Triggers and histograms are separate: triggers of one name on several events share one
//! histogram, which is removed with its last trigger. Names are shared by all instances; variables belong to one
//! instance.

use std::sync::Arc;

use super::checked::Hist;
use super::error::Log;
use super::value::{Flags, HistId, Value};
use crate::event::{Format, InstanceId};

/// Id of a trigger in a [`Set`]; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TriggerId(pub u64);

/// A histogram trigger of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Id of the trigger.
    pub id: TriggerId,
    /// Instance of the trigger.
    pub instance: InstanceId,
    /// Event of the trigger.
    pub event: Arc<Format>,
    /// The histogram in which it counts.
    pub hist: Arc<Hist>,
    /// The filter after `if `, which selects the counted hits.
    pub filter: Option<Vec<u8>>,
    /// Whether counting is paused.
    pub paused: bool,
    /// Text after `hist:`; `None` for a helper, which exists only as long as the histogram that uses it.
    pub command: Option<Vec<u8>>,
    /// `name=NAME`
    pub(super) name: Option<Vec<u8>>,
    /// The trigger that owns the shared name and histogram.
    pub(super) first: Option<TriggerId>,
    /// Number of triggers that share the histogram, including this one. The histogram is removed at 0.
    pub(super) users: usize,
    /// Whether the event still lists the trigger.
    pub(super) listed: bool,
}

impl Trigger {
    /// Line of the trigger in the event's `trigger` file.
    pub fn read_back(&self) -> Vec<u8> {
        let mut line = b"hist:".to_vec();
        if let Some(name) = &self.name {
            line.extend(name);
            line.push(b':');
        }
        line.extend(self.hist.read_back());
        if let Some(filter) = &self.filter {
            line.extend(b" if ");
            line.extend(filter);
        }
        line.extend(if self.paused { &b" [paused]\n"[..] } else { b" [active]\n" });
        line
    }

    fn is_on(&self, instance: InstanceId, system: &str, event: &str) -> bool {
        self.listed && self.instance == instance && self.event.system == system && self.event.name == event
    }
}

/// The effect of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change: the histogram to remove does not exist.
    Nothing,
    /// A trigger was added, with the clock that it requires.
    Added(TriggerId, Option<Vec<u8>>),
    /// A trigger was removed.
    Removed(TriggerId),
    /// A trigger was paused.
    Paused(TriggerId),
    /// A trigger was resumed.
    Resumed(TriggerId),
    /// A trigger was reset to zero.
    Cleared(TriggerId),
}

/// The result of an accepted command, which may still have log entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Effect of the command.
    pub change: Change,
    /// Log of the command.
    pub log: Log,
}

/// Several events have a variable of this name.
pub(super) struct NotUnique;

/// All histogram triggers, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub(super) triggers: Vec<Trigger>,
    /// Histograms with variables or references, the newest first.
    pub(super) with_variables: Vec<HistId>,
    last_id: u64,
}

impl Set {
    /// Leaves out the ids that another set has given.
    pub fn skip_ids_of(&mut self, other: &Self) {
        self.last_id = self.last_id.max(other.last_id);
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The triggers that events list.
    pub fn triggers(&self) -> impl Iterator<Item = &Trigger> {
        self.triggers.iter().filter(|trigger| trigger.listed)
    }

    /// The triggers of an event.
    pub fn of_event<'a>(
        &'a self,
        instance: InstanceId,
        system: &'a str,
        event: &'a str,
    ) -> impl Iterator<Item = &'a Trigger> {
        self.triggers.iter().filter(move |trigger| trigger.is_on(instance, system, event))
    }

    pub(super) fn takes_snapshots(&self, instance: InstanceId) -> bool {
        self.triggers.iter().any(|trigger| trigger.instance == instance && trigger.hist.takes_snapshots())
    }

    /// Finds a trigger by id.
    pub fn trigger(&self, id: TriggerId) -> Option<&Trigger> {
        self.triggers.iter().find(|trigger| trigger.id == id)
    }

    /// Pauses or resumes a trigger, as `disable_hist` and `enable_hist` of another event do.
    pub fn set_paused(&mut self, id: TriggerId, paused: bool) {
        if let Some(trigger) = self.triggers.iter_mut().find(|trigger| trigger.id == id) {
            trigger.paused = paused;
        }
    }

    /// Counts the uses of a synthetic event: by actions, and by triggers on it or on any event of its name.
    pub fn uses_of_synthetic(&self, name: &str) -> usize {
        let on_it = self.triggers().filter(|trigger| trigger.event.name == name).count();
        let own = self.triggers.iter().filter(|trigger| trigger.first.is_none());
        let caused = own.flat_map(|trigger| trigger.hist.synthetic_events()).filter(|event| event == name);
        on_it + caused.count()
    }

    /// Finds a histogram by id.
    pub fn hist(&self, id: HistId) -> Option<&Hist> {
        self.triggers.iter().map(|trigger| &*trigger.hist).find(|hist| hist.id == id)
    }

    /// Finds a variable in the histograms of an event (`find_file_var()`).
    pub(super) fn file_variable(
        &self,
        instance: InstanceId,
        system: &str,
        event: &str,
        name: &[u8],
    ) -> Option<&Value> {
        let mut own = self.triggers.iter().filter(|trigger| trigger.is_on(instance, system, event));
        own.find_map(|trigger| trigger.hist.variable(name))
    }

    /// Whether the name of a variable is already used at the event of a histogram (`find_var()`).
    pub(super) fn finds_variable(&self, hist: &Hist, name: &[u8]) -> bool {
        let event = &hist.event;
        hist.variable(name).is_some()
            || self.file_variable(hist.instance, &event.system, &event.name, name).is_some()
    }

    /// Finds the only event with a variable of this name.
    pub(super) fn only_event_with(
        &self,
        instance: InstanceId,
        name: &[u8],
    ) -> Result<Option<(String, String)>, NotUnique> {
        let hists = self.hists_with_variables(instance).filter(|hist| hist.variable(name).is_some());
        let mut events = hists.map(|hist| (&hist.event.system, &hist.event.name));
        let Some(first) = events.next() else { return Ok(None) };
        if events.any(|event| event != first) {
            return Err(NotUnique);
        }
        Ok(Some((first.0.clone(), first.1.clone())))
    }

    /// Finds the first histogram of an event with compatible keys, and its filter (`find_compatible_hist()`).
    pub(super) fn like_on(
        &self,
        hist: &Hist,
        system: &str,
        event: &str,
    ) -> Option<(Arc<Hist>, Option<Vec<u8>>)> {
        let mut on_event = self.of_event(hist.instance, system, event);
        let found = on_event.find(|trigger| trigger.hist.has_keys_like(hist))?;
        Some((Arc::clone(&found.hist), found.filter.clone()))
    }

    /// Whether another histogram refers to a variable of this one (`check_var_refs()`).
    pub(super) fn is_referred_to(&self, hist: &Hist) -> bool {
        let refers = |other: &Hist| {
            let own =
                |slot| hist.fields.iter().any(|value| value.flags.has(Flags::VAR) && value.slot == slot);
            other.id != hist.id && other.references.iter().any(|reference| own(reference.slot))
        };
        self.hists_with_variables(hist.instance).any(refers)
    }

    /// The histograms of an instance with variables or references, the newest first.
    fn hists_with_variables(&self, instance: InstanceId) -> impl Iterator<Item = &Hist> {
        let all = self.with_variables.iter().filter_map(|id| self.hist(*id));
        all.filter(move |hist| hist.instance == instance)
    }

    /// Finds the first trigger of a name.
    pub(super) fn named(&self, name: Option<&[u8]>) -> Option<&Trigger> {
        let name = name?;
        self.triggers.iter().find(|trigger| trigger.first.is_none() && trigger.name.as_deref() == Some(name))
    }

    /// Whether a trigger equals a command; `named` is the first trigger with the name of the command.
    fn matches(hist: &Hist, filter: Option<&[u8]>, trigger: &Trigger, named: Option<&Trigger>) -> bool {
        let same_name = match named {
            Some(named) => named.id == trigger.id || trigger.first == Some(named.id),
            None => trigger.name.is_none(),
        };
        same_name && trigger.filter.as_deref() == filter && hist.matches(&trigger.hist)
    }

    /// Finds the trigger of an event that equals a command.
    pub(super) fn find(&self, hist: &Hist, event: &Format, filter: Option<&[u8]>) -> Option<TriggerId> {
        let named = self.named(hist.name.as_deref());
        let mut own = self.of_event(hist.instance, &event.system, &event.name);
        own.find(|trigger| Self::matches(hist, filter, trigger, named)).map(|trigger| trigger.id)
    }
}
