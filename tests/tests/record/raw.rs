//! Raw tracepoint plans on the running kernel. Trials must accept them on every architecture, and their programs must
//! record the same as the kernel. Without this test, a machine on which every plan falls back would pass all other
//! tests.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tracer_tests::compare::{Comparison, Missed, compare, family, until_known};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::workload::{self, Job};
use tracer_user::api::{EventCounts, RecordSink, RecordStart, RecordView, Summary};
use tracer_user::engine::facts::Facts;
use tracer_user::engine::handlers::NoDerivedPlan;
use tracer_user::engine::record::{Options, RecordRequest, Recorder, Selection};
use tracer_user::event::Format;
use tracer_user::kernel::handler::Unfollowed;
use tracer_user::plan::raw;
use tracer_user::render::{LineWriter, TextBuffer, line};

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

/// Every event whose plan is derived from the kernel's handler, and how many have none, by reason.
fn derived(facts: &Facts) -> Result<(Vec<String>, BTreeMap<String, usize>)> {
    let list = facts.tracefs.available_events()?;
    let list: Vec<(&str, &str)> = list.lines().filter_map(|line| line.split_once(':')).collect();
    // Following the handlers takes most of this test's time, and the facts follow one at a time.
    let share = list.len().div_ceil(std::thread::available_parallelism()?.get());
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            list.chunks(share).map(|part| scope.spawn(|| derived_of(&Facts::running()?, part))).collect();
        let (mut events, mut others) = (Vec::new(), BTreeMap::new());
        for thread in threads {
            let (more, reasons) = thread.join().expect("no panic")?;
            events.extend(more);
            for (why, count) in reasons {
                *others.entry(why).or_default() += count;
            }
        }
        Ok((events, others))
    })
}

/// As [`derived`], of these events.
fn derived_of(facts: &Facts, list: &[(&str, &str)]) -> Result<(Vec<String>, BTreeMap<String, usize>)> {
    let (mut events, mut others) = (Vec::new(), BTreeMap::<String, usize>::new());
    for &(system, name) in list {
        if system == "syscalls" || raw::listed().any(|listed| listed == (system, name)) {
            continue;
        }
        let Some(text) = facts.tracefs.format(system, name)? else { continue };
        match facts.derived_plan(&Format::parse(system, &text)?) {
            Ok(_) => events.push(format!("{system}:{name}")),
            Err(NoDerivedPlan::Field { why, .. }) => *others.entry(why.to_string()).or_default() += 1,
            Err(NoDerivedPlan::Unfollowed(Unfollowed::Call(_))) => {
                *others.entry("its handler calls another function".to_owned()).or_default() += 1;
            }
            Err(why) => *others.entry(why.to_string()).or_default() += 1,
        }
    }
    Ok((events, others))
}

/// The lines of a recording, and the events that use raw tracepoints.
struct Recorded {
    writer: LineWriter,
    text: TextBuffer,
    accepted: Vec<String>,
    lost: u64,
    counts: Vec<EventCounts>,
}

impl RecordSink for Recorded {
    fn begin(&mut self, start: &RecordStart<'_>) {
        for event in start.events {
            let name = format!("{}:{}", event.system(), event.name());
            for hook in event.hooks() {
                if hook.is_perf_tracepoint() {
                    println!("{name}: no raw tracepoint: {}", hook.reason());
                } else {
                    self.accepted.push(name.clone());
                }
            }
        }
    }

    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        self.writer.record(&mut self.text, record);
        ControlFlow::Continue(())
    }

    fn lost(&mut self, _cpu: u32, hits: u64) {
        self.lost += hits;
    }

    fn finish(&mut self, summary: &Summary) {
        self.counts.clone_from(&summary.counts);
    }
}

