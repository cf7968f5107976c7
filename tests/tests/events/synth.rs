//! Synthetic events of the mirror: their files, and their records, emitted from user space and by programs in the
//! kernel.

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use tracer_tests::tree::{APPEND, TRUNCATE, read, tree, write};
use tracer_user::attach::Block;
use tracer_user::code::asm::{Alu, Assembler, Cond, Helper, Insn, PSEUDO_MAP_VALUE, Reg, Width};
use tracer_user::code::join;
use tracer_user::engine::{self, CommandError, records::Writer};
use tracer_user::event::synthetic::Value;
use tracer_user::fs::Tree;
use tracer_user::kernel;
use tracer_user::sys::bpf::map::{Map, MapKind, MapSpec};
use tracer_user::sys::bpf::prog::{Prog, ProgKind};

fn set(tree: &mut Tree, path: &str, text: &str) {
    write(tree, path, text, APPEND).unwrap_or_else(|error| panic!("{text:?} to {path}: {error}"));
}

/// The lines of `trace` after the event's name and its colon.
fn records(tree: &mut Tree, path: &str, event: &str) -> Vec<String> {
    let text = read(tree, path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(&format!(": {event}: "))?.1.to_owned())).collect()
}

#[test]
fn files_define_show_and_delete() {
    let Some(mut tree) = tree() else { return };
    assert_eq!(read(&mut tree, "synthetic_events").unwrap(), "");
    set(&mut tree, "synthetic_events", "wake u64 lat; pid_t pid; char comm[16]\n");
    set(&mut tree, "dynamic_events", "t:probes/switch sched_switch\n");
    set(&mut tree, "dynamic_events", "s:synthetic/other char[] name; unsigned long[] stack\n");
    assert_eq!(
        read(&mut tree, "synthetic_events").unwrap(),
        "wake\tu64 lat; pid_t pid; char[16] comm\nother\tchar[] name; unsigned long[] stack\n"
    );
    let all = read(&mut tree, "dynamic_events").unwrap();
    let heads: Vec<_> = all.lines().map(|line| line.split(['\t', ' ']).next().unwrap()).collect();
    assert_eq!(heads, ["s:synthetic/wake", "t:probes/switch", "s:synthetic/other"]);
    let format = read(&mut tree, "events/synthetic/wake/format").unwrap();
    // Kernels before 7.2 separate the fields by commas too.
    let between = if kernel::version() < (7, 2) { ", " } else { " " };
    let fields = format!(
        "\tfield:u64 lat;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:pid_t pid;\toffset:16;\tsize:4;\tsigned:1;\n\
         \tfield:char comm[];\toffset:24;\tsize:16;\tsigned:1;\n\n\
         print fmt: \"lat=%llu{between}pid=%d{between}comm=%s\", REC->lat, REC->pid, REC->comm\n"
    );
    assert!(format.starts_with("name: wake\n") && format.ends_with(&fields), "{format}");
    assert_eq!(write(&mut tree, "synthetic_events", "wake u64 x\n", APPEND), Err(Errno::EXIST));
    let log = read(&mut tree, "error_log").unwrap();
    assert!(
        log.ends_with("synthetic_events: error: Event already exists\n  Command: wake u64 x\n           ^\n"),
        "{log}"
    );
    assert_eq!(write(&mut tree, "synthetic_events", "!nobody\n", APPEND), Err(Errno::NOENT));
    assert!(read(&mut tree, "available_events").unwrap().contains("synthetic:wake\n"));

    // An enabled event cannot be deleted. Opening the file with `O_TRUNC` removes the events before it.
    set(&mut tree, "events/synthetic/other/enable", "1");
    for line in ["!other\n", "!other char[] name; unsigned long[] stack\n"] {
        assert_eq!(write(&mut tree, "synthetic_events", line, APPEND), Err(Errno::BUSY));
    }
    assert_eq!(write(&mut tree, "dynamic_events", "-:synthetic/other\n", APPEND), Err(Errno::BUSY));
    assert_eq!(write(&mut tree, "synthetic_events", "", TRUNCATE), Err(Errno::BUSY));
    assert_eq!(read(&mut tree, "synthetic_events").unwrap(), "other\tchar[] name; unsigned long[] stack\n");
    assert_eq!(tree.find("events/synthetic/wake"), Err(Errno::NOENT));
    set(&mut tree, "events/synthetic/other/enable", "0");
    set(&mut tree, "dynamic_events", "-:other\n");
    assert_eq!(write(&mut tree, "dynamic_events", "-:other\n", APPEND), Err(Errno::NOENT));
    set(&mut tree, "synthetic_events", "a u8 x\nb u8 x\n");
    assert_eq!(write(&mut tree, "dynamic_events", "-:group/a\n", APPEND), Err(Errno::NOENT));
    set(&mut tree, "synthetic_events", "!a\n");
    assert_eq!(write(&mut tree, "dynamic_events", "", TRUNCATE), Ok(0));
    assert_eq!(read(&mut tree, "dynamic_events").unwrap(), "");
    assert_eq!(tree.find("events/synthetic"), Err(Errno::NOENT));
}

