//! Tables as the kernel shows them.

use super::*;
use crate::lang::hist::{Fixed, Set, World};

fn set(command: &str) -> Set {
    let world = Fixed::small();
    let mut set = Set::default();
    let event = world.event("test", "start").unwrap();
    set.apply(&event, Some(command.as_bytes()), false, &world).unwrap();
    set
}

fn bytes(words: &[u64], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.resize(size, 0);
    bytes
}

fn shown(command: &str, rows: &[(&[u64], &[u64])]) -> String {
    let set = set(command);
    let trigger = set.triggers().next().unwrap();
    let layout = Layout::of(&trigger.hist);
    let rows: Vec<_> =
        rows.iter().map(|(key, entry)| (bytes(key, layout.key_size), bytes(entry, layout.size))).collect();
    let hits = rows.iter().map(|(_, entry)| Layout::sum(entry, 0)).sum();
    let table = Table { rows, hits, drops: 0, snapshot: None };
    let mut out = Vec::new();
    show(&mut out, trigger, &table, 0, &());
    let text = String::from_utf8(out).unwrap();
    text.split_once("#\n\n").unwrap().1.to_owned()
}

#[test]
fn rows_come_in_their_order() {
    assert_eq!(
        shown(
            "keys=pid:vals=bytes:sort=bytes.descending,pid",
            &[(&[3], &[1, 10]), (&[2], &[2, 20]), (&[1], &[3, 10]),]
        ),
        "{ pid:          2 } hitcount:          2  bytes:         20\n\
         { pid:          1 } hitcount:          3  bytes:         10\n\
         { pid:          3 } hitcount:          1  bytes:         10\n\
         \nTotals:\n    Hits: 6\n    Entries: 3\n    Dropped: 0\n"
    );
    let negative = shown("keys=pid:sort=pid", &[(&[1], &[1]), (&[u64::MAX], &[1])]);
    assert!(negative.starts_with("{ pid: 18446744073709551615 } hitcount:          1\n{ pid:          1 }"));
}

#[test]
fn modifiers() {
    for (command, key, row) in [
        ("keys=pid.hex", 255, "{ pid: ff } hitcount:          1"),
        ("keys=pid.log2", 10, "{ pid: ~ 2^10 } hitcount:          1"),
        ("keys=pid.log2", 3, "{ pid: ~ 2^3  } hitcount:          1"),
        ("keys=bytes.buckets=100", 200, "{ bytes: ~ 200-299 } hitcount:          1"),
        ("keys=common_pid.execname", 7, "{ common_pid:                 [         7] } hitcount:          1"),
        ("keys=pid.syscall", 7, "{ pid: unknown_syscall               [  7] } hitcount:          1"),
        ("keys=common_cpu", 1, "{ common_cpu:          1 } hitcount:          1"),
    ] {
        assert_eq!(shown(command, &[(&[key], &[1])]).lines().next(), Some(row), "{command}");
    }
    let stack = shown("keys=stacktrace", &[(&[16, 32], &[1])]);
    assert!(
        stack.starts_with("{ common_stacktrace:\n         0x10\n         0x20\n} hitcount:          1\n"),
        "{stack}"
    );
}

#[test]
fn json() {
    let set = set("keys=pid,bytes.log2,comm:vals=bytes");
    let trigger = set.triggers().next().unwrap();
    let mut key = bytes(&[7, 10], Layout::of(&trigger.hist).key_size);
    key[16..20].copy_from_slice(b"ba\"h");
    let table = Table { rows: vec![(key, bytes(&[3, 40], 16))], hits: 3, drops: 1, snapshot: None };
    let shown = json::object(trigger, &table, &());
    assert_eq!(shown["rows"][0]["key"], serde_json::json!({ "pid": 7, "bytes": "~ 2^10", "comm": "ba\"h" }));
    assert_eq!(
        (&shown["rows"][0]["hitcount"], &shown["rows"][0]["values"]["bytes"]),
        (&3.into(), &40.into())
    );
    assert_eq!((&shown["hits"], &shown["entries"], &shown["dropped"]), (&3.into(), &1.into(), &1.into()));
    assert_eq!(shown["event"], "test:start");
}

#[test]
fn values_saved_by_actions() {
    let command = "keys=pid:x=bytes:onmax($x).save(prio,bytes)";
    assert_eq!(
        shown(command, &[(&[1], &[2, 5, 9, 3, 4, 15])]).lines().take(2).collect::<Vec<_>>(),
        [
            "{ pid:          1 } hitcount:          2",
            "\tmax:          9  prio:          3  bytes:          4"
        ]
    );
}

#[test]
fn shares() {
    assert_eq!(percentage(1, 3), Some(3333));
    assert_eq!(percentage(1, 0), None);
    assert_eq!(percentage(0, 0), Some(0));
    assert_eq!(percentage(u64::MAX, u64::MAX), Some(10_000));
    assert_eq!(bar(5, 10), format!("{:20}", "##########"));
    assert_eq!(bar(1, 0), "[ERROR]");
}
