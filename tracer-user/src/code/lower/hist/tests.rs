//! Generated code, and histograms that are not supported.

use super::*;
use crate::code::listing;
use crate::lang::hist::{Fixed, Set, World};

fn made(command: &str) -> (Hist, References) {
    let world = Fixed::small();
    let mut set = Set::default();
    let event = world.event("test", "start").unwrap();
    set.apply(&event, Some(command.as_bytes()), false, &world).unwrap();
    let trigger = set.triggers().next().unwrap();
    (Hist::clone(&trigger.hist), References::of(&trigger.hist, &set).unwrap())
}

fn program(command: &str) -> Program {
    let (made, references) = made(command);
    assert_eq!(unsupported(&made), None, "{command}");
    let (context, references) = (ProgramContext::Tracepoint, &references);
    let request = Request {
        hist: &made,
        references,
        filter: None,
        context: &context,
        kind: 7,
        but_process: None,
        but_compat: None,
        entry: Entry::ProgramContext,
        cpus: 4,
        within: None,
        emits: &[],
    };
    hist(&request).unwrap()
}

#[test]
fn keys_find_their_place() {
    assert!(!program("keys=pid:vals=bytes").scratch);
    assert!(program("keys=name").scratch);
    let text = listing::functions(&program("keys=pid,common_cpu:vals=bytes/3").functions);
    for line in ["; key pid", "; key common_cpu", "; value bytes/3", "; entry", "; full"] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn unsupported_values_have_a_reason() {
    assert!(unsupported(&made("keys=pid:x=bytes,y=name").0).is_none());
    assert!(unsupported(&made("keys=pid:x=bytes:onmax($x).save(prio)").0).is_none());
    assert!(unsupported(&made("keys=pid:vals=name").0).is_none());
    assert!(unsupported(&made("keys=pid:vals=common_comm").0).is_some());
}
