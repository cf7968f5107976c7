//! The set of existing histograms: the effects of commands, the lookup of variables, the comparison of commands, and
//! the dependencies that prevent removal (`event_hist_trigger_parse()` from the filter on).
//!
//! The set has no counters. Triggers and histograms are separate: triggers of one name on several events share one
//! histogram, which is removed with its last trigger. Names are shared by all instances; variables belong to one
//! instance.

use std::sync::Arc;

use rustix::io::Errno;

use super::World;
use super::action::PARAMS_MAX;
use super::checked::{Hist, Making};
use super::command::Command;
use super::error::{ErrorKind, Log, Refusal};
use super::params::Params;
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
    name: Option<Vec<u8>>,
    /// The trigger that owns the shared name and histogram.
    first: Option<TriggerId>,
    /// Number of triggers that share the histogram, including this one. The histogram is removed at 0.
    users: usize,
    /// Whether the event still lists the trigger.
    listed: bool,
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
pub struct Taken {
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
    triggers: Vec<Trigger>,
    /// Histograms with variables or references, the newest first.
    with_variables: Vec<HistId>,
    last_id: u64,
}

impl Set {
    /// Applies a command. `command` is the text after `hist:` (`None` without text); `remove` reports a leading `!`.
    ///
    /// # Errors
    /// If the kernel would reject the command.
    pub fn apply(
        &mut self,
        event: &Arc<Format>,
        command: Option<&[u8]>,
        remove: bool,
        world: &dyn World,
    ) -> Result<Taken, Refusal> {
        let mut log = Log::default();
        if let Some(command) = command {
            log = Log::new(&event.system, &event.name, command);
        }
        match self.run(world.instance(), event, command, remove, true, world, &mut log) {
            Ok(change) => Ok(Taken { change, log }),
            Err(errno) => Err(Refusal::new(errno, log)),
        }
    }

    /// Adds a histogram that the kernel generates to an event.
    pub(super) fn put(
        &mut self,
        instance: InstanceId,
        system: &str,
        event: &str,
        command: &[u8],
        world: &dyn World,
        log: &mut Log,
    ) -> Result<(), Errno> {
        let event = world.event(system, event).ok_or(Errno::INVAL)?;
        self.run(instance, &event, Some(command), false, false, world, log).map(|_| ())
    }

    #[expect(clippy::too_many_arguments, reason = "what a command is about")]
    fn run(
        &mut self,
        instance: InstanceId,
        event: &Arc<Format>,
        command: Option<&[u8]>,
        remove: bool,
        given: bool,
        world: &dyn World,
        log: &mut Log,
    ) -> Result<Change, Errno> {
        let text = command.filter(|_| given).map(<[u8]>::to_vec);
        let command = Command::read(command, world.dialect(), log)?;
        let id = HistId(self.next_id());
        let making = Making { set: self, world, command: &command, event, given, instance };
        let mut hist = making.make(id, remove, log)?;
        let filter = filter(&command, event, world, log)?;
        if remove {
            return self.remove(&hist, event, filter.as_deref(), world);
        }
        if let Some(change) = self.update(&command, &hist, event, filter.as_deref()) {
            return Ok(change);
        }
        Params { set: self, world, text: &command.text, hist: &mut hist, log }.create()?;
        if hist.texts() > PARAMS_MAX {
            return Err(Errno::NOMEM);
        }
        self.add(&command, hist, event, filter, text, world, log)
    }

