//! Loads generated programs with the running kernel's verifier, and runs them.
//!
//! Fixed seeds generate the plans over all of the kernel's formats. The tests need root; otherwise they print a note
//! and pass.

use tracer_abi::{INJECT_COMM, INJECT_CPU, INJECT_LENGTH, INJECT_SIZE};
use tracer_tests::generate::plans::{self, Random};
use tracer_tests::host;
use tracer_tests::whole;
use tracer_user::code::listing;
use tracer_user::code::lower;
use tracer_user::event::{FieldClass, Format};
use tracer_user::kernel::{Btf, Tracefs};
use tracer_user::plan::eval::{self, EvalEnv};
use tracer_user::plan::filter::{Filter, NumberOp, Pattern, Place, Test, Text};
use tracer_user::plan::raw;
use tracer_user::plan::source::ProgramContext;
use tracer_user::sys::bpf::map::Map;
use tracer_user::sys::bpf::prog::{Prog, ProgInfo, ProgKind};

/// Number of formats to generate programs for; the kernel has more, and a virtual machine is slow.
const FORMATS: usize = 600;

/// A sample of about `count` of the kernel's formats at equal distances, and the format of `trace_marker`, whose last
/// field is an array without a length.
fn formats(count: usize) -> Vec<Format> {
    let tracefs = Tracefs::open().unwrap();
    let events = tracefs.available_events().unwrap();
    let events: Vec<_> = events.lines().filter_map(|line| line.split_once(':')).collect();
    let stride = events.len().div_ceil(count);
    events
        .iter()
        .step_by(stride)
        .chain(&[("ftrace", "print"), ("ftrace", "raw_data")])
        .filter_map(|(system, name)| Format::parse(system, &tracefs.format(system, name).unwrap()?).ok())
        .filter(|format| !format.fields.is_empty())
        .collect()
}

/// Loads a program with filter and record; panics with plan, listing and log when the verifier refuses.
fn load(
    scratch: &Map,
    kind: ProgKind,
    format: &Format,
    context: &ProgramContext,
    plan: &Filter,
) -> (Prog, usize) {
    let filter = lower::filter(plan, context).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let record =
        lower::record(format, context).unwrap_or_else(|error| panic!("{}: {error}", format.full_name()));
    let insns = whole::program(scratch, &filter.functions, &record.functions);
    match Prog::load(kind, &whole::encoded(&insns), "verifier_test") {
        Ok(prog) => (prog, insns.len()),
        Err(error) => {
            let tail: Vec<_> = error.log.lines().rev().take(60).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            let text = listing::functions(&filter.functions);
            let text = if text.len() > 20_000 { "(long)" } else { &text };
            panic!(
                "{}: {plan}\n{}\n{}\n{}\n{}",
                format.full_name(),
                text,
                listing::functions(&record.functions),
                tail.join("\n"),
                error.errno
            );
        }
    }
}

/// The most expensive program so far.
#[derive(Default)]
struct Dearest {
    insns: usize,
    verified: u32,
    of: String,
}

impl Dearest {
    fn see(&mut self, prog: &Prog, insns: usize, of: impl FnOnce() -> String) {
        let ProgInfo { verified, .. } = prog.info().unwrap();
        if verified > self.verified {
            *self = Self { insns, verified, of: of() };
        }
    }

    fn tell(&self, count: usize) {
        println!(
            "{count} programs; dearest for the verifier: {} instructions, {} looked at: {}",
            self.insns, self.verified, self.of
        );
    }
}

#[test]
fn tracepoint_programs_load() {
    if !host::root_or_skip() {
        return;
    }
    let scratch = whole::scratch().unwrap();
    let mut dearest = Dearest::default();
    let mut count = 0;
    for (number, format) in formats(FORMATS).iter().enumerate() {
        let mut random = Random::new(number as u64);
        for tests in [1, 4, 16] {
            let plan = plans::filter(&mut random, format, tests);
            let (prog, insns) =
                load(&scratch, ProgKind::Tracepoint, format, &ProgramContext::Tracepoint, &plan);
            dearest.see(&prog, insns, || format!("{}: {plan}", format.full_name()));
            count += 1;
        }
    }
    dearest.tell(count);
}

