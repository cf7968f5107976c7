//! Tests of registrations: charges, ids and the tables of open files.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::*;
use crate::engine::{Engine, facts::Facts, quota::Quotas, saved::Saved};

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
    UserChange::of(engine).register_event((file, payer), text.as_bytes(), Layout::StatusPage, KIND, false)
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
        assert!(!UserChange::of(&mut engine).take_updates().page);
    }
    // They persist, but belong to a client, so they are not saved.
    assert!(crate::engine::saved::settings(&engine).definitions.is_empty());
    UserChange::of(&mut engine).clear();
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
        let made = UserChange::of(&mut engine).register_event(
            (file, 7),
            text.as_bytes(),
            Layout::Address,
            kind,
            persists,
        );
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
        let done =
            UserChange::of(&mut engine).register_event((*file, payer), text, Layout::Address, KIND, false);
        event = done.unwrap().event;
    }
    assert_eq!([7, 8, 9].map(|payer| used(&engine, payer)), [[1, 1], [0, 1], [0, 1]]);
    assert_eq!(bytes(&engine, 7), bytes(&engine, 9));
    // A second file of a holder, and one that is closed before others.
    let more = engine.user.open(8, &engine.quotas).unwrap();
    UserChange::of(&mut engine).register_event((more, 8), text, Layout::Address, KIND, false).unwrap();
    UserChange::of(&mut engine).close(files[2]);
    UserChange::of(&mut engine).close(files[0]);
    assert_eq!([7, 8, 9].map(|payer| used(&engine, payer)), [[0, 0], [1, 1], [0, 0]]);
    assert_eq!((bytes(&engine, 7), bytes(&engine, 9)), (0, 0));
    UserChange::of(&mut engine).close(files[1]);
    assert_eq!(used(&engine, 8), [1, 1]);
    // The last payer stays charged for what is recorded.
    record(&mut engine, event);
    UserChange::of(&mut engine).close(more);
    assert!(engine.user.known.is_empty());
    assert_eq!((used(&engine, 8), bytes(&engine, 8) > 0), ([1, 0], true));
    engine.instances.state(InstanceId::TOP).unwrap().clear(None);
}

#[test]
fn the_entries_of_tables_are_charged_to_who_opened_the_file_until_it_closes() {
    let Some(mut engine) = engine() else { return };
    let used = |engine: &Engine, payer| engine.quotas.used(payer, Kind::TableEntries);
    let limit = Kind::TableEntries.limits().per_payer;
    let number = Kind::HeldEvents.limits().per_payer as u32 / 2;
    let mut files = Vec::new();
    while used(&engine, 7) + (number as usize) < limit {
        let file = engine.user.open(7, &engine.quotas).unwrap();
        files.push(file);
        for at in 0..number {
            register(&mut engine, file, 7, at).unwrap();
            // Each event has one entry in a table.
            register(&mut engine, file, 7, at).unwrap();
        }
        assert_eq!(used(&engine, 7), files.len() * number as usize);
    }
    let file = engine.user.open(7, &engine.quotas).unwrap();
    let full = (0..number).find_map(|at| register(&mut engine, file, 7, at).err());
    assert_eq!((full, used(&engine, 7)), (None, limit));
    // At the limit nothing of a registration stays, neither of a new event nor of another payer's.
    let before = engine.user.known.len();
    assert_eq!(register(&mut engine, file, 7, number).err(), Some(ErrorKind::NoMemory.into()));
    assert_eq!((engine.user.known.len(), used(&engine, 7)), (before, limit));
    let other = engine.user.open(8, &engine.quotas).unwrap();
    register(&mut engine, other, 8, number).unwrap();
    assert_eq!(register(&mut engine, file, 7, number).err(), Some(ErrorKind::NoMemory.into()));
    assert_eq!(engine.quotas.used(7, Kind::HeldEvents), number as usize);
    // The file may be given to another payer.
    assert_eq!(register(&mut engine, file, 9, number).err(), Some(ErrorKind::NoMemory.into()));
    assert_eq!((used(&engine, 8), used(&engine, 9), engine.quotas.used(9, Kind::HeldEvents)), (1, 0, 0));
    UserChange::of(&mut engine).close(files[0]);
    register(&mut engine, file, 9, number).unwrap();
    assert_eq!((used(&engine, 7), used(&engine, 9)), (limit - number as usize + 1, 0));
    files.drain(1..).chain([file, other]).for_each(|file| UserChange::of(&mut engine).close(file));
    assert_eq!([7, 8, 9].map(|payer| used(&engine, payer)), [0; 3]);
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
        UserChange::of(&mut engine)
            .register_event((file, 7), text.as_bytes(), makers, kind, capable)
            .unwrap();
        let name = format!("name_{number}").into_bytes();
        // Another client registers it by the other interface, and may not delete it.
        UserChange::of(&mut engine).register_event((other, 8), text.as_bytes(), others, KIND, false).unwrap();
        assert_eq!(UserChange::of(&mut engine).delete(&name, 8, false), Err(ErrorKind::Busy.into()));
        UserChange::of(&mut engine).close(other);
        UserChange::of(&mut engine).close(file);
        assert_eq!(UserChange::of(&mut engine).delete(&name, 8, false), Err(ErrorKind::Denied.into()));
        assert_eq!(engine.quotas.used(7, Kind::UserEvents), 1, "it persists, and its maker pays");
        assert_eq!(
            UserChange::of(&mut engine).delete(&name, if number == 0 { 7 } else { 8 }, number > 0),
            Ok(())
        );
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
            let event = UserChange::of(&mut engine).register_event(
                (file, 7),
                text.as_bytes(),
                Layout::Address,
                kind,
                false,
            );
            let event = event.unwrap().event;
            let id = engine.registry.events().known_format(event).unwrap().id;
            // The last round records nothing, but the records of before are there.
            if round < 2 {
                record(&mut engine, event);
            }
            all.push((id, engine.user.known[&event].event.multi));
        }
        UserChange::of(&mut engine).close(file);
        assert!(engine.user.known.is_empty());
        assert!(all.iter().all(|(id, _)| engine.registry.events().defined_printer(*id).is_some()));
        if round > 0 {
            assert_eq!(all, ids);
        }
        ids = all;
    }
    // Others do not get them.
    let file = engine.user.open(8, &engine.quotas).unwrap();
    let done = UserChange::of(&mut engine)
        .register_event((file, 8), b"again_1 u32 a", Layout::Address, KIND, false)
        .unwrap();
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
        UserChange::of(&mut engine).remove(event);
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
        UserChange::of(&mut engine).register_event((file, 0), text.as_bytes(), Layout::Address, kind, true)
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