    fn next_id(&mut self) -> u64 {
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

    /// Whether a histogram of the instance takes snapshots.
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

    /// Removes the triggers of a removed instance, even if other histograms refer to its variables
    /// (`clear_event_triggers()`).
    pub fn forget_instance(&mut self, instance: InstanceId, world: &dyn World) {
        let of_it = |trigger: &&Trigger| trigger.listed && trigger.instance == instance;
        while let Some(id) = self.triggers.iter().find(of_it).map(|trigger| trigger.id) {
            self.unlist(id, world);
        }
    }

    /// Counts the uses of a synthetic event: by actions, and by triggers on it or on any event of its name.
    pub fn uses_of_synthetic(&self, name: &str) -> usize {
        let on_it = self.triggers().filter(|trigger| trigger.event.name == name).count();
        let own = self.triggers.iter().filter(|trigger| trigger.first.is_none());
        let caused = own.flat_map(|trigger| trigger.hist.synthetic_events()).filter(|event| event == name);
        on_it + caused.count()
    }

    /// Removes all histograms of an event. Removes none if another histogram refers to a variable of one of them
    /// (`hist_unreg_all()`).
    pub fn clear(&mut self, system: &str, event: &str, world: &dyn World) -> Vec<TriggerId> {
        let of_event = || self.of_event(world.instance(), system, event);
        if of_event().any(|trigger| self.is_referred_to(&trigger.hist)) {
            return Vec::new();
        }
        let gone: Vec<TriggerId> = of_event().map(|trigger| trigger.id).collect();
        for id in &gone {
            self.unlist(*id, world);
        }
        gone
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
        let mut found: Option<&Format> = None;
        for hist in self.hists_with_variables(instance) {
            let event = &*hist.event;
            let is_found = found.is_some_and(|f| f.system == event.system && f.name == event.name);
            if is_found || hist.variable(name).is_none() {
                continue;
            }
            if found.is_some() {
                return Err(NotUnique);
            }
            found = Some(event);
        }
        Ok(found.map(|event| (event.system.clone(), event.name.clone())))
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
    fn is_referred_to(&self, hist: &Hist) -> bool {
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
    fn named(&self, name: Option<&[u8]>) -> Option<&Trigger> {
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
    fn find(&self, hist: &Hist, event: &Format, filter: Option<&[u8]>) -> Option<TriggerId> {
        let named = self.named(hist.name.as_deref());
        let mut own = self.of_event(hist.instance, &event.system, &event.name);
        own.find(|trigger| Self::matches(hist, filter, trigger, named)).map(|trigger| trigger.id)
    }

    fn remove(
        &mut self,
        hist: &Hist,
        event: &Format,
        filter: Option<&[u8]>,
        world: &dyn World,
    ) -> Result<Change, Errno> {
        let Some(id) = self.find(hist, event, filter) else { return Ok(Change::Nothing) };
        if self.trigger(id).is_some_and(|trigger| self.is_referred_to(&trigger.hist)) {
            return Err(Errno::BUSY);
        }
        self.unlist(id, world);
        Ok(Change::Removed(id))
    }

    /// Removes a trigger from its event, and its histogram with its last trigger.
    fn unlist(&mut self, id: TriggerId, world: &dyn World) {
        let Some(trigger) = self.triggers.iter_mut().find(|trigger| trigger.id == id) else { return };
        trigger.listed = false;
        let first = trigger.first.unwrap_or(id);
        if first != id {
            self.triggers.retain(|trigger| trigger.id != id);
        }
        let Some(first) = self.triggers.iter_mut().find(|trigger| trigger.id == first) else { return };
        first.users -= 1;
        if first.users > 0 {
            return;
        }
        let gone = Arc::clone(&first.hist);
        self.triggers.retain(|trigger| trigger.hist.id != gone.id);
        self.with_variables.retain(|id| *id != gone.id);
        for helper in &gone.helpers {
            if let Some(event) = world.event(&helper.system, &helper.event) {
                let log = &mut Log::default();
                let _ = self.run(gone.instance, &event, Some(&helper.command), true, false, world, log);
            }
        }
    }

    /// Applies `pause`, `cont` and `clear` to an existing trigger (`existing_hist_update_only()`).
    fn update(
        &mut self,
        command: &Command,
        hist: &Hist,
        event: &Format,
        filter: Option<&[u8]>,
    ) -> Option<Change> {
        if !command.pause && !command.resume && !command.clear {
            return None;
        }
        let named = self.named(hist.name.as_deref());
        if hist.name.is_some() && !named.is_some_and(|named| hist.matches(&named.hist)) {
            return None;
        }
        let id = self.find(hist, event, filter)?;
        let trigger = self.triggers.iter_mut().find(|trigger| trigger.id == id)?;
        Some(if command.pause {
            trigger.paused = true;
            Change::Paused(id)
        } else if command.resume {
            trigger.paused = false;
            Change::Resumed(id)
        } else {
            Change::Cleared(id)
        })
    }

    /// `hist_register_trigger()`
    #[expect(clippy::too_many_arguments, reason = "what a command made")]
    fn add(
        &mut self,
        command: &Command,
        hist: Hist,
        event: &Arc<Format>,
        filter: Option<Vec<u8>>,
        text: Option<Vec<u8>>,
        world: &dyn World,
        log: &mut Log,
    ) -> Result<Change, Errno> {
        let named = self.named(hist.name.as_deref()).map(|named| (named.id, Arc::clone(&named.hist)));
        if let (Some((_, other)), Some(name)) = (&named, &hist.name)
            && !hist.matches(other)
        {
            log.add(ErrorKind::NamedMismatch, name, command.name);
            return Err(Errno::INVAL);
        }
        let is_new_name = hist.name.is_some() && named.is_none();
        if !is_new_name && self.find(&hist, event, filter.as_deref()).is_some() {
            log.add_anywhere(ErrorKind::TriggerExists);
            return Err(Errno::EXIST);
        }
        if command.resume || command.clear {
            log.add_anywhere(ErrorKind::NothingToClear);
            return Err(Errno::NOENT);
        }
        let clock = hist.timestamps.then(|| hist.clock.clone().unwrap_or_else(|| b"global".to_vec()));
        if let Some(clock) = &clock
            && !world.has_clock(clock)
        {
            log.add(ErrorKind::SetClockFailed, clock, command.clock);
            return Err(Errno::INVAL);
        }
        let id = TriggerId(self.next_id());
        let (name, instance) = (hist.name.clone(), hist.instance);
        let (first, hist) = if let Some((first, shared)) = named {
            if let Some(first) = self.triggers.iter_mut().find(|trigger| trigger.id == first) {
                first.users += 1;
            }
            (Some(first), shared)
        } else {
            if hist.has_variables() {
                self.with_variables.insert(0, hist.id);
            }
            (None, Arc::new(hist))
        };
        self.triggers.push(Trigger {
            id,
            instance,
            event: Arc::clone(event),
            hist,
            filter,
            paused: command.pause,
            command: text,
            name,
            first,
            users: 1,
            listed: true,
        });
        Ok(Change::Added(id, clock))
    }
}

/// Checks the filter after `if` (`set_trigger_filter()`).
fn filter(
    command: &Command,
    event: &Format,
    world: &dyn World,
    log: &mut Log,
) -> Result<Option<Vec<u8>>, Errno> {
    let Some(whole) = command.filter else { return Ok(None) };
    let text = command.part(whole).get(3..).ok_or(Errno::INVAL)?;
    match world.filter(event, text) {
        Ok(()) => Ok(Some(text.to_vec())),
        Err(error) => {
            let errno = error.errno();
            log.add_filter(error);
            Err(errno)
        }
    }
}
