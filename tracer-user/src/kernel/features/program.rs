//! BPF features: tries each kind of program, map and link with the smallest example and drops it.

use std::os::fd::AsFd;

use aya_obj::generated::{BPF_F_SLEEPABLE, bpf_attach_type, bpf_func_id};
use rustix::io::Errno;

use super::feature::{Feature, Group, feature};
use super::privilege::Privileges;
use crate::kernel::{Answer, Btf, Cast};
use crate::sys::bpf::feature::{
    ATTACH_KPROBE_MULTI, ATTACH_UPROBE_MULTI, Trial, attach_tracing, link_kprobe_multi_to_nothing,
    link_uprobe_multi_to_root, load,
};
use crate::sys::bpf::map::{Map, MapKind, MapSpec, flag};
use crate::sys::bpf::prog::ProgKind;

/// `return 0`: `r0 = 0; exit`.
const RETURN_0: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// A kernel function that does nothing and exists as an attach target (net/bpf/test_run.c).
const TEST_FUNCTION: &str = "bpf_fentry_test1";

/// `call HELPER; r0 = 0; exit`, with the context still in r1.
fn calling(helper: u8) -> [u8; 24] {
    let mut program = [0; 24];
    program[..8].copy_from_slice(&[0x85, 0, 0, 0, helper, 0, 0, 0]);
    program[8..].copy_from_slice(&RETURN_0);
    program
}

/// Exchanges a word on the stack if it has the expected value.
fn compare_and_exchange() -> Vec<u8> {
    // r0 = 0; *(u64 *)(r10 - 8) = 0; r1 = 0; r0 = cmpxchg_64(r10 - 8, r0, r1)
    let insns = [(0xb7, 0x00, 0, 0), (0x7a, 0x0a, -8, 0), (0xb7, 0x01, 0, 0), (0xdb, 0x1a, -8, 0xf1)];
    insns
        .into_iter()
        .flat_map(|(op, registers, offset, value)| encode(op, registers, offset, value))
        .chain(RETURN_0)
        .collect()
}

/// An instruction; the source register is in the high half of `registers`.
fn encode(op: u8, registers: u8, offset: i16, value: i32) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") { registers } else { registers.rotate_left(4) };
    let ([low, high], [a, b, c, d]) = (offset.to_ne_bytes(), value.to_ne_bytes());
    [op, registers, low, high, a, b, c, d]
}

/// Reads eight bytes at address 0 with a `bpf_probe_read_*` helper, which may fault without harm.
fn reading(helper: u8) -> Vec<u8> {
    // r1 = r10; r1 += -8; r2 = 8; r3 = 0; call
    let insns =
        [(0xbf, 0xa1, 0), (0x07, 0x01, -8), (0xb7, 0x02, 8), (0xb7, 0x03, 0), (0x85, 0, i32::from(helper))];
    insns
        .into_iter()
        .flat_map(|(op, registers, value)| encode(op, registers, 0, value))
        .chain(RETURN_0)
        .collect()
}

