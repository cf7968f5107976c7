//! The catalogue with what every definition needs of it: ids, charges and places among all definitions.

use std::{collections::HashMap, sync::Arc};

use rustix::io::Errno;

use crate::{
    engine::{
        quota::{Charge, Kind, Quotas},
        registry::catalogue::{Events, Made},
    },
    event::EventId,
};

/// The client that pays for definitions.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct DefinitionOwner<'a> {
    /// What all clients have.
    pub(in crate::engine) quotas: &'a Quotas,
    /// Its uid.
    pub(in crate::engine) uid: u32,
}

impl DefinitionOwner<'_> {
    /// Charges the bytes of a definition.
    ///
    /// # Errors
    /// `ENOMEM` when the uid has as many as it may have.
    pub(in crate::engine) fn charge(&self, bytes: usize) -> Result<Charge, Errno> {
        self.quotas.charge(self.uid, Kind::DefinitionBytes, bytes).map_err(|_| Errno::NOMEM)
    }
}

/// What a change of definitions means for instances.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct EventChanges {
    /// Events that are gone.
    pub(in crate::engine) removed: Vec<EventId>,
    /// Events whose probes are others than before.
    pub(in crate::engine) redefined: Vec<EventId>,
    /// Entries for the `error_log` of the top instance.
    pub(in crate::engine) log: Vec<Vec<u8>>,
}

/// The events, and the charges of their definitions.
#[derive(Debug)]
pub(in crate::engine) struct EventTable {
    events: Arc<Events>,
    /// The bytes of the definitions of dynamic and synthetic events.
    charges: HashMap<EventId, Vec<Charge>>,
    /// How many dynamic events were ever defined: their order in `dynamic_events`.
    definitions: u64,
}

impl EventTable {
    pub(super) fn new(events: Events) -> Self {
        Self { events: Arc::new(events), charges: HashMap::new(), definitions: 0 }
    }

    /// The catalogue.
    pub(in crate::engine) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// An id for one more event.
    ///
    /// # Errors
    /// `ENOSPC` when all are used.
    pub(super) fn free_id(&self) -> Result<u16, Errno> {
        self.events.free_id().ok_or(Errno::NOSPC)
    }

    /// Adds an event that the kernel does not know.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken.
    pub(super) fn add(&mut self, made: Made) -> Result<EventId, Errno> {
        Arc::make_mut(&mut self.events).add(made)
    }

    /// Adds an event of the kernel.
    ///
    /// # Errors
    /// As [`EventTable::add`].
    pub(super) fn add_known(&mut self, system: &str, name: &str) -> Result<EventId, Errno> {
        Arc::make_mut(&mut self.events).add_known(system, name)
    }

    /// Removes an event.
    pub(super) fn remove(&mut self, event: EventId, changes: &mut EventChanges) {
        self.charges.remove(&event);
        Arc::make_mut(&mut self.events).remove(event);
        changes.removed.push(event);
    }

    /// The place of the next definition among all of them.
    pub(super) fn definitions(&self) -> u64 {
        self.definitions
    }

    /// Counts a definition; its place among all of them.
    pub(super) fn count_definition(&mut self) -> u64 {
        let place = self.definitions;
        self.definitions += 1;
        place
    }

    /// Keeps the charge of a definition as long as its event is there.
    pub(super) fn keep_charge(&mut self, event: EventId, charge: Charge) {
        self.charges.entry(event).or_default().push(charge);
    }

    /// Keeps the charges of the longest definitions of an event; the others are gone.
    pub(super) fn keep_charges(&mut self, event: EventId, count: usize) {
        if let Some(charges) = self.charges.get_mut(&event) {
            charges.sort_by_key(|charge| std::cmp::Reverse(charge.amount()));
            charges.truncate(count);
        }
    }
}
