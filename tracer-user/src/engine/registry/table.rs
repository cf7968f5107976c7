//! The catalogue, with the ids, charges and serial numbers of definitions.
//!
//! A deleted event that was recorded keeps its id, the printer of its records and its charges until no record is left.
//! So the quotas of its owner limit what deleted events keep.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        quota::{Charge, Kind, Quotas},
        registry::catalogue::Events,
    },
    event::{EventId, InstanceId},
};

/// The client that is charged for definitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DefinitionOwner<'a> {
    pub(crate) quotas: &'a Quotas,
    pub(crate) payer: u32,
}

impl DefinitionOwner<'_> {
    /// Charges the bytes of a definition; `ENOMEM` if the payer has reached its limit.
    pub(crate) fn charge(&self, bytes: usize) -> Result<Charge, CommandError> {
        self.quotas.charge(self.payer, Kind::DefinitionBytes, bytes).map_err(|_| ErrorKind::NoMemory.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemovedEvent {
    pub(crate) event: EventId,
    /// Its id, if the kernel does not know it. The id is taken until [`EventTable::release`].
    pub(crate) id: Option<u16>,
}

/// A deleted event that may have records.
#[derive(Debug)]
pub(crate) struct DeletedEvent {
    pub(crate) recorded_in: Vec<InstanceId>,
    /// The time of its deletion (`CLOCK_MONOTONIC`).
    pub(crate) since: u64,
    charges: Vec<Charge>,
    /// An event with the same definition gets its id.
    definition: Option<EventDefinition>,
}

/// The definition of a deleted event, by which it is revived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EventDefinition {
    pub(crate) payer: u32,
    pub(crate) name: String,
    pub(crate) fields: String,
    /// Whether other events may have its name.
    pub(crate) is_multi: bool,
}

/// A deleted event that is defined again.
#[derive(Debug)]
pub(crate) struct RevivedEvent {
    pub(crate) id: u16,
    /// The number in its name.
    pub(crate) number: Option<u64>,
    pub(crate) recorded_in: Vec<InstanceId>,
    charges: Vec<Charge>,
}

impl RevivedEvent {
    pub(crate) fn take_charge(&mut self, kind: Kind) -> Option<Charge> {
        let place = self.charges.iter().position(|charge| charge.kind() == kind)?;
        Some(self.charges.swap_remove(place))
    }
}

/// The consequences of a change of definitions for instances.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EventChanges {
    pub(crate) removed: Vec<RemovedEvent>,
    /// Events whose probes changed.
    pub(crate) redefined: Vec<EventId>,
}

/// The events, and the charges of their definitions.
#[derive(Debug, Default)]
pub(crate) struct EventTable {
    events: Arc<Events>,
    /// Charges for the definitions of dynamic, synthetic and user events.
    charges: HashMap<EventId, Vec<Charge>>,
    /// Deleted events, by id.
    deleted: BTreeMap<u16, DeletedEvent>,
    /// The ids of those that can be revived, and the numbers of their names.
    revivable: HashMap<EventDefinition, (u16, Option<u64>)>,
    /// Number of dynamic events defined so far, which gives their order in `dynamic_events`.
    definitions: u64,
}

impl EventTable {
    pub(super) fn new(events: Events) -> Self {
        Self { events: Arc::new(events), ..Self::default() }
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The catalogue, to add events.
    pub(crate) fn events_mut(&mut self) -> &mut Events {
        Arc::make_mut(&mut self.events)
    }

    /// An id for a new event; `ENOSPC` if all are in use.
    pub(super) fn free_id(&self) -> Result<u16, CommandError> {
        self.events.free_id().ok_or_else(|| ErrorKind::NoIds.into())
    }

    /// Removes an event. The caller that applies the changes keeps or releases its id.
    pub(crate) fn remove(&mut self, event: EventId, changes: &mut EventChanges) {
        let charges = self.charges.remove(&event).unwrap_or_default();
        let id = self.events_mut().retire(event);
        if let Some(id) = id {
            let deleted =
                DeletedEvent { recorded_in: Vec::new(), since: u64::MAX, charges, definition: None };
            self.deleted.insert(id, deleted);
        }
        changes.removed.push(RemovedEvent { event, id });
    }

    /// Keeps the id of a removed event that these instances recorded.
    pub(crate) fn keep(&mut self, id: u16, recorded_in: Vec<InstanceId>, since: u64) {
        if let Some(deleted) = self.deleted.get_mut(&id) {
            (deleted.recorded_in, deleted.since) = (recorded_in, since);
        }
    }

    /// Releases the id and the charges of a removed event.
    pub(crate) fn release(&mut self, id: u16) {
        if let Some(deleted) = self.deleted.remove(&id) {
            self.forget_definition(deleted.definition, id);
            self.events_mut().release_id(id, !deleted.recorded_in.is_empty());
        }
    }

    fn forget_definition(&mut self, definition: Option<EventDefinition>, id: u16) {
        let is_its = |definition: &EventDefinition| {
            self.revivable.get(definition).is_some_and(|(known, _)| *known == id)
        };
        if let Some(definition) = definition.filter(is_its) {
            self.revivable.remove(&definition);
        }
    }

    /// Keeps the definition of a removed event, so that it can be revived. `number` is the number in its name.
    pub(crate) fn keep_definition(&mut self, id: u16, definition: EventDefinition, number: Option<u64>) {
        if let Some(deleted) = self.deleted.get_mut(&id) {
            let before = deleted.definition.replace(definition.clone());
            self.forget_definition(before, id);
            self.revivable.insert(definition, (id, number));
        }
    }

    /// Frees the id of a removed event with this definition. The caller adds an event with the id.
    pub(crate) fn revive(&mut self, definition: &EventDefinition) -> Option<RevivedEvent> {
        let (id, number) = self.revivable.remove(definition)?;
        let DeletedEvent { recorded_in, charges, .. } = self.deleted.remove(&id)?;
        self.events_mut().release_id(id, true);
        Some(RevivedEvent { id, number, recorded_in, charges })
    }

    /// Removed events whose ids are kept, by id.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = (u16, &DeletedEvent)> {
        self.deleted.iter().map(|(id, deleted)| (*id, deleted))
    }

    /// The serial number of the next definition.
    pub(super) fn definitions(&self) -> u64 {
        self.definitions
    }

    /// Counts a definition. Returns its serial number.
    pub(crate) fn count_definition(&mut self) -> u64 {
        let place = self.definitions;
        self.definitions += 1;
        place
    }

    /// Holds the charge of a definition until no record of its event is left.
    pub(crate) fn keep_charge(&mut self, event: EventId, charge: Charge) {
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