fn writer() -> Writer {
    Writer { cpu: 0, ..Writer::of(std::process::id()) }
}

#[test]
fn records_of_user_space_pass_filter_and_triggers() {
    let Some(mut tree) = tree() else { return };
    set(
        &mut tree,
        "synthetic_events",
        "e s32 n; char fixed[8]; char[] text; unsigned long[] stack; gfp_t flags\n",
    );
    let instances = tree.find("instances").unwrap();
    tree.make_dir(instances, "a").unwrap();
    set(&mut tree, "instances/a/events/synthetic/e/enable", "1");
    set(&mut tree, "instances/a/events/synthetic/e/filter", "n < 2 && text == \"yes\" && fixed ~ \"f*\"");
    set(&mut tree, "events/synthetic/e/trigger", "traceoff:1 if n == 3");
    set(&mut tree, "events/synthetic/enable", "1");
    let emit = |tree: &mut Tree, n: i64, text: &[u8]| {
        let values = [
            Value::Number(n.cast_unsigned()),
            Value::Text(b"fixed"),
            Value::Text(text),
            Value::Stack(&[0x10]),
            Value::Number(0),
        ];
        engine::emit(tree.engine(), "e", &values, writer())
    };
    for n in -1..5 {
        emit(&mut tree, n, if n == 0 { b"no" } else { b"yes" }).unwrap();
    }
    let head = |n: i32, text: &str| format!("n={n} fixed=fixed text={text} stack=STACK:");
    assert_eq!(records(&mut tree, "instances/a/trace", "e"), [head(-1, "yes"), head(1, "yes")]);
    // The record that turns recording off is itself recorded; later ones are not.
    let top = [(-1, "yes"), (0, "no"), (1, "yes"), (2, "yes"), (3, "yes")].map(|(n, text)| head(n, text));
    assert_eq!(records(&mut tree, "trace", "e"), top);
    assert!(read(&mut tree, "trace").unwrap().contains("stack=STACK:\n=> 0x10\nflags=0 ()\n"));
    let refused = |done: Result<(), CommandError>| done.unwrap_err().errno();
    assert_eq!(refused(engine::emit(tree.engine(), "e", &[Value::Number(0)], writer())), Errno::INVAL);
    assert_eq!(refused(engine::emit(tree.engine(), "f", &[], writer())), Errno::NOENT);
}

#[cfg(target_arch = "x86_64")]
const KILL: i32 = 62;
#[cfg(target_arch = "aarch64")]
const KILL: i32 = 129;

/// Layout of the map of the program below: four values, then the data that they point to.
const WORDS: usize = 4;
const TEXT: i32 = 64;
const STACK: i32 = 128;

