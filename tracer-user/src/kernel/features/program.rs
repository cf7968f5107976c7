//! BPF features: tries each kind of program, map and link with the smallest example and drops it.

use std::os::fd::AsFd;

use aya_obj::generated::bpf_func_id;
use rustix::io::Errno;

use super::feature::{Feature, Group, feature};
use super::privilege::Privileges;
use crate::kernel::{Answer, Btf, Cast, Error, PreemptGuard};
use crate::sys::bpf::map::{Map, MapKind, MapSpec, flag};
use crate::sys::bpf::prog::{Prog, ProgKind, Purpose, insn};

/// A kernel function that does nothing and exists as an attach target (net/bpf/test_run.c).
const TEST_FUNCTION: &str = "bpf_fentry_test1";

/// A program with these instructions that returns 0.
fn returning_0(insns: &[[u8; 8]]) -> Vec<u8> {
    [insns, &[insn(0xb7, 0, 0, 0, 0), insn(0x95, 0, 0, 0, 0)]].concat().concat()
}

/// Calls a helper, with the context still in r1.
fn calling(helper: bpf_func_id) -> Vec<u8> {
    returning_0(&[insn(0x85, 0, 0, 0, helper as i32)])
}

/// Exchanges a word on the stack if it has the expected value.
fn compare_and_exchange() -> Vec<u8> {
    returning_0(&[
        insn(0xb7, 0, 0, 0, 0),      // r0 = 0
        insn(0x7a, 10, 0, -8, 0),    // *(u64 *)(r10 - 8) = 0
        insn(0xb7, 1, 0, 0, 0),      // r1 = 0
        insn(0xdb, 10, 1, -8, 0xf1), // r0 = cmpxchg_64(r10 - 8, r0, r1)
    ])
}

/// Reads eight bytes at address 0 with a `bpf_probe_read_*` helper, which may fault without harm.
fn reading(helper: bpf_func_id) -> Vec<u8> {
    returning_0(&[
        insn(0xbf, 1, 10, 0, 0),            // r1 = r10
        insn(0x07, 1, 0, 0, -8),            // r1 += -8
        insn(0xb7, 2, 0, 0, 8),             // r2 = 8
        insn(0xb7, 3, 0, 0, 0),             // r3 = 0
        insn(0x85, 0, 0, 0, helper as i32), // call
    ])
}

pub(super) fn features(privileges: &Privileges) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut push = |name, purpose, since, answer| {
        features.push(feature(Group::Bpf, name, purpose, since, answer, None));
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
    let map = |spec: &MapSpec<'_>| answer(Map::create(spec).map_err(|errno| refusal(errno, privileges)));
    let loads = |kind, insns: &[u8]| answer(load(kind, Purpose::Any, insns, privileges));
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
        loads(ProgKind::Tracepoint, &compare_and_exchange()),
    );

    let kinds = [
        ("prog_tracepoint", ProgKind::Tracepoint, "trace events", "4.7 (98b5c2c65c29)"),
        ("prog_raw_tracepoint", ProgKind::RawTracepoint, "events from raw arguments", "4.17 (c4f6699dfcb8)"),
        ("prog_perf_event", ProgKind::PerfEvent, "sampling", "4.9 (0515e5999a46)"),
        ("prog_kprobe", ProgKind::Kprobe, "kprobes and uprobes", "4.1 (2541517c32be)"),
        ("prog_syscall", ProgKind::Syscall, "records that come from user space", "5.14 (79a7f8bdb159)"),
    ];
    for (name, kind, purpose, since) in kinds {
        push(name, purpose, since, loads(kind, &returning_0(&[])));
    }
    push(
        "read_kernel_memory",
        "memory at pointers in events",
        "5.5 (6ae08ae3dea2); lockdown forbids it",
        loads(ProgKind::Tracepoint, &reading(bpf_func_id::BPF_FUNC_probe_read_kernel)),
    );
    push(
        "read_user_memory",
        "string arguments of system calls",
        "5.5 (6ae08ae3dea2)",
        loads(ProgKind::Tracepoint, &reading(bpf_func_id::BPF_FUNC_probe_read_user)),
    );
    push(
        "direct_reads",
        "kernel memory without a helper's call",
        "bpf_rdonly_cast, 6.2 (a35b9af4ec2c)",
        answer(direct_reads(privileges)),
    );
    push(
        "preempt_guard",
        "hits that no other thread interrupts",
        "bpf_preempt_disable, 6.10 (fc7566ad0a82), and bpf_local_irq_save, 6.14",
        answer(preempt_guard(privileges)),
    );
    push(
        "sleepable_calls",
        "user memory of system calls that is not in memory",
        "sleepable programs at raw tracepoints, 7.2",
        answer(sleepable_calls(privileges)),
    );
    let (fentry, attach) = match tracing(privileges) {
        Ok(program) => match program.attach_function() {
            Ok(_) => (Answer::Yes, Answer::Yes),
            Err(error) => (Answer::Yes, Answer::no(format!("programs load and do not attach: {error}"))),
        },
        Err(why) => (why, Answer::unknown("no program to attach")),
    };
    push("prog_tracing", "fentry, fexit, typed raw tracepoints", "5.5 (f1b9509c2fb0)", fentry);
    push(
        "fentry_attach",
        "function entry and return at the least cost",
        "5.5 (fec56f5890d9); arm64 6.0",
        attach,
    );

    let with_cookie = calling(bpf_func_id::BPF_FUNC_get_attach_cookie);
    push(
        "cookie_tracepoint",
        "one program for all events of a class",
        "5.15 (7adfc6c9b315)",
        loads(ProgKind::Tracepoint, &with_cookie),
    );
    push(
        "cookie_raw_tracepoint",
        "the same at raw tracepoints",
        "6.10 (68ca5d4eebb8)",
        loads(ProgKind::RawTracepoint, &with_cookie),
    );
    push(
        "kprobe_multi",
        "many functions at once",
        "5.18 (0dcac2725406), CONFIG_FPROBE",
        multi(Purpose::Multi, privileges),
    );
    push(
        "uprobe_multi",
        "many user functions at once",
        "6.6 (89ae89f53d20), CONFIG_UPROBE_EVENTS",
        multi(Purpose::FileMulti, privileges),
    );
    push(
        "fexit_multi",
        "returns of many functions at once, with their arguments",
        "fexit.multi, 7.2",
        multi(Purpose::Exits, privileges),
    );
    features
}

