//! The histograms that there are: what a command changes, whose variables are found, which commands are the same
//! histogram, and who keeps whom from going (`event_hist_trigger_parse()` from the filter on).
//!
//! Holds no counts. Triggers and histograms are two things: triggers of one name on several events share one
//! histogram, which goes with the last of them. Names are those of all instances; variables are an instance's own.

use std::sync::Arc;

use rustix::io::Errno;

use super::World;
use super::action::PARAMS_MAX;
use super::checked::{Hist, Making};
use super::command::Command;
use super::error::{ErrorKind, Log, Refusal};
use super::params::Params;
use super::value::{Flags, HistId, Value};
use crate::event::Format;

/// A trigger of a [`Set`]; never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TriggerId(pub u64);

/// A histogram trigger of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Which one.
    pub id: TriggerId,
    /// The instance it is of.
    pub instance: u32,
    /// The event it is on.
    pub event: Arc<Format>,
    /// What it counts in.
    pub hist: Arc<Hist>,
    /// Which hits count, behind `if `.
    pub filter: Option<Vec<u8>>,
    /// Whether it does not count for now.
    pub paused: bool,
    /// What stood behind `hist:`; none for a helper, which comes and goes with who wants it.
    pub command: Option<Vec<u8>>,
    /// `name=NAME`
    name: Option<Vec<u8>>,
    /// The trigger whose name and histogram it shares.
    first: Option<TriggerId>,
    /// Triggers that share its histogram, itself included; gone when there is none.
    users: usize,
    /// Whether the event still has it.
    listed: bool,
}

impl Trigger {
    /// Its line in the event's `trigger`.
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

    fn is_on(&self, instance: u32, system: &str, event: &str) -> bool {
        self.listed && self.instance == instance && self.event.system == system && self.event.name == event
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: what was to go is not there.
    Nothing,
    /// There is one more; the clock that it wants.
    Added(TriggerId, Option<Vec<u8>>),
    /// One is gone.
    Removed(TriggerId),
    /// One does not count for now.
    Paused(TriggerId),
    /// One counts again.
    Resumed(TriggerId),
    /// One counts from zero.
    Cleared(TriggerId),
}

/// A command that was taken, which may have logged something nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What it did.
    pub change: Change,
    /// What it logged.
    pub log: Log,
}

/// A variable's name is one of several events'.
pub(super) struct NotUnique;

/// All histogram triggers, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    triggers: Vec<Trigger>,
    /// Histograms with variables or references, the newest first.
    with_variables: Vec<HistId>,
    last_id: u64,
}

impl Set {
    /// Does what a command says: `command` is what stands behind `hist:` (None: nothing does), `remove` whether `!`
    /// stood in front.
    ///
    /// # Errors
    /// When the kernel would refuse it.
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

    /// Puts a histogram of the kernel's own making on an event.
    pub(super) fn put(
        &mut self,
        instance: u32,
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
        instance: u32,
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

    /// The triggers that events have.
    pub fn triggers(&self) -> impl Iterator<Item = &Trigger> {
        self.triggers.iter().filter(|trigger| trigger.listed)
    }

    /// The triggers of an event.
    pub fn of_event<'a>(
        &'a self,
        instance: u32,
        system: &'a str,
        event: &'a str,
    ) -> impl Iterator<Item = &'a Trigger> {
        self.triggers.iter().filter(move |trigger| trigger.is_on(instance, system, event))
    }

    /// Whether one of an instance's histograms takes snapshots.
    pub(super) fn takes_snapshots(&self, instance: u32) -> bool {
        self.triggers.iter().any(|trigger| trigger.instance == instance && trigger.hist.takes_snapshots())
    }

    /// A trigger.
    pub fn trigger(&self, id: TriggerId) -> Option<&Trigger> {
        self.triggers.iter().find(|trigger| trigger.id == id)
    }

    /// Says whether a trigger counts, as `disable_hist` and `enable_hist` of another event do.
    pub fn set_paused(&mut self, id: TriggerId, paused: bool) {
        if let Some(trigger) = self.triggers.iter_mut().find(|trigger| trigger.id == id) {
            trigger.paused = paused;
        }
    }

    /// Forgets an instance that is gone, whoever refers to its variables (`clear_event_triggers()`).
    pub fn forget_instance(&mut self, instance: u32, world: &dyn World) {
        let of_it = |trigger: &&Trigger| trigger.listed && trigger.instance == instance;
        while let Some(id) = self.triggers.iter().find(of_it).map(|trigger| trigger.id) {
            self.unlist(id, world);
        }
    }

    /// How often a synthetic event is used: by actions, and by triggers on it or any event of its name.
    pub fn uses_of_synthetic(&self, name: &str) -> usize {
        let on_it = self.triggers().filter(|trigger| trigger.event.name == name).count();
        let own = self.triggers.iter().filter(|trigger| trigger.first.is_none());
        let caused = own.flat_map(|trigger| trigger.hist.synthetic_events()).filter(|event| event == name);
        on_it + caused.count()
    }

    /// Takes all of an event's histograms away, unless a variable of one of them is referred to: then none goes
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

    /// The histogram of this number.
    pub fn hist(&self, id: HistId) -> Option<&Hist> {
        self.triggers.iter().map(|trigger| &*trigger.hist).find(|hist| hist.id == id)
    }

    /// A variable of an event's histograms (`find_file_var()`).
    pub(super) fn file_variable(
        &self,
        instance: u32,
        system: &str,
        event: &str,
        name: &[u8],
    ) -> Option<&Value> {
        let mut own = self.triggers.iter().filter(|trigger| trigger.is_on(instance, system, event));
        own.find_map(|trigger| trigger.hist.variable(name))
    }

    /// Whether a variable's name is taken at a histogram's event (`find_var()`).
    pub(super) fn finds_variable(&self, hist: &Hist, name: &[u8]) -> bool {
        let event = &hist.event;
        hist.variable(name).is_some()
            || self.file_variable(hist.instance, &event.system, &event.name, name).is_some()
    }

    /// The event that has a variable of this name.
    pub(super) fn only_event_with(
        &self,
        instance: u32,
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

    /// The first histogram of an event with keys like another's, and its filter (`find_compatible_hist()`).
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

    /// An instance's histograms with variables or references, the newest first.
    fn hists_with_variables(&self, instance: u32) -> impl Iterator<Item = &Hist> {
        let all = self.with_variables.iter().filter_map(|id| self.hist(*id));
        all.filter(move |hist| hist.instance == instance)
    }

    /// The first trigger of a name.
    fn named(&self, name: Option<&[u8]>) -> Option<&Trigger> {
        let name = name?;
        self.triggers.iter().find(|trigger| trigger.first.is_none() && trigger.name.as_deref() == Some(name))
    }

    /// Whether a trigger is what a command says; `named` is the one whose name the command has.
    fn matches(hist: &Hist, filter: Option<&[u8]>, trigger: &Trigger, named: Option<&Trigger>) -> bool {
        let same_name = match named {
            Some(named) => named.id == trigger.id || trigger.first == Some(named.id),
            None => trigger.name.is_none(),
        };
        same_name && trigger.filter.as_deref() == filter && hist.matches(&trigger.hist)
    }

    /// The trigger of an event that a command names.
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

    /// Takes a trigger from its event, and its histogram away if it was the last to use it.
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

    /// `pause`, `cont` and `clear` of one that is there (`existing_hist_update_only()`).
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

/// The filter behind `if` (`set_trigger_filter()`).
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
