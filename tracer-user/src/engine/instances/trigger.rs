//! Adding triggers to events and taking them away: `events/SYSTEM/EVENT/trigger`.
//!
//! An event with triggers is attached whether it is on or not, and so is an event that triggers turn on and off. A word of the
//! kernel's side says whether such an event is recorded ([`tracer_abi::Switches::soft`]).

use rustix::io::Errno;

use crate::{
    buffer::clock::monotonic,
    engine::histograms::commands as hist_commands,
    engine::{
        Engine,
        attachments::reconcile::{self, Goal, reconcile},
        instances::trigger_list::{InstalledTrigger, Kind},
    },
    event::{EventId, InstanceId},
    lang::trigger::{self, Act, Argument, Command, Target},
};

/// Kernels from this one on tell in `error_log` what is wrong with a trigger's filter: seen not on 6.1 and on 6.12, which of
/// those between began with it is not.
const LOGGED: (u32, u32) = (6, 2);

impl Engine {
    /// What was written to an event's `trigger`.
    pub(in crate::engine) fn set_trigger(
        &mut self,
        instance: InstanceId,
        event: EventId,
        written: &[u8],
    ) -> Result<(), Errno> {
        let line = trigger::read(written)?;
        let (kind, argument) = match line.command {
            Command::Act(act, argument) => (Kind::Act(act), argument),
            Command::Switch(switch, target, argument) => {
                (Kind::Switch(switch, self.target(target)?), argument)
            }
            Command::Hist(text) => return hist_commands::set_hist(self, instance, event, text, line.remove),
        };
        if line.remove {
            let state = self.state(instance)?;
            if let Some(at) = state.triggers.find(event, kind) {
                self.take_trigger(instance, event, at)?;
            }
            return Ok(());
        }
        let standing = self.standing(instance, event, kind, argument)?;
        if self.state(instance)?.triggers.find(event, kind).is_some() {
            return Err(Errno::EXIST);
        }
        self.put_trigger(instance, event, standing)
    }

    /// The event that a trigger is to turn on and off: one that can be turned on.
    fn target(&self, target: Target<'_>) -> Result<EventId, Errno> {
        let name = |text| std::str::from_utf8(text).map_err(|_| Errno::INVAL);
        let system = self.registry.events().find_system(name(target.system)?).ok_or(Errno::INVAL)?;
        let event = self.registry.events().find(system, name(target.event)?).ok_or(Errno::INVAL)?;
        if self.registry.events().is_special(system) { Err(Errno::INVAL) } else { Ok(event) }
    }

    /// A trigger with its count and filter, in the order in which the kernel finds fault with them.
    fn standing(
        &mut self,
        instance: InstanceId,
        event: EventId,
        kind: Kind,
        argument: Argument<'_>,
    ) -> Result<InstalledTrigger, Errno> {
        let count = argument.count()?;
        let filter = match argument.filter()? {
            None => None,
            Some(text) => match self.resolve(event, text)? {
                Ok(filter) => Some((text.to_vec(), filter)),
                Err(error) => {
                    if self.facts.version() >= LOGGED {
                        self.state(instance)?.errors.push(monotonic(), error.log_entry());
                    }
                    return Err(error.errno());
                }
            },
        };
        Ok(InstalledTrigger::new(kind, count, filter))
    }

    /// Lets a trigger stand; when something is refused, all is as it was.
    fn put_trigger(
        &mut self,
        instance: InstanceId,
        event: EventId,
        standing: InstalledTrigger,
    ) -> Result<(), Errno> {
        let (kind, count) = (standing.kind, standing.count);
        self.make_session(instance)?;
        if kind == Kind::Act(Act::Snapshot) {
            self.state(instance)?.arm_snapshot();
        }
        if let Some((target, idle)) = kind.target() {
            reconcile::soft_mode_get(self, instance, target, idle)?;
        }
        let state = self.instances.get_mut(&instance).ok_or(Errno::NODEV)?;
        let first = state.triggers.of(event).is_empty();
        let done = match state.triggers.insert(event, standing) {
            Err(errno) => Err(errno),
            Ok(place) => {
                if let (Some(place), Some(session)) = (place, self.attachments.session(instance)) {
                    session.kernel().switches().set_count(place, count);
                }
                let done = if first && !self.is_special(event) {
                    reconcile::soft_mode_get(self, instance, event, false)
                } else {
                    reconcile(self, instance, &[event], Goal::Unchanged)
                };
                if done.is_err() {
                    self.state(instance)?.triggers.remove(event, 0);
                }
                done
            }
        };
        if let (Err(_), Some((target, idle))) = (done, kind.target()) {
            reconcile::soft_mode_put(self, instance, target, idle)?;
        }
        done
    }

    /// Takes the trigger at a place in an event's list away.
    fn take_trigger(&mut self, instance: InstanceId, event: EventId, at: usize) -> Result<(), Errno> {
        // What it asked for before is obeyed.
        self.collect(instance);
        let state = self.state(instance)?;
        let Some(standing) = state.triggers.remove(event, at) else { return Ok(()) };
        if state.triggers.of(event).is_empty() && !self.is_special(event) {
            reconcile::soft_mode_put(self, instance, event, false)?;
        } else {
            reconcile(self, instance, &[event], Goal::Unchanged)?;
        }
        match standing.kind.target() {
            Some((target, idle)) => reconcile::soft_mode_put(self, instance, target, idle),
            None => Ok(()),
        }
    }

    pub(in crate::engine) fn is_special(&self, event: EventId) -> bool {
        self.registry.events().get(event).is_some_and(|known| self.registry.events().is_special(known.system))
    }
}