fn answer<T>(result: Result<T, Answer>) -> Answer {
    result.err().unwrap_or(Answer::Yes)
}

fn unknown(error: &Error) -> Answer {
    Answer::unknown(error.to_string())
}

fn load(kind: ProgKind, purpose: Purpose<'_>, insns: &[u8], privileges: &Privileges) -> Result<Prog, Answer> {
    Prog::load_for(kind, purpose, insns, "trial").map_err(|error| refusal(error.errno, privileges))
}

fn types() -> Result<Btf, Answer> {
    Btf::running()
        .map_err(|error| unknown(&error))?
        .ok_or_else(|| Answer::no("this kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)"))
}

/// Whether programs may load kernel memory through `bpf_rdonly_cast`.
fn direct_reads(privileges: &Privileges) -> Result<(), Answer> {
    let cast = Cast::find(&types()?).map_err(|error| unknown(&error))?;
    let cast = cast.ok_or_else(|| Answer::no("this kernel's BTF has no bpf_rdonly_cast"))?;
    [ProgKind::RawTracepoint, ProgKind::Tracepoint]
        .into_iter()
        .try_for_each(|kind| cast.try_in(kind).map_err(|errno| refusal(errno, privileges)))
}

/// Whether programs at the raw tracepoints of system calls may sleep.
fn sleepable_calls(privileges: &Privileges) -> Result<(), Answer> {
    let program = Prog::load_sleepable(ProgKind::RawTracepoint, Purpose::Any, &returning_0(&[]), "trial");
    program.map(drop).map_err(|error| refusal(error.errno, privileges))
}

/// Whether programs may disable preemption.
fn preempt_guard(privileges: &Privileges) -> Result<(), Answer> {
    let guard = PreemptGuard::find(&types()?).map_err(|error| unknown(&error))?;
    let guard = guard.ok_or_else(|| Answer::no("this kernel's BTF has no bpf_preempt_disable"))?;
    guard.accepted().map(drop).map_err(|errno| refusal(errno, privileges))
}

/// A tracing program for a function that does nothing.
fn tracing(privileges: &Privileges) -> Result<Prog, Answer> {
    let id = types()?.function_id(TEST_FUNCTION).map_err(|error| unknown(&error))?;
    let id = id.ok_or_else(|| Answer::unknown(format!("no {TEST_FUNCTION} to try it on")))?;
    load(
        ProgKind::Tracing,
        Purpose::Function { id, module: None, exit: false },
        &returning_0(&[]),
        privileges,
    )
}

/// Whether the kernel has links of this kind, by the error of a link that cannot be created.
fn multi(purpose: Purpose<'_>, privileges: &Privileges) -> Answer {
    let kind = if matches!(purpose, Purpose::Exits) { ProgKind::Tracing } else { ProgKind::Kprobe };
    let program = match load(kind, purpose, &returning_0(&[]), privileges) {
        Ok(program) => program,
        Err(why) => return why,
    };
    let (result, there) = match purpose {
        Purpose::Multi => (program.link_functions(&[], &[], false), Errno::INVAL),
        Purpose::Exits => (program.link_exits(&[], &[]), Errno::INVAL),
        Purpose::FileMulti | Purpose::Any | Purpose::Function { .. } => {
            (program.link_file(c"/", 0, 0, false, 0), Errno::BADF)
        }
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
        Errno::PERM | Errno::ACCESS => Answer::no(privileges.refuser().reason()),
        // EBADF, EMFILE, ENOMEM and the like give no information about the feature.
        other => Answer::unknown(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::surroundings::Surroundings;
    use super::*;

    #[test]
    fn errors_become_answers() {
        let privileges = Privileges::read(&Surroundings::default());
        assert!(matches!(refusal(Errno::INVAL, &privileges), Answer::No(_)));
        assert!(matches!(refusal(Errno::NOMEM, &privileges), Answer::Unknown(_)));
        let Answer::No(why) = refusal(Errno::PERM, &privileges) else { panic!("a refusal is a no") };
        assert!(why.starts_with("refused"), "{why}");
    }
}
