//! Registration: a command finds or creates an event, and adds it to the table of the open file.
//!
//! Registering a bit takes two steps (`register_event`, then `ask`). The bit is written after both. The answer
//! depends on that write, so the second step is undone if it fails. The time of a registration does not depend on the
//! number of events.

use super::{
    Engine,
    spaces::{BitWrite, Requester},
    user_events::{Held, Known},
};
use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        operations::deleted_events,
        quota::Kind,
        registry::catalogue::DefinedEvent,
        user,
    },
    event::{
        EventId,
        user::{Event, fields_key},
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

/// Finds an event, or creates it for a uid. `saved` states whether a persistent event survives the daemon.
///
/// # Errors
/// `EADDRINUSE` if another event has the name, `EINVAL` for invalid fields, `EMFILE` if there are too many events (as
/// `user_event_parse()`), `ENOMEM` if the definitions of the uid's events are too long.
pub(super) fn find(
    engine: &mut Engine,
    command: Command<'_>,
    kind: Registration,
    uid: u32,
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
    deleted_events::release_ids(engine);
    let multi = kind.multi.then_some(engine.user.next_multi);
    engine.user.next_multi += u64::from(kind.multi);
    let event = Event { name: command.name.to_owned(), multi, fields: command.fields()? };
    // The fields of the event, not those of the command. A lone semicolon, for example, defines no field, but an
    // event without fields cannot be found by it.
    let fields = event.key();
    let count = engine.quotas.charge(uid, Kind::UserEvents, 1).map_err(|_| ErrorKind::TooMany)?;
    let bytes = event.name.len() + fields.len();
    let bytes = engine.quotas.charge(uid, Kind::DefinitionBytes, bytes).map_err(|_| ErrorKind::NoMemory)?;
    // The kernel's error for too many events.
    let id = engine.registry.events().free_id().ok_or(ErrorKind::TooMany)?;
    let format = event.format(id);
    let text = event.format_text(id);
    let made = DefinedEvent { printer: Printer::fields_only(&format, engine.facts.version()), format, text };
    let number = engine.registry.add(made)?;
    engine.registry.keep_charge(number, count);
    engine.registry.keep_charge(number, bytes);
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
        files: 0,
        bit: None,
        on: false,
        changed: 0,
    };
    engine.user.known.insert(number, known);
    Ok(number)
}

/// Registers a command that an open file received from a uid. A `capable` caller may register persistent events. With
/// the first interface every caller may, but only events of a capable caller survive the daemon.
///
/// # Errors
/// The kernel's errors: `EADDRINUSE` if another event has the name, `EINVAL` for an invalid command, `EPERM` for a
/// persistent event of a caller that is not capable.
pub(super) fn register_event(
    engine: &mut Engine,
    (file, uid): (u64, u32),
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
    let event = find(engine, command, kind, uid, capable)?;
    let new = engine.user.known.len() > before;
    let on = engine.instances.is_enabled(event);
    let user = &mut engine.user;
    let known = user.known.get_mut(&event).ok_or(ErrorKind::NotFound)?;
    if first_age && known.bit.is_none() {
        let Some(bit) = user.page.allocate() else {
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
        table.held.push(Held { event, first_age });
        known.files += 1;
    }
    Ok(Registered { event, index, bit: known.bit.unwrap_or(0), on })
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
    Ok(engine.user.spaces.register_bit(requester, registered.event, (address, bit), registered.on)?)
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
    use crate::{
        engine::{facts::Facts, quota::Quotas},
        event::InstanceId,
    };

    /// An engine for this kernel, if one can be created.
    fn engine() -> Option<Engine> {
        let engine = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
        if engine.is_none() {
            eprintln!("skipped: tracefs: no engine without it");
        }
        engine
    }

    const KIND: Registration = Registration { persists: false, multi: false };

    fn register(engine: &mut Engine, file: u64, uid: u32, number: u32) -> Result<Registered, CommandError> {
        let text = format!("event_{number} u32 a; u64 b");
        register_event(engine, (file, uid), text.as_bytes(), Layout::StatusPage, KIND, false)
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
    fn some_ids_are_reserved_for_root() {
        let Some(mut engine) = engine() else { return };
        let limits = Kind::UserEvents.limits();
        let (mut made, mut uid) = (0_u32, 0);
        while (made as usize) < limits.total - limits.reserved {
            uid += 1;
            let file = engine.user.open(uid, &engine.quotas).unwrap();
            let mut own = 0;
            while register(&mut engine, file, uid, made).is_ok() {
                (made, own) = (made + 1, own + 1);
            }
            assert!(own <= limits.per_uid && own > 0);
        }
        let file = engine.user.open(0, &engine.quotas).unwrap();
        for number in 0..limits.reserved as u32 {
            register(&mut engine, file, 0, made + number).unwrap();
        }
        assert_eq!(register(&mut engine, file, 0, u32::MAX).err(), Some(ErrorKind::TooMany.into()));
        let other = engine.user.open(uid + 1, &engine.quotas).unwrap();
        assert_eq!(register(&mut engine, other, uid + 1, u32::MAX).err(), Some(ErrorKind::TooMany.into()));
    }

    #[test]
    fn what_deleted_events_keep_is_limited_by_the_quota() {
        let Some(mut engine) = engine() else { return };
        let file = engine.user.open(7, &engine.quotas).unwrap();
        let limit = Kind::UserEvents.limits().per_uid as u32;
        for number in 0..limit {
            let event = register(&mut engine, file, 7, number).unwrap().event;
            let [low, high] = engine.registry.events().known_format(event).unwrap().id.to_ne_bytes();
            let state = engine.instances.state(InstanceId::TOP).unwrap();
            state.recorded.insert(event);
            let buffer = state.buffer.cpu_mut(0).unwrap();
            buffer.resize(1 << 20);
            assert!(buffer.push(1, &[low, high, 0, 0, 1, 0, 0, 0]));
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
