//! Registration: a command finds or creates an event, and adds it to the table of the open file.
//!
//! Registering a bit takes two steps (`register_event`, then `ask`). The bit is written after both. The answer
//! depends on that write, so the second step is undone if it fails. The time of a registration does not depend on the
//! number of events.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    Engine,
    spaces::{BitWrite, Requester},
    user_events::{EventHolder, Held, Known, Table},
};
use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        operations::deleted_events,
        quota::{Charge, Kind, Quotas},
        registry::{
            catalogue::DefinedEvent,
            table::{EventDefinition, RevivedEvent},
        },
        user,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An id for a new event, and the charges. A deleted event of the payer with the same name and fields that has records
/// has its id again, and its charges: a program that starts again needs no second id for each event.
///
/// # Errors
/// `EMFILE` if there are too many events (as `user_event_parse()`), `ENOMEM` if the definitions of the payer's events are
/// too long.
fn reserve(engine: &mut Engine, wanted: &EventDefinition) -> Result<ReservedEvent, CommandError> {
    // Deleted events may be charged for records that are gone.
    match reserve_new(engine, wanted) {
        Err(_) if deleted_events::release_ids_soon(engine) => reserve_new(engine, wanted),
        reserved => reserved,
    }
}

fn reserve_new(engine: &mut Engine, wanted: &EventDefinition) -> Result<ReservedEvent, CommandError> {
    let Engine { registry, quotas, .. } = engine;
    let payer = wanted.payer;
    // An event that cannot be added must not lose the id of its records.
    if !wanted.is_multi && registry.events().has(SYSTEM, &wanted.name) {
        return Err(ErrorKind::Exists.into());
    }
    let mut revived = None;
    let bytes = || {
        revived = registry.revive(wanted);
        let kept = revived.as_mut().and_then(|revived| revived.take_charge(Kind::DefinitionBytes));
        kept.map_or_else(|| definition_bytes(quotas, payer, wanted.name.len() + wanted.fields.len()), Ok)
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

/// Charges a payer for the bytes of a definition.
fn definition_bytes(quotas: &Quotas, payer: u32, bytes: usize) -> Result<Charge, CommandError> {
    quotas.charge(payer, Kind::DefinitionBytes, bytes).map_err(|_| ErrorKind::NoMemory.into())
}

/// Finds an event, or creates it for a payer. `saved` states whether a persistent event survives the daemon.
///
/// # Errors
/// `EADDRINUSE` if another event has the name, `EINVAL` for invalid fields, `EMFILE` if there are too many events (as
/// `user_event_parse()`), `ENOMEM` if the definitions of the payer's events are too long.
pub(super) fn find(
    engine: &mut Engine,
    command: Command<'_>,
    kind: Registration,
    payer: u32,
    saved: bool,
) -> Result<EventId, CommandError> {
    let fields = fields_key(&command.words());
    if let Some(named) = engine.user.names.get(command.name) {
        if kind.multi {
            if let Some(event) = named.formats.get(&fields) {
                return Ok(*event);
            }
        } else if let Some(event) = named.single {
            let same = engine.user.known.get(&event).is_some_and(|known| known.fields == fields);
            return if same { Ok(event) } else { Err(ErrorKind::NameInUse.into()) };
        }
    }
    let mut event = Event { name: command.name.to_owned(), multi: None, fields: command.fields()? };
    // The fields of the event, not those of the command. A lone semicolon, for example, defines no field, but an
    // event without fields cannot be found by it.
    let fields = event.key();
    let definition = EventDefinition { payer, name: event.name.clone(), fields, is_multi: kind.multi };
    let ReservedEvent { id, number, recorded_in, charge, holding } = reserve(engine, &definition)?;
    let fields = definition.fields;
    event.multi = kind.multi.then(|| number.unwrap_or(engine.user.next_multi));
    engine.user.next_multi += u64::from(kind.multi && number.is_none());
    let format = event.format(id);
    let text = event.format_text(id);
    let made = DefinedEvent { printer: Printer::fields_only(&format, engine.facts.version()), format, text };
    let number = engine.registry.add(made)?;
    for instance in recorded_in {
        if let Some(state) = engine.instances.get_mut(instance) {
            state.recorded.insert(number);
        }
    }
    let named = engine.user.names.entry(event.name.clone()).or_default();
    if kind.multi {
        named.formats.entry(fields.clone()).or_insert(number);
    } else {
        named.single = Some(number);
    }
    if kind.persists && saved {
        engine.touch_by_program();
    }
    let known = Known {
        event,
        fields,
        serial: engine.registry.count_definition(),
        persists: kind.persists,
        saved,
        maker: payer,
        holders: BTreeMap::from([(payer, holding)]),
        charge,
        bit: None,
        on: false,
        changed: 0,
    };
    engine.user.known.insert(number, known);
    Ok(number)
}

/// Charges a payer for an event that it is about to hold.
///
/// # Errors
/// `EMFILE` and `ENOMEM`, as for a new event.
fn hold(engine: &mut Engine, event: EventId, payer: u32) -> Result<(), CommandError> {
    match charge_holder(engine, event, payer) {
        Err(_) if deleted_events::release_ids_soon(engine) => charge_holder(engine, event, payer),
        done => done,
    }
}

fn charge_holder(engine: &mut Engine, event: EventId, payer: u32) -> Result<(), CommandError> {
    let known = engine.user.known.get_mut(&event).ok_or(ErrorKind::NotFound)?;
    if let Entry::Vacant(place) = known.holders.entry(payer) {
        let bytes = known.event.name.len() + known.fields.len();
        let bytes = || definition_bytes(&engine.quotas, payer, bytes);
        place.insert(EventHolder::new(&engine.quotas, payer, bytes)?);
    }
    Ok(())
}

/// Registers a command that an open file received from a payer. A `capable` caller may register persistent events. With
/// the first interface every caller may, but only events of a capable caller survive the daemon.
///
/// # Errors
/// The kernel's errors: `EADDRINUSE` if another event has the name, `EINVAL` for an invalid command, `EPERM` for a
/// persistent event of a caller that is not capable.
pub(super) fn register_event(
    engine: &mut Engine,
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
    if !engine.user.files.contains_key(&file) {
        return Err(ErrorKind::BadFile.into());
    }
    let kind = Registration { persists: kind.persists || first_age, ..kind };
    let before = engine.user.known.len();
    let event = find(engine, command, kind, payer, capable)?;
    let new = engine.user.known.len() > before;
    let is_held = |table: &Table| table.places.contains_key(&event);
    if !engine.user.files.get(&file).is_some_and(is_held) {
        hold(engine, event, payer)?;
    }
    let on = engine.instances.is_enabled(event);
    let user = &mut engine.user;
    let known = user.known.get_mut(&event).ok_or(ErrorKind::NotFound)?;
    if first_age && known.bit.is_none() {
        let Some(bit) = user.page.allocate() else {
            user::drop_holder(engine, event);
            if new {
                user::remove(engine, event);
            }
            return Err(ErrorKind::TooMany.into());
        };
        known.bit = Some(bit);
        user.page.set(bit, on);
        user.news.page |= on;
    }
    let table = user.files.get_mut(&file).ok_or(ErrorKind::BadFile)?;
    let next = table.held.len() as u32;
    let index = *table.places.entry(event).or_insert(next);
    if index == next {
        table.held.push(Held { event, payer, first_age });
        if let Some(holding) = known.holders.get_mut(&payer) {
            holding.files += 1;
        }
    }
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
    engine: &mut Engine,
    requester: Requester<'_>,
    registered: &Registered,
    address: u64,
    bit: u8,
) -> Result<BitWrite, CommandError> {
    engine.user.follow(&engine.facts);
    hold(engine, registered.event, requester.payer)?;
    let done = engine.user.spaces.register_bit(requester, registered.event, (address, bit), registered.on);
    user::drop_holder(engine, registered.event);
    Ok(done?)
}

/// Unregisters a bit (`DIAG_IOCSUNREG`). Returns the write that clears it.
///
/// # Errors
/// `ENOENT` if the task has no bit there.
pub(super) fn forget(
    engine: &mut Engine,
    task: u32,
    address: u64,
    bit: u8,
) -> Result<BitWrite, CommandError> {
    let done = engine.user.spaces.forget(task, address, bit);
    user::learn(engine);
    Ok(done?)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::engine::{facts::Facts, saved::Saved};

    /// An engine for this kernel, if one can be created.
    fn engine() -> Option<Engine> {
        let engine = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
        if engine.is_none() {
            eprintln!("skipped: tracefs: no engine without it");
        }
        engine
    }

    const KIND: Registration = Registration { persists: false, multi: false };

    fn register(engine: &mut Engine, file: u64, payer: u32, number: u32) -> Result<Registered, CommandError> {
        let text = format!("event_{number} u32 a; u64 b");
        register_event(engine, (file, payer), text.as_bytes(), Layout::StatusPage, KIND, false)
    }

    #[test]
    fn all_events_of_a_client_are_registered_and_cleared() {
        const EVENTS: u32 = 30_000;
        let Some(mut engine) = engine() else { return };
        engine.quotas = Quotas::unlimited();
        let file = engine.user.open(7, &engine.quotas).unwrap();
        let since = Instant::now();
        for number in 0..EVENTS {
            let done = register(&mut engine, file, 7, number).unwrap();
            assert_eq!((done.index, done.bit), (number, number + 1));
            // The daemon does this after each request.
            assert!(!engine.user_news().page);
        }
        // They persist, but belong to a client, so they are not saved.
        assert!(crate::engine::saved::settings(&engine).definitions.is_empty());
        super::super::clear(&mut engine);
        assert!(engine.user.known.is_empty());
        // A limit against a cost that grows with each event. It usually takes a second.
        assert!(since.elapsed() < Duration::from_secs(120), "{:?}", since.elapsed());
    }

    #[test]
    fn settings_of_user_events_never_make_a_saved_state_invalid() {
        let Some(mut engine) = engine() else { return };
        let file = engine.user.open(7, &engine.quotas).unwrap();
        let (ends, stays) = ("e".repeat(500), "s".repeat(500));
        for (name, persists) in [(&ends, false), (&stays, true)] {
            let kind = Registration { persists, multi: false };
            let text = format!("{name} u32 a");
            let made =
                register_event(&mut engine, (file, 7), text.as_bytes(), Layout::Address, kind, persists);
            engine.instances.state(InstanceId::TOP).unwrap().enabled.insert(made.unwrap().event);
        }
        let saved = crate::engine::saved::settings(&engine);
        let parsed = Saved::parse(&serde_json::to_vec(&saved).unwrap()).unwrap();
        assert_eq!(parsed, saved);
        // The other one ends with its programs.
        assert_eq!(parsed.instances[0].events, [(SYSTEM.to_owned(), stays)]);
    }

    #[test]
    fn some_ids_are_reserved_for_root() {
        let Some(mut engine) = engine() else { return };
        let limits = Kind::UserEvents.limits();
        let (mut made, mut payer) = (0_u32, 0);
        loop {
            payer += 1;
            let file = engine.user.open(payer, &engine.quotas).unwrap();
            let before = made;
            while register(&mut engine, file, payer, made).is_ok() {
                made += 1;
            }
            assert!(made - before <= limits.per_payer as u32);
            if made == before {
                break;
            }
        }
        // Three payers have all that one may have, and some more have a part.
        assert!(payer > 10 && made as usize >= limits.clients - 1, "{payer}: {made}");
        let file = engine.user.open(0, &engine.quotas).unwrap();
        for number in made..made + limits.root as u32 {
            register(&mut engine, file, 0, number).unwrap();
        }
        assert_eq!(register(&mut engine, file, 0, u32::MAX).err(), Some(ErrorKind::TooMany.into()));
        let other = engine.user.open(payer + 1, &engine.quotas).unwrap();
        assert_eq!(register(&mut engine, other, payer + 1, u32::MAX).err(), Some(ErrorKind::TooMany.into()));
    }

    /// Puts a record of an event into the top instance.
    fn record(engine: &mut Engine, event: EventId) -> u16 {
        let id = engine.registry.events().known_format(event).unwrap().id;
        let [low, high] = id.to_ne_bytes();
        let state = engine.instances.state(InstanceId::TOP).unwrap();
        state.recorded.insert(event);
        let buffer = state.buffer.cpu_mut(0).unwrap();
        buffer.resize(1 << 20);
        assert!(buffer.push(1, &[low, high, 0, 0, 1, 0, 0, 0]));
        id
    }

    #[test]
    fn each_holder_of_an_event_is_charged_and_charges_pass_on() {
        let Some(mut engine) = engine() else { return };
        let files: Vec<u64> =
            [7, 8, 9].iter().map(|payer| engine.user.open(*payer, &engine.quotas).unwrap()).collect();
        let used = |engine: &Engine, payer| {
            [Kind::UserEvents, Kind::HeldEvents].map(|kind| engine.quotas.used(payer, kind))
        };
        let bytes = |engine: &Engine, payer| engine.quotas.used(payer, Kind::DefinitionBytes);
        let mut event = EventId::new(0);
        let text = b"name u32 a";
        for (file, payer) in files.iter().zip([7, 8, 9]) {
            let done = register_event(&mut engine, (*file, payer), text, Layout::Address, KIND, false);
            event = done.unwrap().event;
        }
        assert_eq!([7, 8, 9].map(|payer| used(&engine, payer)), [[1, 1], [0, 1], [0, 1]]);
        assert_eq!(bytes(&engine, 7), bytes(&engine, 9));
        // A second file of a holder, and one that is closed before others.
        let more = engine.user.open(8, &engine.quotas).unwrap();
        register_event(&mut engine, (more, 8), text, Layout::Address, KIND, false).unwrap();
        engine.user_close(files[2]);
        engine.user_close(files[0]);
        assert_eq!([7, 8, 9].map(|payer| used(&engine, payer)), [[0, 0], [1, 1], [0, 0]]);
        assert_eq!((bytes(&engine, 7), bytes(&engine, 9)), (0, 0));
        engine.user_close(files[1]);
        assert_eq!(used(&engine, 8), [1, 1]);
        // The last payer stays charged for what is recorded.
        record(&mut engine, event);
        engine.user_close(more);
        assert!(engine.user.known.is_empty());
        assert_eq!((used(&engine, 8), bytes(&engine, 8) > 0), ([1, 0], true));
        engine.instances.state(InstanceId::TOP).unwrap().clear(None);
    }

    #[test]
    fn an_event_is_its_makers_whichever_interface_is_used() {
        let Some(mut engine) = engine() else { return };
        for (number, (makers, others)) in [Layout::StatusPage, Layout::Address]
            .into_iter()
            .zip([Layout::Address, Layout::StatusPage])
            .enumerate()
        {
            let text = format!("name_{number} u32 a");
            let kind = Registration { persists: makers == Layout::Address, multi: false };
            let [file, other] = [7, 8].map(|payer| engine.user.open(payer, &engine.quotas).unwrap());
            let capable = makers == Layout::Address;
            register_event(&mut engine, (file, 7), text.as_bytes(), makers, kind, capable).unwrap();
            let name = format!("name_{number}").into_bytes();
            // Another client registers it by the other interface, and may not delete it.
            register_event(&mut engine, (other, 8), text.as_bytes(), others, KIND, false).unwrap();
            assert_eq!(user::delete(&mut engine, &name, 8, false), Err(ErrorKind::Busy.into()));
            engine.user_close(other);
            engine.user_close(file);
            assert_eq!(user::delete(&mut engine, &name, 8, false), Err(ErrorKind::Denied.into()));
            assert_eq!(engine.quotas.used(7, Kind::UserEvents), 1, "it persists, and its maker pays");
            assert_eq!(user::delete(&mut engine, &name, if number == 0 { 7 } else { 8 }, number > 0), Ok(()));
            assert_eq!(engine.quotas.used(7, Kind::UserEvents), 0);
        }
    }

    #[test]
    fn a_program_that_starts_again_has_the_ids_of_its_events_again() {
        let Some(mut engine) = engine() else { return };
        let limit = Kind::UserEvents.limits().per_payer as u32;
        let mut ids = Vec::new();
        for round in 0..3 {
            let file = engine.user.open(7, &engine.quotas).unwrap();
            let mut all = Vec::new();
            for number in 0..limit {
                let kind = Registration { persists: false, multi: number % 2 == 0 };
                let text = format!("again_{number} u32 a");
                let event =
                    register_event(&mut engine, (file, 7), text.as_bytes(), Layout::Address, kind, false);
                let event = event.unwrap().event;
                let id = engine.registry.events().known_format(event).unwrap().id;
                // The last round records nothing, but the records of before are there.
                if round < 2 {
                    record(&mut engine, event);
                }
                all.push((id, engine.user.known[&event].event.multi));
            }
            engine.user_close(file);
            assert!(engine.user.known.is_empty());
            assert!(all.iter().all(|(id, _)| engine.registry.events().defined_printer(*id).is_some()));
            if round > 0 {
                assert_eq!(all, ids);
            }
            ids = all;
        }
        // Others do not get them.
        let file = engine.user.open(8, &engine.quotas).unwrap();
        let done =
            register_event(&mut engine, (file, 8), b"again_1 u32 a", Layout::Address, KIND, false).unwrap();
        let id = engine.registry.events().known_format(done.event).unwrap().id;
        assert!(ids.iter().all(|(known, _)| *known != id));
        engine.instances.state(InstanceId::TOP).unwrap().clear(None);
    }

    #[test]
    fn what_deleted_events_keep_is_limited_by_the_quota() {
        let Some(mut engine) = engine() else { return };
        let file = engine.user.open(7, &engine.quotas).unwrap();
        let limit = Kind::UserEvents.limits().per_payer as u32;
        for number in 0..limit {
            let event = register(&mut engine, file, 7, number).unwrap().event;
            record(&mut engine, event);
            user::remove(&mut engine, event);
        }
        assert!(engine.user.known.is_empty());
        assert_eq!(register(&mut engine, file, 7, limit).err(), Some(ErrorKind::TooMany.into()));
        let entries = |engine: &Engine| {
            engine.instances.get(InstanceId::TOP).unwrap().buffer.cpu(0).unwrap().stats().entries
        };
        assert_eq!(entries(&engine), u64::from(limit), "nothing is erased");
        // Others are not affected.
        let other = engine.user.open(8, &engine.quotas).unwrap();
        register(&mut engine, other, 8, limit).unwrap();
    }

    #[test]
    fn events_of_one_name_are_found_by_their_fields() {
        let Some(mut engine) = engine() else { return };
        let file = engine.user.open(0, &engine.quotas).unwrap();
        let mut register_bit = |text: &str, multi| {
            let kind = Registration { persists: false, multi };
            register_event(&mut engine, (file, 0), text.as_bytes(), Layout::Address, kind, true)
        };
        let one = register_bit("name u32 a; u32 b", false).unwrap().event;
        assert_eq!(register_bit("name u32 a;u32 b;", false).map(|done| done.event), Ok(one));
        assert_eq!(register_bit("name u32 a", false).err(), Some(ErrorKind::NameInUse.into()));
        let many: Vec<EventId> =
            (1..50).map(|n| register_bit(&format!("name char[{n}] a"), true).unwrap().event).collect();
        for (n, event) in (1..).zip(&many) {
            assert_eq!(register_bit(&format!("name char[{n}] a;"), true).map(|done| done.event), Ok(*event));
        }
        assert_eq!(register_bit("name u32 a; u32 b", false).map(|done| done.event), Ok(one));
        assert_eq!(engine.user.named("name").len(), 50);
    }
}