pub(super) fn features(privileges: &Privileges) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut push = |name, purpose, since, answer| {
        features.push(feature(Group::Bpf, name, purpose, since, answer));
    };
    let array = MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "trial",
    };
    let map = |spec: &MapSpec<'_>| match Map::create(spec) {
        Ok(_) => Answer::Yes,
        Err(error) => refusal(error, privileges),
    };
    push("bpf", "everything", "bpf(2), 3.18 (CONFIG_BPF_SYSCALL)", map(&array));
    push(
        "mmapable_array",
        "counters and switches without a system call",
        "5.5 (fc9702273e2e)",
        map(&MapSpec { flags: flag::MMAPABLE, ..array }),
    );
    let ring = MapSpec { kind: MapKind::RingBuf, key_size: 0, value_size: 0, max_entries: 4096, ..array };
    push("ring_buffer", "waking the reader", "5.8 (457f44363a88)", map(&ring));
    push(
        "map_of_maps",
        "one ring a CPU",
        "4.12 (56f668dfe00d)",
        match Map::create(&ring) {
            Ok(inner) => map(&MapSpec {
                kind: MapKind::ArrayOfMaps,
                value_size: 4,
                inner: Some(inner.as_fd()),
                ..array
            }),
            Err(_) => Answer::unknown("no ring buffer to put inside"),
        },
    );

    push(
        "atomic_operations",
        "records to user space",
        "5.12 (5ffa25502b5a); arm64 5.18",
        loads(ProgKind::Tracepoint, 0, 0, &compare_and_exchange(), privileges),
    );

    let kinds = [
        ("prog_tracepoint", ProgKind::Tracepoint, "trace events", "4.7 (98b5c2c65c29)"),
        ("prog_raw_tracepoint", ProgKind::RawTracepoint, "events from raw arguments", "4.17 (c4f6699dfcb8)"),
        ("prog_perf_event", ProgKind::PerfEvent, "sampling", "4.9 (0515e5999a46)"),
        ("prog_kprobe", ProgKind::Kprobe, "kprobes and uprobes", "4.1 (2541517c32be)"),
        ("prog_syscall", ProgKind::Syscall, "records that come from user space", "5.14 (79a7f8bdb159)"),
    ];
    for (name, kind, purpose, since) in kinds {
        let flags = if kind == ProgKind::Syscall { BPF_F_SLEEPABLE } else { 0 };
        push(name, purpose, since, loads(kind, 0, flags, &RETURN_0, privileges));
    }
    let helpers = [
        (
            "read_kernel_memory",
            bpf_func_id::BPF_FUNC_probe_read_kernel as u8,
            "memory at pointers in events",
            "5.5 (6ae08ae3dea2); lockdown forbids it",
        ),
        (
            "read_user_memory",
            bpf_func_id::BPF_FUNC_probe_read_user as u8,
            "string arguments of system calls",
            "5.5 (6ae08ae3dea2)",
        ),
    ];
    for (name, helper, purpose, since) in helpers {
        push(name, purpose, since, loads(ProgKind::Tracepoint, 0, 0, &reading(helper), privileges));
    }
    push(
        "direct_reads",
        "kernel memory without a helper's call",
        "bpf_rdonly_cast, 6.2 (a35b9af4ec2c)",
        direct_reads(privileges),
    );
    let (fentry, attach) = tracing(privileges);
    push("prog_tracing", "fentry, fexit, typed raw tracepoints", "5.5 (f1b9509c2fb0)", fentry);
    push(
        "fentry_attach",
        "function entry and return at the least cost",
        "5.5 (fec56f5890d9); arm64 6.0",
        attach,
    );

    let get_attach_cookie = bpf_func_id::BPF_FUNC_get_attach_cookie as u8;
    push(
        "cookie_tracepoint",
        "one program for all events of a class",
        "5.15 (7adfc6c9b315)",
        loads(ProgKind::Tracepoint, 0, 0, &calling(get_attach_cookie), privileges),
    );
    push(
        "cookie_raw_tracepoint",
        "the same at raw tracepoints",
        "6.10 (68ca5d4eebb8)",
        loads(ProgKind::RawTracepoint, 0, 0, &calling(get_attach_cookie), privileges),
    );
    push(
        "kprobe_multi",
        "many functions at once",
        "5.18 (0dcac2725406), CONFIG_FPROBE",
        multi(ATTACH_KPROBE_MULTI, privileges),
    );
    push(
        "uprobe_multi",
        "many user functions at once",
        "6.6 (89ae89f53d20), CONFIG_UPROBE_EVENTS",
        multi(ATTACH_UPROBE_MULTI, privileges),
    );
    features
}

fn loads(kind: ProgKind, attach_type: u32, flags: u32, insns: &[u8], privileges: &Privileges) -> Answer {
    match load(&Trial { kind: kind as u32, attach_type, attach_btf_id: 0, flags, insns }) {
        Ok(_) => Answer::Yes,
        Err(error) => refusal(error, privileges),
    }
}

