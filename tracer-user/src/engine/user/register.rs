//! Registration: a command finds or creates an event, and adds it to the table of the open file.
//!
//! Registering a bit takes two steps (`register_event`, then `register_bit`). The bit is written after both. The answer
//! depends on that write, so the second step is undone if it fails. The time of a registration does not depend on the
//! number of events.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    UserChange,
    spaces::{BitWrite, Requester},
    user_events::{EventHolder, Held, Known},
};
use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        operations::changes::Definitions,
        quota::{Charge, Kind},
        registry::{
            catalogue::DefinedEvent,
            table::{DefinitionOwner, EventDefinition, RevivedEvent},
        },
    },
    event::{
        EventId, InstanceId,
        user::{Event, SYSTEM, fields_key},
    },
    lang::user::Command,
    render::Printer,
};

/// The two forms of `struct user_reg`, distinguished by their sizes (include/uapi/linux/user_events.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 5.18 to 6.3: returns a bit of the status page.
    StatusPage,
    /// 6.4 and later: registers a bit in the program's memory.
    Address,
}

/// Properties of an event, if it is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// The event stays without holders (`USER_EVENT_REG_PERSIST`).
    pub persists: bool,
    /// Other events may have the same name and other fields (`USER_EVENT_REG_MULTI_FORMAT`).
    pub multi: bool,
}

/// The result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The event.
    pub event: EventId,
    /// Its index in the file's table.
    pub index: u32,
    /// Its bit in the page; 0 without one.
    pub bit: u32,
    /// Whether the event is enabled.
    pub on: bool,
}

/// The id and the charges of an event that is about to be added.
struct ReservedEvent {
    id: u16,
    /// The number in its name, if it had one before.
    number: Option<u64>,
    /// The instances that may have records of it.
    recorded_in: Vec<InstanceId>,
    charge: Charge,
    holding: EventHolder,
}