/// Records jobs through raw tracepoints and through tracefs, and compares the two. Also returns the events that use raw
/// tracepoints.
fn record(facts: &Arc<Facts>, events: &[String], jobs: &[&str]) -> Result<(Comparison, Missed, Vec<String>)> {
    let job = Job::start(jobs, 1)?;
    let pid = job.pid();
    let oracle = Oracle::create("raw")?;
    oracle.set("buffer_size_kb", "16384")?;
    oracle.pids(&[pid], true)?;
    for event in events {
        oracle.enable(event, true)?;
    }
    let request = RecordRequest { events: events.to_vec(), ..RecordRequest::default() };
    let options = Options { pids: vec![pid], ring_bytes: 8 << 20, ..Options::default() };
    let mut recorder = Recorder::new(Selection::new(&request, Arc::clone(facts))?, &options)?;
    oracle.tracing(true)?;
    recorder.go();
    job.go()?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    oracle.tracing(false)?;
    ensure!(oracle.lost()? == 0, "the kernel lost hits");
    let mut sink = Recorded {
        writer: LineWriter::new(line::Options::for_kernel(facts.version())),
        text: TextBuffer::default(),
        accepted: Vec::new(),
        lost: 0,
        counts: Vec::new(),
    };
    recorder.finish(&mut sink, None);
    let Recorded { text, accepted, lost, counts, .. } = sink;
    let dropped: u64 = counts.iter().map(|count| count.dropped).sum();
    ensure!(lost == dropped, "{lost} of {dropped} lost hits were reported");
    let mut missed = Missed::default();
    for count in counts {
        ensure!(count.dropped == 0, "{}: our buffer is too small", count.event);
        let name = count.event.split_once(':').map_or(&*count.event, |(_, name)| name);
        missed.own.insert(name.to_owned(), count.missed);
    }
    let (theirs, ours) = (oracle.trace()?, Trace::parse(text.text()));
    let result = compare(&theirs, &ours, &family(pid, &theirs));
    println!("{} lines of {} event types compared and equal", result.lines(), result.types());
    Ok((result, missed, accepted))
}

/// Records the workload through raw tracepoints and through tracefs, and prints how many events each kind of hook
/// served.
fn run() -> Result<()> {
    let facts = Arc::new(Facts::running()?);
    let mut events = planned(&facts)?;
    let plans = events.len();
    events.extend(CALLS.map(|name| format!("syscalls:{name}")));
    let once = || {
        let (result, missed, accepted) = record(&facts, &events, &["pipes", "process", "time", "values"])?;
        println!("{} of {plans} plans and {} system calls are accepted", accepted.len(), CALLS.len());
        for name in CERTAIN.map(str::to_owned).into_iter().chain(CALLS.map(|name| format!("syscalls:{name}")))
        {
            ensure!(accepted.contains(&name), "{name} is not traced through a raw tracepoint");
        }
        // This share depends on the kernel alone.
        ensure!(accepted.len() * 4 >= events.len() * 3, "only {} of {}", accepted.len(), events.len());
        ensure!(result.types() >= 10 && result.lines() >= 1000, "too little to compare: {result}");
        Ok((result, missed))
    };
    until_known(once, |_| Vec::new()).map(drop)
}

/// Records all jobs with the events whose plans are derived. The kernel's text must be equal, and every hit recorded, because
/// no program at a raw tracepoint prevents another one.
fn run_derived() -> Result<()> {
    let facts = Arc::new(Facts::running()?);
    let known = host::Tracefs::find_or_mount()?.events()?;
    let (derived, others) = derived(&facts)?;
    println!("{} events have plans from their handlers", derived.len());
    for (why, events) in &others {
        println!("{events} have none: {why}");
    }
    // This share depends on the kernel's code alone.
    ensure!(derived.len() * 3 >= derived.len() + others.values().sum::<usize>(), "only {}", derived.len());
    // The comparison knows by the switches which hits belong to none of the two tasks.
    let is_wanted = |event: &String| derived.contains(event) || event == "sched:sched_switch";
    let events: Vec<String> = workload::events(&known).into_iter().filter(is_wanted).collect();
    let once = || {
        let (result, missed, accepted) = record(&facts, &events, &["all"])?;
        ensure!(
            accepted.len() == events.len(),
            "{} of {} are at raw tracepoints",
            accepted.len(),
            events.len()
        );
        println!("set aside: {}; lost: {}", result.rules(), result.losses());
        ensure!(result.types() >= 20 && result.lines() >= 1000, "too little to compare: {result}");
        Ok((result, missed))
    };
    until_known(once, |all| all.misses_over(1).into_iter().collect()).map(drop)
}

#[test]
fn raw_plans_are_accepted_and_record_what_the_kernel_records() {
    if !host::root_or_skip() {
        return;
    }
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn plans_from_handlers_record_what_the_kernel_records() {
    if !host::root_or_skip() {
        return;
    }
    run_derived().unwrap_or_else(|error| panic!("{error:#}"));
}