#[test]
fn injection_programs_agree_with_the_evaluator() {
    if !host::root_or_skip() {
        return;
    }
    let scratch = whole::scratch().unwrap();
    // One freshly written block, because a hit cannot read absent memory.
    let texts = ["", "a", "ab", "aab", "aaabaa", "baab"];
    let block = texts.join("\0") + "\0";
    let mut at = block.as_ptr() as u64;
    let mut pointers = Vec::new();
    for text in texts {
        pointers.push(at);
        at += text.len() as u64 + 1;
    }
    // An address without memory.
    pointers.push(8);
    let read = |address: u64, user: bool| {
        let known = pointers.iter().position(|pointer| *pointer == address)?;
        // Reads as kernel memory fail for user addresses.
        texts.get(known).filter(|_| user).map(|text| text.as_bytes().to_vec())
    };
    // The context also has the record's writer. Filters use the writer instead of the task that runs the program.
    let name = *b"writer\0\0\0\0\0\0\0\0\0\0";
    let cpu = 1_u32;
    let mut seen = [0; 2];
    for (number, format) in formats(FORMATS).iter().enumerate() {
        let mut random = Random::new(1000 + number as u64);
        for tests in [1, 2, 6] {
            let plan = plans::filter(&mut random, format, tests);
            // Common fields have a separate argument, which here is the map's first word: zero.
            let common = |test: &&Test| match test {
                Test::Number { place, .. } => place.offset < 8,
                _ => false,
            };
            if plan.tests().iter().any(common) {
                continue;
            }
            let (prog, _) = load(&scratch, ProgKind::Syscall, format, &ProgramContext::Inject, &plan);
            for _ in 0..10 {
                let record = plans::record(&mut random, format, &pointers);
                let expected = eval::matches(&plan, &record, &EvalEnv { cpu, comm: name, read: &read });
                // The bytes after a record are zero here.
                let mut context = record.clone();
                context.resize(INJECT_SIZE, 0);
                let length = (record.len() as u32).to_ne_bytes();
                context[INJECT_LENGTH..INJECT_CPU].copy_from_slice(&length);
                context[INJECT_CPU..INJECT_COMM].copy_from_slice(&cpu.to_ne_bytes());
                context[INJECT_COMM..].copy_from_slice(&name);
                let got = prog.run(&mut context).unwrap() != 0;
                assert_eq!(got, expected, "{}: {plan} over {record:?}", format.full_name());
                seen[usize::from(expected)] += 1;
            }
        }
    }
    println!("{} hits did not pass, {} did", seen[0], seen[1]);
    assert!(seen[0].min(seen[1]) > 100, "both happen: {seen:?}");
}

#[test]
fn raw_tracepoint_programs_load() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let Some(btf) = Btf::running().unwrap() else {
        host::skip("btf", "this kernel shows no BTF");
        return;
    };
    let scratch = whole::scratch().unwrap();
    let mut dearest = Dearest::default();
    let mut count = 0;
    for (number, (system, name)) in raw::listed().enumerate() {
        let Some(text) = tracefs.format(system, name).unwrap() else { continue };
        let format = Format::parse(system, &text).unwrap();
        let Ok(plan) = raw::plan(&format, &btf, None) else { continue };
        let context = ProgramContext::RawTracepoint(plan.fields);
        let mut random = Random::new(5000 + number as u64);
        for tests in [1, 1, 1, 4, 4, 16, 40] {
            let plan = plans::filter(&mut random, &format, tests);
            let (prog, insns) = load(&scratch, ProgKind::RawTracepoint, &format, &context, &plan);
            dearest.see(&prog, insns, || format!("{}: {plan}", format.full_name()));
            count += 1;
        }
    }
    dearest.tell(count);
    assert!(count > 50, "{count} raw tracepoint programs");
}