impl UserChange<'_> {
    /// Tries something again after ids of deleted events were released, which may be charged for records that are gone.
    fn with_released_ids<T>(
        &mut self,
        attempt: impl Fn(&mut Self) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        match attempt(self) {
            Err(_) if Definitions::of(self.engine).release_ids_soon() => attempt(self),
            done => done,
        }
    }

    /// An id for a new event, and the charges. A deleted event of the payer with the same name and fields that has
    /// records has its id again, and its charges: a program that starts again needs no second id for each event.
    ///
    /// # Errors
    /// `EMFILE` if there are too many events (as `user_event_parse()`), `ENOMEM` if the definitions of the payer's
    /// events are too long.
    fn reserve(&mut self, wanted: &EventDefinition) -> Result<ReservedEvent, CommandError> {
        let (registry, quotas, payer) = (&mut self.engine.registry, &self.engine.quotas, wanted.payer);
        // An event that cannot be added must not lose the id of its records.
        if !wanted.is_multi && registry.events().has(SYSTEM, &wanted.name) {
            return Err(ErrorKind::Exists.into());
        }
        let mut revived = None;
        let bytes = || {
            revived = registry.table_mut().revive(wanted);
            let kept = revived.as_mut().and_then(|revived| revived.take_charge(Kind::DefinitionBytes));
            let bytes = wanted.name.len() + wanted.fields.len();
            kept.map_or_else(|| DefinitionOwner { quotas, payer }.charge(bytes), Ok)
        };
        let holding = EventHolder::new(quotas, payer, bytes)?;
        if let Some(mut revived) = revived
            && let Some(charge) = revived.take_charge(Kind::UserEvents)
        {
            let RevivedEvent { id, number, recorded_in, .. } = revived;
            return Ok(ReservedEvent { id, number, recorded_in, charge, holding });
        }
        let charge = quotas.charge(payer, Kind::UserEvents, 1).map_err(|_| ErrorKind::TooMany)?;
        // The kernel's error for too many events.
        let id = registry.events().free_id().ok_or(ErrorKind::TooMany)?;
        Ok(ReservedEvent { id, number: None, recorded_in: Vec::new(), charge, holding })
    }

    /// Finds an event, or creates it for a payer. `saved` states whether a persistent event survives the daemon.
    ///
    /// # Errors
    /// `EADDRINUSE` if another event has the name, `EINVAL` for invalid fields, `EMFILE` if there are too many events
    /// (as `user_event_parse()`), `ENOMEM` if the definitions of the payer's events are too long.
    pub(super) fn find(
        &mut self,
        command: Command<'_>,
        kind: Registration,
        payer: u32,
        saved: bool,
    ) -> Result<EventId, CommandError> {
        let fields = fields_key(&command.words());
        if let Some(named) = self.engine.user.names.get(command.name) {
            if kind.multi {
                if let Some(event) = named.formats.get(&fields) {
                    return Ok(*event);
                }
            } else if let Some(event) = named.single {
                let same = self.engine.user.known.get(&event).is_some_and(|known| known.fields == fields);
                return if same { Ok(event) } else { Err(ErrorKind::NameInUse.into()) };
            }
        }
        let mut event = Event { name: command.name.to_owned(), multi: None, fields: command.fields()? };
        // The fields of the event, not those of the command. A lone semicolon, for example, defines no field, but an
        // event without fields cannot be found by it.
        let fields = event.key();
        let definition = EventDefinition { payer, name: event.name.clone(), fields, is_multi: kind.multi };
        let reserved = self.with_released_ids(|this| this.reserve(&definition))?;
        let ReservedEvent { id, number, recorded_in, charge, holding } = reserved;
        let fields = definition.fields;
        event.multi = kind.multi.then(|| number.unwrap_or(self.engine.user.next_multi));
        self.engine.user.next_multi += u64::from(kind.multi && number.is_none());
        let format = event.format(id);
        let text = format.text();
        let made = DefinedEvent {
            printer: Printer::fields_only(&format, self.engine.facts.version()),
            format,
            text,
        };
        let number = self.engine.registry.table_mut().events_mut().add(made)?;
        for instance in recorded_in {
            if let Some(state) = self.engine.instances.get_mut(instance) {
                state.recorded.insert(number);
            }
        }
        let named = self.engine.user.names.entry(event.name.clone()).or_default();
        if kind.multi {
            named.formats.entry(fields.clone()).or_insert(number);
        } else {
            named.single = Some(number);
        }
        if kind.persists && saved {
            self.engine.effects.touch_by_program();
        }
        let known = Known {
            event,
            fields,
            serial: self.engine.registry.table_mut().count_definition(),
            persists: kind.persists,
            saved,
            maker: payer,
            holders: BTreeMap::from([(payer, holding)]),
            charge,
            bit: None,
            on: false,
            changed: 0,
        };
        self.engine.user.known.insert(number, known);
        Ok(number)
    }

    /// Charges a payer for an event that it is about to hold. The errors are those for a new event.
    fn hold(&mut self, event: EventId, payer: u32) -> Result<(), CommandError> {
        self.with_released_ids(|this| {
            let quotas = &this.engine.quotas;
            let known = this.engine.user.known.get_mut(&event).ok_or(ErrorKind::NotFound)?;
            if let Entry::Vacant(place) = known.holders.entry(payer) {
                let bytes = known.event.name.len() + known.fields.len();
                let bytes = || DefinitionOwner { quotas, payer }.charge(bytes);
                place.insert(EventHolder::new(quotas, payer, bytes)?);
            }
            Ok(())
        })
    }

    /// Undoes the part of a registration before the event is added to the table.
    fn undo(&mut self, event: EventId, new: bool) {
        self.drop_holder(event);
        if new {
            self.remove(event);
        }
    }

    /// Registers a command that an open file received from a payer. A `capable` caller may register persistent events.
    /// With the first interface every caller may, but only events of a capable caller survive the daemon.
    ///
    /// # Errors
    /// The kernel's errors: `EADDRINUSE` if another event has the name, `EINVAL` for an invalid command, `EPERM` for a
    /// persistent event of a caller that is not capable, `ENOMEM` if the tables of the payer's files are too long.
    pub(super) fn register_event(
        &mut self,
        (file, payer): (u64, u32),
        text: &[u8],
        layout: Layout,
        kind: Registration,
        capable: bool,
    ) -> Result<Registered, CommandError> {
        let first_age = layout == Layout::StatusPage;
        let command = Command::split(text)?;
        // The first interface accepted and ignored flags.
        if command.flags.is_some() && !first_age {
            return Err(ErrorKind::Invalid.into());
        }
        if kind.persists && !capable {
            return Err(ErrorKind::Denied.into());
        }
        if !self.engine.user.files.contains_key(&file) {
            return Err(ErrorKind::BadFile.into());
        }
        let kind = Registration { persists: kind.persists || first_age, ..kind };
        let before = self.engine.user.known.len();
        let event = self.find(command, kind, payer, capable)?;
        let new = self.engine.user.known.len() > before;
        let place = self.engine.user.files.get(&file).and_then(|table| table.places.get(&event)).copied();
        let mut entry = None;
        if place.is_none() {
            // The payer is charged for holding the event, and the one that opened the file for the entry.
            self.hold(event, payer)?;
            let table = self.engine.user.files.get(&file).ok_or(ErrorKind::BadFile)?;
            let charge = table.charge_entry(&self.engine.quotas).inspect_err(|_| self.undo(event, new))?;
            entry = Some(charge);
        }
        let on = self.engine.instances.is_enabled(event);
        let user = &mut self.engine.user;
        let known = user.known.get_mut(&event).ok_or(ErrorKind::NotFound)?;
        if first_age && known.bit.is_none() {
            let Some(bit) = user.page.allocate() else {
                self.undo(event, new);
                return Err(ErrorKind::TooMany.into());
            };
            known.bit = Some(bit);
            user.page.set(bit, on);
            user.news.page |= on;
        }
        let table = user.files.get_mut(&file).ok_or(ErrorKind::BadFile)?;
        let added = entry.map(|charge| table.add(Held { event, payer, first_age }, charge));
        if added.is_some()
            && let Some(holding) = known.holders.get_mut(&payer)
        {
            holding.files += 1;
        }
        let index = added.or(place).ok_or(ErrorKind::BadFile)?;
        let registered = Registered { event, index, bit: known.bit.unwrap_or(0), on };
        // A payer may have been charged only because there was no other one.
        user.settle_payers(event);
        Ok(registered)
    }

    /// Registers a bit in a task's memory for an event that was just registered. Returns the write that sets the bit to
    /// the state in `registered`.
    ///
    /// # Errors
    /// `ENOMEM` if the address space cannot be remembered.
    pub(super) fn register_bit(
        &mut self,
        requester: Requester<'_>,
        registered: &Registered,
        address: u64,
        bit: u8,
    ) -> Result<BitWrite, CommandError> {
        self.engine.user.follow(&self.engine.facts);
        self.hold(registered.event, requester.payer)?;
        let done =
            self.engine.user.spaces.register_bit(requester, registered.event, (address, bit), registered.on);
        self.drop_holder(registered.event);
        Ok(done?)
    }

    /// Unregisters a bit (`DIAG_IOCSUNREG`). Returns the write that clears it; `ENOENT` if the task has no bit there.
    pub(super) fn forget(&mut self, task: u32, address: u64, bit: u8) -> Result<BitWrite, CommandError> {
        let done = self.engine.user.spaces.forget(task, address, bit);
        self.learn();
        Ok(done?)
    }
}

#[cfg(test)]
mod tests;
