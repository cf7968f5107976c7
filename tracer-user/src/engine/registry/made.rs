//! Events that come and go while the mirror runs: those that definitions make and those that modules bring.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    engine::{
        Engine,
        quota::{Charge, Kind},
        registry::catalogue::Made,
    },
    event::{EventId, InstanceId},
};

impl Engine {
    /// Counts the bytes of a definition for the client that writes it.
    ///
    /// # Errors
    /// `ENOMEM` when its uid has as many as it may have.
    pub(in crate::engine) fn charge_definition(&self, bytes: usize) -> Result<Charge, Errno> {
        self.quotas.charge(self.client, Kind::DefinitionBytes, bytes).map_err(|_| Errno::NOMEM)
    }

    /// Counts them as long as the event is there.
    pub(in crate::engine) fn keep_charge(&mut self, event: EventId, charge: Charge) {
        self.definition_charges.entry(event).or_default().push(charge);
    }

    /// Counts so many of an event's definitions, the longest of them: others are gone.
    pub(in crate::engine) fn keep_charges(&mut self, event: EventId, count: usize) {
        if let Some(charges) = self.definition_charges.get_mut(&event) {
            charges.sort_by_key(|charge| std::cmp::Reverse(charge.amount()));
            charges.truncate(count);
        }
    }

    /// Adds an event that the kernel does not know, and says its number.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken.
    pub fn add_event(&mut self, made: Made) -> Result<EventId, Errno> {
        Arc::make_mut(&mut self.events).add(made)
    }

    /// Adds an event that the kernel has by now, and says its number.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken.
    pub fn add_known_event(&mut self, system: &str, name: &str) -> Result<EventId, Errno> {
        Arc::make_mut(&mut self.events).add_known(system, name)
    }

    /// Whether an event is on in an instance, or held, so that it must not go.
    pub fn is_busy(&self, event: EventId) -> bool {
        self.held.contains_key(&event) || self.all().any(|state| state.is_enabled(event))
    }

    /// Keeps an event from going (`trace_event_try_get_ref()`).
    pub fn take_event(&mut self, event: EventId) {
        *self.held.entry(event).or_default() += 1;
    }

    /// Ends a [`Engine::take_event`].
    pub fn give_event(&mut self, event: EventId) {
        if let Some(times) = self.held.get_mut(&event) {
            *times -= 1;
            if *times == 0 {
                self.held.remove(&event);
                self.user.loosen(event);
            }
        }
    }

    /// Takes an event away, with all that instances have of it. The buffers of an instance that it was on in are
    /// emptied, as nobody could read its records any more (`event_remove()`, kernel/trace/trace_events.c).
    pub fn remove_event(&mut self, event: EventId) {
        for instance in self.numbers().collect::<Vec<_>>() {
            forget_event(self, instance, event);
        }
        self.definition_charges.remove(&event);
        Arc::make_mut(&mut self.events).remove(event);
    }
}

/// Takes everything away that an instance has of an event. If the event was on in it, its buffers are emptied.
fn forget_event(engine: &mut Engine, instance: InstanceId, event: EventId) {
    let was_recorded = engine.get_mut(instance).is_some_and(|state| state.forget(event));
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.forget(event);
        if was_recorded {
            session.queue.discard();
        }
    }
    if was_recorded {
        // The instance is there.
        let _ = engine.empty_buffers(instance, None);
    }
}