/// A program that emits at each kill(2) of a process: a count, two texts, and a stack.
fn emitter(process: u32, emission: &Block) -> (Prog, Map) {
    let values = Map::create(&MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: 256,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "emitter",
    })
    .unwrap();
    let mut bytes = vec![0; 256];
    bytes[TEXT as usize..][..5].copy_from_slice(b"hello");
    for (at, word) in [2_u64, 0x11, 0x22].into_iter().enumerate() {
        bytes[STACK as usize + 8 * at..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    values.update(&[0; 4], &bytes).unwrap();
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.call(Helper::GetCurrentPidTgid);
    asm.alu(Alu::Rsh, Reg::R0, 32);
    asm.jump_if(Cond::Ne, Reg::R0, process.cast_signed(), out);
    asm.load(Width::D, Reg::R1, Reg::R6, 8);
    asm.jump_if(Cond::Ne, Reg::R1, KILL, out);
    let [mut first, second] = Insn::imm64(Reg::R1, 0);
    (first.src, first.imm) = (PSEUDO_MAP_VALUE, values.as_fd().as_raw_fd());
    asm.push_wide(first, second);
    asm.load(Width::D, Reg::R2, Reg::R1, 0);
    asm.alu(Alu::Add, Reg::R2, 1);
    asm.store(Width::D, Reg::R1, 0, Reg::R2);
    for (word, place) in [(1, TEXT), (2, TEXT), (3, STACK)] {
        asm.address(Reg::R2, Reg::R1, place);
        asm.store(Width::D, Reg::R1, 8 * word, Reg::R2);
    }
    asm.mov(Reg::R2, Reg::R6);
    asm.call_function("emission");
    asm.bind(out);
    asm.mov(Reg::R0, 0);
    asm.exit();
    let insns = join::join(&[asm.finish("main")], &[("emission", emission.insns())]);
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    let program = Prog::load(ProgKind::RawTracepoint, &bytes, "emitter")
        .unwrap_or_else(|error| panic!("{}: {}", error.errno, error.log));
    assert_eq!(WORDS, 4);
    (program, values)
}

/// A process that calls kill(2) this many times after it is released.
struct Child(std::process::Child);

impl Child {
    fn start(calls: u32) -> Self {
        let script = format!("read go; n=0; while [ $n -lt {calls} ]; do kill -0 $$; n=$((n + 1)); done");
        Self(Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn run(mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn programs_emit_in_the_kernel() {
    let Some(mut tree) = tree() else { return };
    set(&mut tree, "synthetic_events", "e u16 n; char fixed[16]; char[] text; unsigned long[] stack\n");
    assert!(engine::emission(tree.engine(), "e").unwrap().is_none());
    let instances = tree.find("instances").unwrap();
    tree.make_dir(instances, "a").unwrap();
    set(&mut tree, "events/synthetic/e/enable", "1");
    set(&mut tree, "events/synthetic/e/trigger", "stacktrace:1 if n == 2");
    set(&mut tree, "instances/a/events/synthetic/e/enable", "1");
    let child = Child::start(6);
    set(
        &mut tree,
        "instances/a/events/synthetic/e/filter",
        "n > 2 && n != 5 && text == \"hello\" && comm == \"sh\"",
    );
    let emission = engine::emission(tree.engine(), "e").unwrap().expect("the event is on");
    let (program, _values) = emitter(child.id(), &emission);
    drop(emission);
    let link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let process = child.id();
    child.run();
    drop(link);
    let head = |n: u32| format!("n={n} fixed=hello text=hello stack=STACK:");
    assert_eq!(records(&mut tree, "trace", "e"), (1..=6).map(head).collect::<Vec<_>>());
    assert_eq!(records(&mut tree, "instances/a/trace", "e"), [3, 4, 6].map(head));
    let text = read(&mut tree, "trace").unwrap();
    assert_eq!(text.matches("=> 0x11\n=> 0x22\n").count(), 6, "{text}");
    assert_eq!(text.matches("<stack trace>").count(), 1, "{text}");
    let pid = format!("sh-{process}");
    assert_eq!(
        text.lines().filter(|line| line.trim_start().starts_with(&pid) && line.contains(": e: ")).count(),
        6
    );
}

#[test]
fn event_probes_attach_to_synthetic_events() {
    let Some(mut tree) = tree() else { return };
    set(&mut tree, "synthetic_events", "e u16 n; char fixed[16]; char[] text; unsigned long[] stack\n");
    set(&mut tree, "dynamic_events", "e:probes/one synthetic.e n=$n:u8 text=$text:string if n != 3\n");
    // An event probe cannot be attached to another event probe.
    let on_another = "e:probes/three probes.one twice=$n:u64\n";
    assert_eq!(write(&mut tree, "dynamic_events", on_another, APPEND), Err(Errno::NODEV));
    set(&mut tree, "dynamic_events", "e:probes/two synthetic.e twice=$n:u64 fixed=$text:string if n > 3\n");
    assert_eq!(write(&mut tree, "dynamic_events", "-:synthetic/e\n", APPEND), Err(Errno::BUSY));
    let instances = tree.find("instances").unwrap();
    tree.make_dir(instances, "a").unwrap();
    set(&mut tree, "events/probes/one/enable", "1");
    set(&mut tree, "instances/a/events/probes/two/enable", "1");
    set(&mut tree, "events/probes/one/filter", "n < 5");
    let child = Child::start(6);
    let emission = engine::emission(tree.engine(), "e").unwrap().expect("it is followed");
    let (program, _values) = emitter(child.id(), &emission);
    let link = program.attach_raw_tracepoint("sys_enter").unwrap();
    child.run();
    drop(link);
    assert_eq!(
        records(&mut tree, "trace", "one"),
        [1, 2, 4].map(|n| format!("(synthetic.e) n={n} text=\"hello\""))
    );
    assert_eq!(
        records(&mut tree, "instances/a/trace", "two"),
        [4, 5, 6].map(|n| format!("(synthetic.e) twice={n} fixed=\"hello\""))
    );
    let values = [Value::Number(2), Value::Text(b""), Value::Text(b"yes"), Value::Stack(&[])];
    engine::emit(tree.engine(), "e", &values, writer()).unwrap();
    assert_eq!(records(&mut tree, "trace", "one").last().unwrap(), "(synthetic.e) n=2 text=\"yes\"");
    set(&mut tree, "events/probes/one/enable", "0");
    set(&mut tree, "instances/a/events/probes/two/enable", "0");
    assert!(engine::emission(tree.engine(), "e").unwrap().is_none());
    set(&mut tree, "dynamic_events", "-:probes/two\n");
    set(&mut tree, "dynamic_events", "-:probes/one\n");
    set(&mut tree, "synthetic_events", "!e\n");
}

#[test]
fn event_probes_attach_to_dynamic_events() {
    let Some(mut tree) = tree() else { return };
    set(&mut tree, "dynamic_events", "t:probes/switch sched_process_exec pid=old_pid:u32\n");
    set(&mut tree, "dynamic_events", "e:probes/on probes.switch that=$pid:u32\n");
    set(&mut tree, "events/probes/on/enable", "1");
    let mut child = Command::new("true").spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let seen = records(&mut tree, "trace", "on");
    assert!(seen.contains(&format!("(probes.switch) that={}", child.id())), "{seen:?}");
    set(&mut tree, "events/probes/on/enable", "0");
    set(&mut tree, "dynamic_events", "-:probes/on\n");
    set(&mut tree, "dynamic_events", "-:probes/switch\n");
}

/// The rows of a `hist` file, with runs of blanks reduced to one.
fn rows(tree: &mut Tree, path: &str) -> Vec<String> {
    let text = read(tree, path).unwrap();
    let rows = text.lines().filter(|line| line.starts_with('{'));
    rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn histograms_count_events_without_a_tracepoint() {
    let Some(mut tree) = tree() else { return };
    set(&mut tree, "synthetic_events", "e u16 n; char fixed[16]; char[] text; unsigned long[] stack\n");
    set(&mut tree, "dynamic_events", "e:probes/on synthetic.e odd=$n:b1@0/16 text=$text:string if n > 1\n");
    set(&mut tree, "dynamic_events", "t:probes/enter sys_enter number=$arg2:u64\n");
    let child = Child::start(5);
    let pid = child.id();
    set(&mut tree, "events/synthetic/e/trigger", "hist:keys=text,common_pid:vals=n if n != 4");
    set(&mut tree, "events/probes/on/trigger", "hist:keys=odd:sort=odd");
    let kills = format!("hist:keys=number,common_pid if common_pid == {pid} && number == {KILL}");
    set(&mut tree, "events/probes/enter/trigger", &kills);
    let emission = engine::emission(tree.engine(), "e").unwrap().expect("it is counted");
    let (program, _values) = emitter(pid, &emission);
    let link = program.attach_raw_tracepoint("sys_enter").unwrap();
    child.run();
    drop(link);
    let own = std::process::id();
    let values = [Value::Number(9), Value::Text(b""), Value::Text(b"mine"), Value::Stack(&[])];
    engine::emit(tree.engine(), "e", &values, writer()).unwrap();
    let counted = rows(&mut tree, "events/synthetic/e/hist");
    let row = |text: &str, pid: u32, hits: u32, n: u32| {
        format!("{{ text: {text} , common_pid: {pid} }} hitcount: {hits} n: {n}")
    };
    assert_eq!(counted.len(), 2, "{counted:?}");
    for wanted in [row("hello", pid, 4, 1 + 2 + 3 + 5), row("mine", own, 1, 9)] {
        assert!(counted.contains(&wanted), "{counted:?}");
    }
    assert_eq!(
        rows(&mut tree, "events/probes/on/hist"),
        ["{ odd: 0 } hitcount: 2", "{ odd: 1 } hitcount: 3"]
    );
    assert_eq!(
        rows(&mut tree, "events/probes/enter/hist"),
        [format!("{{ number: {KILL}, common_pid: {pid} }} hitcount: 5")]
    );
    for (path, line) in [
        ("synthetic/e", "!hist:keys=text,common_pid:vals=n if n != 4"),
        ("probes/on", "!hist:keys=odd:sort=odd"),
        ("probes/enter", &format!("!{kills}")),
    ] {
        set(&mut tree, &format!("events/{path}/trigger"), line);
    }
    assert!(engine::emission(tree.engine(), "e").unwrap().is_none());
    // The first event to delete is the target of the second.
    assert_eq!(write(&mut tree, "dynamic_events", "", TRUNCATE), Err(Errno::BUSY));
    set(&mut tree, "dynamic_events", "-:probes/on\n");
    assert_eq!(write(&mut tree, "dynamic_events", "", TRUNCATE), Ok(0));
}
