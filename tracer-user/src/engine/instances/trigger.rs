//! Adding and removing triggers of events: `events/SYSTEM/EVENT/trigger`.
//!
//! An event with triggers is attached even if it is disabled, and so is an event that triggers enable or disable. A
//! word on the kernel's side states whether such an event is recorded ([`tracer_abi::Switches::soft`]).

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        histograms::HistCommands,
        instances::{
            change::InstanceChange,
            trigger_list::{InstalledTrigger, Kind},
        },
    },
    event::EventId,
    kernel::Change,
    lang::trigger::{self, Argument, Command, SimpleAction, Target},
};

impl InstanceChange<'_> {
    /// Applies a write to an event's `trigger` file.
    pub(crate) fn set_trigger(&mut self, event: EventId, written: &[u8]) -> Result<(), CommandError> {
        let line = trigger::read(written)?;
        let (kind, argument) = match line.command {
            Command::Simple(act, argument) => (Kind::Simple(act), argument),
            Command::Switch(switch, target, argument) => {
                (Kind::Switch(switch, self.event_of(target)?), argument)
            }
            Command::Hist(text) => {
                return HistCommands::of(self.engine, self.instance).set_hist(event, text, line.remove);
            }
        };
        if line.remove {
            let state = self.state()?;
            if let Some(at) = state.triggers.find(event, kind) {
                self.remove_trigger(event, at)?;
            }
            return Ok(());
        }
        let trigger = self.checked_trigger(event, kind, argument)?;
        if self.state()?.triggers.find(event, kind).is_some() {
            return Err(ErrorKind::Exists.into());
        }
        self.install_trigger(event, trigger)
    }

    /// The target event of a trigger. It must be an event that can be enabled.
    fn event_of(&self, target: Target<'_>) -> Result<EventId, CommandError> {
        let name = |text| std::str::from_utf8(text).map_err(|_| ErrorKind::Invalid);
        let system =
            self.engine.registry.events().find_system(name(target.system)?).ok_or(ErrorKind::Invalid)?;
        let event =
            self.engine.registry.events().find(system, name(target.event)?).ok_or(ErrorKind::Invalid)?;
        if self.engine.registry.events().is_special(system) {
            Err(ErrorKind::Invalid.into())
        } else {
            Ok(event)
        }
    }

    /// A trigger with its count and filter, checked in the kernel's order.
    fn checked_trigger(
        &mut self,
        event: EventId,
        kind: Kind,
        argument: Argument<'_>,
    ) -> Result<InstalledTrigger, CommandError> {
        let count = argument.count()?;
        let filter = match argument.filter()? {
            None => None,
            Some(text) => match self.resolve_filter(event, text)? {
                Ok(filter) => Some((text.to_vec(), filter)),
                Err(error) => {
                    let error = CommandError::from(error);
                    return Err(if Change::LoggedTriggerFilters.is_in(self.engine.facts.version()) {
                        error
                    } else {
                        error.unlogged()
                    });
                }
            },
        };
        Ok(InstalledTrigger::new(kind, count, filter))
    }

    /// Installs a trigger. If something is refused, nothing changes.
    fn install_trigger(&mut self, event: EventId, trigger: InstalledTrigger) -> Result<(), CommandError> {
        let (kind, count) = (trigger.kind, trigger.count);
        self.engine.make_session(self.instance)?;
        if kind == Kind::Simple(SimpleAction::Snapshot) {
            // Programs do not overwrite records any more, so that a snapshot has those before it.
            self.engine.collect(self.instance);
            self.state()?.arm_snapshot();
        }
        if let Some((target, idle)) = kind.target() {
            self.reconciler().soft_mode_get(target, idle)?;
        }
        let state = self.engine.instances.get_mut(self.instance).ok_or(ErrorKind::Gone)?;
        let first = state.triggers.of(event).is_empty();
        let done = match state.triggers.insert(event, trigger) {
            Err(errno) => Err(errno),
            Ok(place) => {
                if let (Some(place), Some(session)) = (place, self.engine.attachments.session(self.instance))
                {
                    session.kernel().switches().set_count(place, count);
                }
                let done = if first && !self.engine.registry.is_special(event) {
                    self.reconciler().soft_mode_get(event, false)
                } else {
                    self.update_programs(&[event])
                };
                if done.is_err() {
                    self.state()?.triggers.remove(event, 0);
                }
                done
            }
        };
        if let (Err(_), Some((target, idle))) = (&done, kind.target()) {
            self.reconciler().soft_mode_put(target, idle)?;
        }
        done
    }

    /// Removes the trigger at an index of an event's list.
    fn remove_trigger(&mut self, event: EventId, at: usize) -> Result<(), CommandError> {
        // Its earlier requests must take effect first.
        self.engine.collect(self.instance);
        let state = self.engine.instances.state(self.instance)?;
        let Some(trigger) = state.triggers.remove(event, at) else { return Ok(()) };
        let done = if state.triggers.of(event).is_empty() && !self.engine.registry.is_special(event) {
            self.reconciler().soft_mode_put(event, false)
        } else {
            self.update_programs(&[event])
        };
        match trigger.kind.target() {
            Some((target, idle)) => done.and(self.reconciler().soft_mode_put(target, idle)),
            None => done,
        }
    }
}
