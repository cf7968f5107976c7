//! Fuzzes data that comes from programs. Records out of a ring, with any content and any type id, pass through the
//! buffers to the text of `trace` and `trace_pipe` and to the pages of `trace_pipe_raw`. Values pass to a synthetic
//! event. Packets come from the helper process that accesses clients' memory.

use tracer_user::api::wire::with_values;
use tracer_user::engine::Client;
use tracer_user::engine::client_memory::read_again;
use tracer_user::event::InstanceId;
use tracer_user::fs::{Access, Outcome, Tree};

use super::bytes::Bytes;
use super::frozen::{CPUS, tree};

/// Options that change how records are shown.
const OPTIONS: [&[u8]; 12] = [
    b"raw",
    b"hex",
    b"bin",
    b"fields",
    b"verbose",
    b"sym-offset",
    b"sym-addr",
    b"sym-userobj",
    b"latency-format",
    b"nocontext-info",
    b"noirq-info",
    b"annotate",
];

/// Definitions that make events with fields of every kind.
const DEFINITIONS: [&[u8]; 4] = [
    b"s:many u64 a; char b[16]; char c[]; unsigned long d[]; gfp_t e; pid_t f",
    b"u:user u32 a; __data_loc char[] b; __rel_loc char[] c; char[20] d; struct x e 7",
    b"e:probe sched.sched_switch a=$prev_comm:string b=$next_pid:s32 c=$prev_state:x64",
    b"s:one u8 a",
];

/// Pushes records through a tree.
pub fn run(data: &[u8]) {
    pushed(data);
}

/// The number of records that all CPUs' buffers accepted, and the number that they refused.
fn totals(tree: &mut Tree) -> (u64, u64) {
    let state = tree.engine().instances.get(InstanceId::TOP);
    let buffers = state.into_iter().flat_map(|state| state.buffer.select(None));
    buffers.map(|(_, buffer)| buffer.stats()).fold((0, 0), |(taken, refused), stats| {
        (taken + stats.entries + stats.overrun, refused + stats.dropped)
    })
}

/// Does the same as [`run`] and returns how many records the buffers accepted.
pub fn pushed(data: &[u8]) -> u64 {
    let mut input = Bytes(data);
    let mut tree = tree();
    for definition in DEFINITIONS {
        write(&mut tree, "dynamic_events", definition);
    }
    let options = input.number();
    for (_, option) in OPTIONS.iter().enumerate().filter(|(at, _)| options >> at & 1 != 0) {
        write(&mut tree, "trace_options", option);
    }
    let kinds = kinds(&mut tree);
    let (mut taken, mut refused) = (0_u64, 0_u64);
    while let Some(what) = input.byte() {
        match what % 8 {
            0 => {
                let packet = input.short();
                for message in read_again(packet).into_iter().flatten() {
                    let again = read_again(&message);
                    assert!(again.contains(&Some(message)), "a message is read as it was written");
                }
            }
            1 => {
                let values = input.short();
                let path =
                    ["events/synthetic/many/synth_event_trace", "events/synthetic/one/synth_event_trace"];
                let before = totals(&mut tree);
                write(&mut tree, path[usize::from(what >> 7)], values);
                let after = totals(&mut tree);
                // A write traces its event at most once: when the values are valid.
                assert!(after.0 - before.0 <= 1 && after.1 == before.1, "{before:?} {after:?}");
                taken += after.0 - before.0;
                let _ = with_values(values, |values| values.len());
            }
            _ => {
                let kind =
                    if what & 8 == 0 { input.choose(&kinds).unwrap_or(0) } else { input.number() as u16 };
                let (cpu, time) = (u32::from(what >> 5) % (CPUS + 1), input.number());
                let mut record = kind.to_ne_bytes().to_vec();
                record.extend(input.short());
                if what & 16 != 0 {
                    record.resize(record.len() * 40, what);
                }
                let state = tree.engine().instances.get_mut(InstanceId::TOP).expect("the top instance");
                if let Some(buffer) = state.buffer.cpu_mut(cpu) {
                    let fits = buffer.push(time, &record);
                    taken += u64::from(fits);
                    refused += u64::from(!fits);
                }
            }
        }
    }
    let stats: Vec<_> = (0..CPUS)
        .filter_map(|cpu| Some(tree.engine().instances.get(InstanceId::TOP)?.buffer.cpu(cpu)?.stats()))
        .collect();
    assert_eq!(totals(&mut tree), (taken, refused), "a record is in no count");
    let first = read(&mut tree, "trace", 700);
    assert_eq!(read(&mut tree, "trace", 70_000), first, "trace depends on how it is read");
    let _ = read(&mut tree, "per_cpu/cpu1/trace_pipe_raw", 4096);
    let _ = read(&mut tree, "trace_pipe", 333);
    for (cpu, before) in (0..CPUS).zip(stats) {
        let after = tree
            .engine()
            .instances
            .get(InstanceId::TOP)
            .and_then(|state| Some(state.buffer.cpu(cpu)?.stats()));
        let after = after.expect("the CPU stays");
        assert_eq!((after.entries, after.overrun), (0, before.overrun), "trace_pipe left something");
        assert_eq!(after.read, before.entries, "a record is in no count");
    }
    taken
}

/// Type ids of the events, read from their `id` files.
fn kinds(tree: &mut Tree) -> Vec<u16> {
    let mut kinds = Vec::new();
    for path in [
        "events/sched",
        "events/ftrace",
        "events/synthetic",
        "events/user_events",
        "events/eprobes",
        "events/kmem",
    ] {
        let Ok(dir) = tree.find(path) else { continue };
        let names: Vec<String> =
            tree.list(dir).unwrap_or_default().into_iter().map(|(_, name, _)| name).collect();
        for name in names {
            let id = read(tree, &format!("{path}/{name}/id"), 64);
            kinds.extend(std::str::from_utf8(&id).ok().and_then(|id| id.trim().parse::<u16>().ok()));
        }
    }
    kinds
}

fn write(tree: &mut Tree, path: &str, text: &[u8]) {
    let Ok(number) = tree.find(path) else { return };
    let access = Access { read: false, write: true, truncate: false, payer: 0 };
    if let Ok((handle, _)) = tree.open(number, access, std::process::id()) {
        let _ = tree.write(handle, text, Client { thread: std::process::id(), payer: 0 });
        tree.close(handle);
    }
}

fn read(tree: &mut Tree, path: &str, size: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let Ok(number) = tree.find(path) else { return text };
    let access = Access { read: true, write: false, truncate: false, payer: 0 };
    let Ok((handle, _)) = tree.open(number, access, std::process::id()) else { return text };
    while let Ok(Outcome::Data(data)) = tree.read(handle, text.len() as u64, size) {
        if data.is_empty() {
            break;
        }
        assert!(data.len() <= size, "more than was asked for");
        text.extend(data);
    }
    tree.close(handle);
    text
}
