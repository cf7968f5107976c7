//! The kernel's text is our text: the same events are on in the kernel's tracefs and in `tracer record` during one
//! run of the workload, and the lines are equal. What is set aside is listed in `tracer_tests::compare`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use tracer_tests::compare::{Comparison, compare, family};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::tracer::Tracer;
use tracer_tests::workload::{self, Job};

/// Event types that must be covered.
const TYPES: usize = 60;

/// How long after the workload's end its last hits may still come (the zombie's last switch).
const AFTERMATH: Duration = Duration::from_millis(100);

/// An oracle for these events, set up for a job and its children.
fn oracle_for(job: &Job, events: &[String]) -> Result<Oracle> {
    let oracle = Oracle::create("differential")?;
    oracle.set("buffer_size_kb", "32768")?;
    oracle.pids(&[job.pid()], true)?;
    for event in events {
        oracle.enable(event, true)?;
    }
    Ok(oracle)
}

fn kernel_trace(oracle: &Oracle) -> Result<Trace> {
    oracle.tracing(false)?;
    ensure!(oracle.lost()? == 0, "the kernel lost hits: the buffer is too small for this workload");
    oracle.trace()
}

fn report(name: &str, result: &Comparison) {
    println!("{name}: {} lines of {} event types compared and equal", result.lines(), result.types());
    let calls = result.equal.keys().filter(|event| event.starts_with("sys_")).count();
    println!("{name}: {calls} of the types are system calls");
}

/// The comparison itself is sound: two instances of the kernel's own tracefs agree by it.
#[test]
fn the_kernel_agrees_with_itself() {
    if !host::is_root() {
        eprintln!("skipped: tracing needs root");
        return;
    }
    let run = || -> Result<Comparison> {
        let job = Job::start(&["all"], 1)?;
        let pid = job.pid();
        let known = host::Tracefs::find_or_mount()?.events()?;
        let events = workload::events(&known);
        let (one, two) = (oracle_for(&job, &events)?, oracle_for(&job, &events)?);
        one.tracing(true)?;
        two.tracing(true)?;
        job.go()?;
        std::thread::sleep(AFTERMATH);
        let (first, second) = (kernel_trace(&one)?, kernel_trace(&two)?);
        Ok(compare(&first, &second, &family(pid, &first)))
    };
    let result = run().unwrap_or_else(|error| panic!("{error:#}"));
    report("kernel and kernel", &result);
    assert!(result.clean(), "{result}");
    assert!(result.types() >= TYPES, "only {} event types", result.types());
}

#[test]
fn our_text_is_the_kernels() {
    if !host::is_root() {
        eprintln!("skipped: tracing needs root");
        return;
    }
    let run = || -> Result<(Comparison, u64)> {
        let job = Job::start(&["all"], 1)?;
        let pid = job.pid();
        let known = host::Tracefs::find_or_mount()?.events()?;
        let events = workload::events(&known);
        let oracle = oracle_for(&job, &events)?;
        let mut record = Tracer::record()?.args(["--pid", &pid.to_string()]);
        for event in &events {
            record = record.event(event, None);
        }
        let tracer = record.start()?;
        oracle.tracing(true)?;
        job.go()?;
        std::thread::sleep(AFTERMATH);
        let theirs = kernel_trace(&oracle)?;
        let outcome = tracer.stop()?.success()?;
        let mut missed = 0;
        for (event, counts) in outcome.counts() {
            missed += counts.missed;
            ensure!(counts.add_up(), "{event}: {counts:?} do not add up");
            ensure!(counts.dropped == 0, "{event}: {counts:?}: our buffer is too small for this workload");
        }
        Ok((compare(&theirs, &outcome.trace(), &family(pid, &theirs)), missed))
    };
    let (result, missed) = run().unwrap_or_else(|error| panic!("{error:#}"));
    report("kernel and tracer", &result);
    assert!(result.accounted_for(missed), "{missed} hits missed: {result}");
    assert!(result.types() >= TYPES, "only {} event types", result.types());
}

/// A switch or a wake-up is seen when the task that it is about is traced, whoever caused it: the kernel's rule for
/// `set_event_pid`.
#[test]
fn switches_and_wakeups_of_a_traced_task_are_seen_wherever_they_happen() {
    if !host::is_root() {
        eprintln!("skipped: tracing needs root");
        return;
    }
    let run = || -> Result<Comparison> {
        let job = Job::start(&["time", "process", "pipes"], 2)?;
        let pid = job.pid();
        let events = ["switch", "waking", "wakeup", "wakeup_new", "process_fork"]
            .map(|name| format!("sched:sched_{name}"));
        let oracle = oracle_for(&job, &events)?;
        let record = Tracer::record()?.args(["--pid", &pid.to_string()]);
        let record = events.iter().fold(record, |record, event| record.event(event, None));
        let tracer = record.start()?;
        oracle.tracing(true)?;
        job.go()?;
        std::thread::sleep(AFTERMATH);
        let theirs = kernel_trace(&oracle)?;
        let ours = tracer.stop()?.success()?.trace();
        // The kernel drops some switches from the idle task to a traced one; ours has them all (docs/STATUS.md).
        let lines = theirs.lines.iter().chain(&ours.lines);
        let everybody: BTreeSet<i32> = lines.map(|line| line.pid).filter(|pid| *pid != 0).collect();
        let strangers = everybody.difference(&family(pid, &theirs)).count();
        let idle = ours.lines.iter().filter(|line| line.pid == 0).count();
        ensure!(strangers + idle > 0, "nobody saw a switch from another task to ours");
        Ok(compare(&theirs, &ours, &everybody))
    };
    let result = run().unwrap_or_else(|error| panic!("{error:#}"));
    report("switches and wake-ups", &result);
    assert!(result.clean(), "{result}");
}