/// Whether programs may load kernel memory through `bpf_rdonly_cast`.
fn direct_reads(privileges: &Privileges) -> Answer {
    let btf = match Btf::running() {
        Ok(Some(btf)) => btf,
        Ok(None) => return Answer::no("needs BTF, and this kernel shows none"),
        Err(error) => return Answer::unknown(error.to_string()),
    };
    let cast = match Cast::find(&btf) {
        Ok(Some(cast)) => cast,
        Ok(None) => return Answer::no("this kernel's BTF has no bpf_rdonly_cast"),
        Err(error) => return Answer::unknown(error.to_string()),
    };
    for kind in [ProgKind::RawTracepoint, ProgKind::Tracepoint] {
        if let Err(error) = cast.try_in(kind) {
            return refusal(error, privileges);
        }
    }
    Answer::Yes
}

/// Whether tracing programs load, and whether one attaches to a function that does nothing.
fn tracing(privileges: &Privileges) -> (Answer, Answer) {
    let skipped = || Answer::unknown("no program to attach");
    let id = match Btf::running() {
        Ok(Some(btf)) => btf.function_id(TEST_FUNCTION),
        Ok(None) => return (Answer::no("needs BTF, and this kernel shows none"), skipped()),
        Err(error) => return (Answer::unknown(error.to_string()), skipped()),
    };
    let id = match id {
        Ok(Some(id)) => id,
        Ok(None) => return (Answer::unknown(format!("no {TEST_FUNCTION} to try it on")), skipped()),
        Err(error) => return (Answer::unknown(error.to_string()), skipped()),
    };
    let trial = Trial {
        kind: ProgKind::Tracing as u32,
        attach_type: bpf_attach_type::BPF_TRACE_FENTRY as u32,
        attach_btf_id: id,
        flags: 0,
        insns: &RETURN_0,
    };
    match load(&trial) {
        Ok(prog) => match attach_tracing(prog.as_fd()) {
            Ok(_) => (Answer::Yes, Answer::Yes),
            Err(error) => (Answer::Yes, Answer::no(format!("programs load and do not attach: {error}"))),
        },
        Err(error) => (refusal(error, privileges), skipped()),
    }
}

/// Whether the kernel has links of this kind, by the error of a link that cannot be created.
fn multi(attach_type: u32, privileges: &Privileges) -> Answer {
    let kind = ProgKind::Kprobe as u32;
    let trial = Trial { kind, attach_type, attach_btf_id: 0, flags: 0, insns: &RETURN_0 };
    let prog = match load(&trial) {
        Ok(prog) => prog,
        Err(error) => return refusal(error, privileges),
    };
    let (result, there) = if attach_type == ATTACH_KPROBE_MULTI {
        (link_kprobe_multi_to_nothing(prog.as_fd()), Errno::INVAL)
    } else {
        (link_uprobe_multi_to_root(prog.as_fd()), Errno::BADF)
    };
    match result {
        Ok(_) => Answer::unknown("a link was made that cannot be"),
        Err(error) if error == there => Answer::Yes,
        Err(Errno::OPNOTSUPP) => Answer::no("not built"),
        Err(Errno::INVAL) => Answer::no("this kernel is older"),
        Err(error) => refusal(error, privileges),
    }
}

/// The meaning of an error number from loading a program or creating a map.
fn refusal(error: Errno, privileges: &Privileges) -> Answer {
    match error {
        Errno::NOSYS => Answer::no("bpf(2) is not built (CONFIG_BPF_SYSCALL)"),
        Errno::INVAL => Answer::no("this kernel lacks it"),
        Errno::PERM | Errno::ACCESS => Answer::no(privileges.refused()),
        // EBADF, EMFILE, ENOMEM and the like give no information about the feature.
        other => Answer::unknown(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_answers() {
        let privileges = Privileges::read();
        assert!(matches!(refusal(Errno::INVAL, &privileges), Answer::No(_)));
        assert!(matches!(refusal(Errno::NOMEM, &privileges), Answer::Unknown(_)));
        let Answer::No(why) = refusal(Errno::PERM, &privileges) else { panic!("a refusal is a no") };
        assert!(why.starts_with("refused"), "{why}");
    }
}
