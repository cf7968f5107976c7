//! The catalogue, with the ids, charges and serial numbers of definitions.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        quota::{Charge, Kind, Quotas},
        registry::catalogue::{DefinedEvent, Events},
    },
    event::EventId,
};

/// The client that is charged for definitions.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct DefinitionOwner<'a> {
    /// The quotas of all clients.
    pub(in crate::engine) quotas: &'a Quotas,
    /// Its uid.
    pub(in crate::engine) uid: u32,
}

impl DefinitionOwner<'_> {
    /// Charges the bytes of a definition.
    ///
    /// # Errors
    /// `ENOMEM` if the uid has reached its limit.
    pub(in crate::engine) fn charge(&self, bytes: usize) -> Result<Charge, CommandError> {
        self.quotas.charge(self.uid, Kind::DefinitionBytes, bytes).map_err(|_| ErrorKind::NoMemory.into())
    }
}

/// The consequences of a change of definitions for instances.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct EventChanges {
    /// Removed events.
    pub(in crate::engine) removed: Vec<EventId>,
    /// Events whose probes changed.
    pub(in crate::engine) redefined: Vec<EventId>,
}

/// The events, and the charges of their definitions.
#[derive(Debug)]
pub(in crate::engine) struct EventTable {
    events: Arc<Events>,
    /// Charges for the bytes of the definitions of dynamic and synthetic events.
    charges: HashMap<EventId, Vec<Charge>>,
    /// Number of dynamic events defined so far, which gives their order in `dynamic_events`.
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

    /// An id for a new event.
    ///
    /// # Errors
    /// `ENOSPC` if all ids are in use.
    pub(super) fn free_id(&self) -> Result<u16, CommandError> {
        self.events.free_id().ok_or_else(|| ErrorKind::NoIds.into())
    }

    /// Adds an event that the kernel does not know.
    ///
    /// # Errors
    /// `EEXIST` for an existing name.
    pub(super) fn add(&mut self, made: DefinedEvent) -> Result<EventId, CommandError> {
        Arc::make_mut(&mut self.events).add(made)
    }

    /// Adds an event that the kernel does not know and whose name may be taken.
    ///
    /// # Errors
    /// `ENOSPC` when numbers are used up.
    pub(super) fn add_alike(&mut self, made: DefinedEvent) -> Result<EventId, CommandError> {
        Arc::make_mut(&mut self.events).add_alike(made)
    }

    /// Adds an event of the kernel.
    ///
    /// # Errors
    /// As [`EventTable::add`].
    pub(super) fn add_known(&mut self, system: &str, name: &str) -> Result<EventId, CommandError> {
        Arc::make_mut(&mut self.events).add_known(system, name)
    }

    /// Removes an event.
    pub(super) fn remove(&mut self, event: EventId, changes: &mut EventChanges) {
        self.charges.remove(&event);
        Arc::make_mut(&mut self.events).remove(event);
        changes.removed.push(event);
    }

    /// The serial number of the next definition.
    pub(super) fn definitions(&self) -> u64 {
        self.definitions
    }

    /// Counts a definition. Returns its serial number.
    pub(super) fn count_definition(&mut self) -> u64 {
        let place = self.definitions;
        self.definitions += 1;
        place
    }

    /// Holds the charge of a definition as long as its event exists.
    pub(super) fn keep_charge(&mut self, event: EventId, charge: Charge) {
        self.charges.entry(event).or_default().push(charge);
    }

    /// Holds the charges of the longest definitions of an event, and releases the others.
    pub(super) fn keep_charges(&mut self, event: EventId, count: usize) {
        if let Some(charges) = self.charges.get_mut(&event) {
            charges.sort_by_key(|charge| std::cmp::Reverse(charge.amount()));
            charges.truncate(count);
        }
    }
}
