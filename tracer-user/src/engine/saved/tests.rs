//! Tests of saving and restoring whole states.

use std::sync::Arc;

use super::*;
use crate::{
    engine::{facts::Facts, user::UserChange},
    lang::define::File,
};

/// An engine for this kernel, if one can be created.
fn engine() -> Option<Engine> {
    let engine = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
    if engine.is_none() {
        eprintln!("skipped: tracefs: no engine without it");
    }
    engine
}

fn define(engine: &mut Engine, text: &[u8]) {
    Definitions::of(engine).define(File::Dynamic, text, &Files::at_once(), 0).unwrap();
}

fn restored(engine: &mut Engine, saved: &Saved) -> Vec<(String, Errno)> {
    let failed = restore(engine, saved, &mut |wanted| panic!("{wanted:?} was looked at"));
    failed.into_iter().map(|(what, error)| (what, error.errno())).collect()
}

#[test]
fn a_user_event_is_restored_by_its_whole_text_and_changes_no_other_event() {
    let (Some(mut before), Some(mut after)) = (engine(), engine()) else { return };
    define(&mut before, b"s:mine u8 x");
    for text in [
        &b"u:deletes u8 a\n-:synthetic/mine"[..],
        b"u:defines u8 a\ns:other\tu8\tx",
        b"u:names u8 a\np:x\t/root/file:0",
        b"u:comment#1 u8 a#b; u8 c",
        b"u:\tblanks\n u8 a\t\n\n",
        b"u:plain struct x y 20; char[4] z",
    ] {
        // As by the ioctl(2) requests of a client, whose text is not split.
        UserChange::of(&mut before).restore(text).unwrap();
    }
    let saved = settings(&before);
    assert_eq!(saved.definitions.len(), 7);
    assert_eq!(restored(&mut after, &saved), []);
    assert_eq!(settings(&after), saved);
    assert!(after.registry.events().has("synthetic", "mine"));
    assert!(!after.registry.events().has("synthetic", "other"));
}

#[test]
fn an_entry_is_one_definition() {
    let Some(mut engine) = engine() else { return };
    define(&mut engine, b"s:mine u8 x");
    let bad = ["-:synthetic/mine", "!s:mine", "", "# text", "x:y", "s:a u8 x\n-:synthetic/mine", " u:a u8 x"];
    let saved = Saved {
        definitions: bad.iter().chain(&["u:good u8 x"]).map(|text| (*text).to_owned()).collect(),
        programs: ["-/bin/sh", "/bin/x\n-/bin/sh", "bin"].map(str::to_owned).to_vec(),
        ..Saved::default()
    };
    let failed = restored(&mut engine, &saved);
    assert_eq!(failed.len(), bad.len() + 3, "{failed:?}");
    assert!(failed.iter().all(|(_, errno)| *errno == Errno::INVAL), "{failed:?}");
    assert_eq!(settings(&engine).definitions, ["s:synthetic/mine\tu8 x", "u:good u8 x"]);
}
