//! Raw tracepoint plans on the running kernel: trials accept them, on every architecture, and their programs record
//! what the kernel records. Without this test, a machine on which every plan falls back would pass all other tests.

use anyhow::{Context as _, Result, ensure};
use tracer_tests::compare::{Missed, compare, family};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::workload::Job;
use tracer_user::attach::AttachPoint;
use tracer_user::engine::facts::Facts;
use tracer_user::engine::recorder::{Options, Recorder};
use tracer_user::engine::selection;
use tracer_user::event::Format;
use tracer_user::plan::raw;
use tracer_user::render::line::{self, Stamp};

/// Plans that were accepted on every tested machine.
const CERTAIN: [&str; 5] = [
    "raw_syscalls:sys_enter",
    "raw_syscalls:sys_exit",
    "sched:sched_switch",
    "task:task_newtask",
    "kmem:kmalloc",
];

/// System calls of the workload, which one program dispatches by number.
const CALLS: [&str; 4] = ["sys_enter_lseek", "sys_exit_lseek", "sys_enter_pipe2", "sys_exit_pipe2"];

/// Every event that has a plan on this kernel.
fn planned(facts: &Facts) -> Result<Vec<String>> {
    let btf = facts.btf().context("this kernel shows no types (CONFIG_DEBUG_INFO_BTF)")?;
    let mut events = Vec::new();
    for (system, name) in raw::listed() {
        let Some(text) = facts.tracefs.format(system, name)? else { continue };
        if raw::plan(&Format::parse(system, &text)?, btf, None).is_ok() {
            events.push(format!("{system}:{name}"));
        }
    }
    Ok(events)
}

/// Records the workload through raw tracepoints and through tracefs, and prints how many events each kind of hook
/// served.
fn run() -> Result<()> {
    let facts = Facts::running()?;
    let mut events = planned(&facts)?;
    let plans = events.len();
    events.extend(CALLS.map(|name| format!("syscalls:{name}")));
    let job = Job::start(&["pipes", "process", "time", "values"], 1)?;
    let pid = job.pid();
    let oracle = Oracle::create("raw")?;
    oracle.pids(&[pid], true)?;
    let mut selected = Vec::new();
    for event in &events {
        oracle.enable(event, true)?;
        selected.extend(selection::select(event, &facts.tracefs, &facts)?);
    }
    let options = Options { pids: vec![pid], only_pids: true, ring_bytes: 8 << 20, ..Options::default() };
    let mut recorder = Recorder::new(selected, &options, &facts)?;

    let mut accepted = Vec::new();
    for (format, chosen) in recorder.hooks() {
        if matches!(chosen.via, AttachPoint::Tracepoint(_)) {
            println!("{}: no raw tracepoint: {}", format.full_name(), chosen.reason);
        } else {
            accepted.push(format.full_name());
        }
    }
    println!("{} of {plans} plans and {} system calls are accepted", accepted.len(), CALLS.len());
    for name in CERTAIN.map(str::to_owned).into_iter().chain(CALLS.map(|name| format!("syscalls:{name}"))) {
        ensure!(accepted.contains(&name), "{name} is not traced through a raw tracepoint");
    }
    ensure!(accepted.len() * 4 >= events.len() * 3, "only {} of {}", accepted.len(), events.len());

    oracle.tracing(true)?;
    recorder.go();
    job.go()?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    oracle.tracing(false)?;
    ensure!(oracle.lost()? == 0, "the kernel lost hits");
    let shape = line::Options::for_kernel(facts.version());
    let mut text = Vec::new();
    recorder.finish(|shown| {
        let stamp = Stamp { cpu: shown.record.cpu, time: shown.record.time };
        line::line(&mut text, &shape, shown.printer, shown.record.payload, stamp, shown.tasks, &facts);
    });
    let mut missed = Missed::default();
    for count in recorder.counts() {
        ensure!(count.counters.dropped == 0, "{}: our buffer is too small", count.event);
        let name = count.event.split_once(':').map_or(&*count.event, |(_, name)| name);
        missed.own.insert(name.to_owned(), count.missed);
    }
    let (theirs, ours) = (oracle.trace()?, Trace::parse(&text));
    let result = compare(&theirs, &ours, &family(pid, &theirs));
    println!("{} lines of {} event types compared and equal", result.lines(), result.types());
    ensure!(result.accounted_for(&missed), "{missed:?}: {result}");
    ensure!(result.types() >= 10 && result.lines() >= 1000, "too little to compare: {result}");
    Ok(())
}

#[test]
fn raw_plans_are_accepted_and_record_what_the_kernel_records() {
    if !host::root_or_skip() {
        return;
    }
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