/// The longest and most expensive filters that a filter text of one page allows.
#[test]
fn the_longest_filters_load() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let format = |system: &str, name: &str| {
        Format::parse(system, &tracefs.format(system, name).unwrap().unwrap()).unwrap()
    };
    let scratch = whole::scratch().unwrap();
    let exec = format("sched", "sched_process_exec");
    let openat = format("syscalls", "sys_enter_openat");
    let switch = format("sched", "sched_switch");
    let filename = exec.fields.iter().find(|field| field.class == FieldClass::DynString).unwrap();
    let data = Text::Dyn { offset: filename.offset as u16 };
    let pointer = |user| Text::Pointer {
        place: Place { offset: openat.field("filename").unwrap().offset as u16, size: 8 },
        user,
    };
    let comm = switch.field("prev_comm").unwrap();
    let array = Text::Static(Place { offset: comm.offset as u16, size: comm.size as u16 });
    let text = |text, pattern| Filter::Test(Test::Text { text, pattern, not: false });
    // 4096 bytes of text hold about this many tests of this many letters.
    let many = |of: &dyn Fn(usize) -> Filter, count: usize, or: bool| {
        let list = (0..count).map(of).collect();
        if or { Filter::Or(list) } else { Filter::And(list) }
    };
    let letters = |number: usize| format!("{number:03}").into_bytes();
    let starred =
        |number: usize| (0..120).flat_map(|at| [b'*', b'a' + ((at + number) % 26) as u8]).collect::<Vec<_>>();
    let nested = |depth: usize| {
        let place = Place { offset: 24, size: 4 };
        (0..depth).fold(Filter::Const(true), |inner, level| {
            let test =
                Filter::Test(Test::Number { place, signed: true, op: NumberOp::Gt, value: level as u64 });
            if level % 2 == 0 { Filter::Or(vec![test, inner]) } else { Filter::And(vec![test, inner]) }
        })
    };
    let number = |place: Place| {
        move |value: usize| {
            Filter::Test(Test::Number { place, signed: true, op: NumberOp::Eq, value: value as u64 })
        }
    };
    // A page of text has space for 16. The verifier of a virtual machine takes more than a minute for them.
    let globs = host::share(16).max(4) as usize;
    let cases: [(&str, &Format, Filter); 10] = [
        ("700 numbers, or", &switch, many(&number(Place { offset: 24, size: 4 }), 700, true)),
        ("700 numbers, and", &switch, many(&number(Place { offset: 24, size: 4 }), 700, false)),
        ("450 levels", &switch, nested(450)),
        (
            "400 searches of a pointer",
            &openat,
            many(&|n| text(pointer(true), Pattern::Middle(letters(n))), 400, true),
        ),
        ("400 searches of data, and", &exec, many(&|n| text(data, Pattern::Middle(letters(n))), 400, false)),
        ("400 searches of data, or", &exec, many(&|n| text(data, Pattern::Middle(letters(n))), 400, true)),
        (
            "400 globs of data",
            &exec,
            many(&|n| text(data, Pattern::Glob([b"a*", &letters(n)[..], b"*?[a-z]"].concat())), 400, true),
        ),
        (
            "400 globs of an array",
            &switch,
            many(&|n| text(array, Pattern::Glob([&letters(n)[..], b"*[!a-z]"].concat())), 400, true),
        ),
        (
            "globs of 120 stars",
            &openat,
            many(&|n| text(pointer(true), Pattern::Glob(starred(n))), globs, true),
        ),
        ("400 names", &switch, many(&|n| text(array, Pattern::Full(letters(n))), 400, true)),
    ];
    for (what, format, plan) in cases {
        let (prog, insns) = load(&scratch, ProgKind::Tracepoint, format, &ProgramContext::Tracepoint, &plan);
        println!("{what}: {insns} instructions, {} looked at", prog.info().unwrap().verified);
    }
}
