//! Commands that change the set of histogram triggers (`event_hist_trigger_parse()`).

use std::sync::Arc;

use rustix::io::Errno;

use super::{making::Making, params::Params};
use crate::{
    event::{Format, InstanceId},
    lang::hist::{
        World,
        action::PARAMS_MAX,
        checked::Hist,
        command::Command,
        error::{ErrorKind, Log, Refusal},
        set::{Applied, Change, Set, Trigger, TriggerId},
        value::HistId,
    },
};

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
    ) -> Result<Applied, Refusal> {
        let new_log = |command| Log::new(&event.system, &event.name, command);
        let mut log = command.map(new_log).unwrap_or_default();
        match self.run(world.instance(), event, command, remove, true, world, &mut log) {
            Ok(change) => Ok(Applied { change, log }),
            Err(errno) => Err(Refusal::new(errno, log)),
        }
    }

    /// Adds a histogram that the kernel generates to an event.
    pub(crate) fn put(
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

    /// Removes the triggers of a removed instance, even if other histograms refer to its variables
    /// (`clear_event_triggers()`).
    pub fn forget_instance(&mut self, instance: InstanceId, world: &dyn World) {
        let of_it = |trigger: &&Trigger| trigger.listed && trigger.instance == instance;
        while let Some(id) = self.triggers.iter().find(of_it).map(|trigger| trigger.id) {
            self.unlist(id, world);
        }
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
            return Err(log.add(ErrorKind::NamedMismatch, name, command.name));
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
            return Err(log.add(ErrorKind::SetClockFailed, clock, command.clock));
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
