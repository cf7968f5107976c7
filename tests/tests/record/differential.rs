//! Compares the text of `tracer record` with the kernel's. The same events are enabled in the kernel's tracefs and in
//! `tracer record` during one run of the workload, and the lines must be equal. `tracer_tests::compare` lists the
//! differences that it sets aside.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use tracer_tests::compare::columns::{KNOWN, LEAST, RACES};
use tracer_tests::compare::times::{RESOLUTION, backwards};
use tracer_tests::compare::{Comparison, Missed, compare, family, until_known};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::tracer::{Outcome, Tracer};
use tracer_tests::workload::{self, Job};

/// Event types that must be covered.
const TYPES: usize = 60;

/// An oracle for these events, restricted to a job and its children.
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
    println!("{name}: {}", result.offsets);
    println!("{name}: lost: {}", result.losses());
    println!("{name}: set aside: {}", result.rules());
    result.crossings.iter().for_each(|lines| println!("{name}: in another order:\n{lines}"));
    print!("{}", result.columns);
}

/// Hits for which the kernel did not run the tracer's programs; all others must be recorded.
fn missed(outcome: &Outcome) -> Result<Missed> {
    for (event, counts) in outcome.counts() {
        ensure!(counts.add_up(), "{event}: {counts:?} do not add up");
        ensure!(counts.dropped == 0, "{event}: {counts:?}: our buffer is too small for this workload");
    }
    Ok(Missed::of(&outcome.counts()))
}

/// Checks the comparison itself: two instances of the kernel's own tracefs must be equal.
#[test]
fn the_kernel_agrees_with_itself() {
    if !host::root_or_skip() {
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
        two.until_last_switch(pid)?;
        let (first, second) = (kernel_trace(&one)?, kernel_trace(&two)?);
        Ok(compare(&first, &second, &family(pid, &first)))
    };
    let result = run().unwrap_or_else(|error| panic!("{error:#}"));
    report("kernel and kernel", &result);
    assert!(result.clean(), "{result}");
    // The baseline for the tracer: no column differs, except when a reschedule is requested between the two sides'
    // handling, and the times are readings of one clock.
    let unequal = result.columns.wrong(RACES);
    assert!(unequal.is_empty(), "{}", unequal.join("\n"));
    assert!(result.offsets.is_one_clock(RESOLUTION), "{}", result.offsets);
    assert!(result.types() >= TYPES, "only {} event types", result.types());
}

#[test]
fn our_text_is_the_kernels() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<(Comparison, Missed)> {
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
        oracle.until_last_switch(pid)?;
        let theirs = kernel_trace(&oracle)?;
        let outcome = tracer.stop()?.success()?;
        let missed = missed(&outcome)?;
        let ours = outcome.trace();
        let backwards = backwards(&ours);
        ensure!(backwards.is_empty(), "older than the line before:\n{}", backwards.join("\n"));
        let result = compare(&theirs, &ours, &family(pid, &theirs));
        report("kernel and tracer", &result);
        let unequal = result.columns.wrong(KNOWN);
        ensure!(unequal.is_empty(), "columns of the latency field:\n{}", unequal.join("\n"));
        ensure!(result.offsets.is_one_clock(RESOLUTION), "{}", result.offsets);
        ensure!(result.types() >= TYPES, "only {} event types", result.types());
        Ok((result, missed))
    };
    until_known(run, |all| all.columns.too_few(LEAST)).unwrap_or_else(|error| panic!("{error:#}"));
}

/// CPUs on which the kernel's own tracefs always misses the idle task's hits: an instance without a pid filter shows
/// switches to that task and none from it. Some hosts have such a CPU (`docs/reference/limits.md`). Programs at the
/// same tracepoint see those switches.
fn deaf_cpus(idle: &Trace) -> BTreeSet<u32> {
    let cpus = |side: &str| -> BTreeSet<u32> {
        idle.lines.iter().filter(|line| line.text.contains(side)).map(|line| line.cpu).collect()
    };
    &cpus(" next_pid=0 ") - &cpus(" prev_pid=0 ")
}

/// Threads of process 1 in whose context the tracer's programs never ran. Some hosts run no programs there, not even
/// in interrupts of these threads.
fn out_of_reach(ours: &Trace) -> BTreeSet<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/1/task") else { return BTreeSet::new() };
    let threads = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    threads.filter(|thread| ours.lines.iter().all(|line| line.pid != *thread)).collect()
}

/// Removes the hits of the idle tasks of these CPUs (but not of interrupts there), and all hits in the context of
/// these threads.
fn within_reach(mut trace: Trace, deaf: &BTreeSet<u32>, threads: &BTreeSet<i32>) -> Trace {
    trace.lines.retain(|line| {
        let idle = line.pid == 0 && deaf.contains(&line.cpu) && line.flags.at(2) == '.';
        !idle && !threads.contains(&line.pid)
    });
    trace
}

#[test]
fn a_deaf_cpu_and_a_cpu_that_never_slept_are_distinguished() {
    let line = |cpu: u32, prev: u32, next: u32| {
        let text =
            format!("sched_switch: prev_comm=x prev_pid={prev} prev_prio=1 ==> next_pid={next} next_prio=1");
        format!("{:>16}-{prev:<7} [{cpu:03}] d..2. 1.000001: {text}\n", "task")
    };
    let lines =
        [line(0, 7, 0), line(0, 0, 7), line(1, 7, 0), line(1, 7, 0), line(2, 7, 8), line(2, 8, 7)].concat();
    let trace = Trace::parse(lines.as_bytes());
    assert_eq!(deaf_cpus(&trace), BTreeSet::from([1]));
    let left = within_reach(trace, &BTreeSet::from([0]), &BTreeSet::from([8]));
    let left: Vec<_> = left.lines.iter().map(|line| (line.cpu, line.pid)).collect();
    assert_eq!(left, [(0, 7), (1, 7), (1, 7), (2, 7)]);
}

/// A switch or a wake-up is recorded if the task that is switched or woken is traced, independent of the current
/// task. This is the kernel's rule for `set_event_pid`.
#[test]
fn switches_and_wakeups_of_a_traced_task_are_seen_on_all_cpus() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<(Comparison, Missed)> {
        let job = Job::start(&["time", "process", "pipes"], 2)?;
        let pid = job.pid();
        let events = ["switch", "waking", "wakeup", "wakeup_new", "process_fork"]
            .map(|name| format!("sched:sched_{name}"));
        let oracle = oracle_for(&job, &events)?;
        let idle = Oracle::create("idle")?;
        idle.filter("sched:sched_switch", "prev_pid == 0 || next_pid == 0")?;
        idle.enable("sched:sched_switch", true)?;
        let record = Tracer::record()?.args(["--pid", &pid.to_string()]);
        let record = events.iter().fold(record, |record, event| record.event(event, None));
        let tracer = record.start()?;
        idle.tracing(true)?;
        oracle.tracing(true)?;
        job.go()?;
        oracle.until_last_switch(pid)?;
        let theirs = kernel_trace(&oracle)?;
        let deaf = deaf_cpus(&kernel_trace(&idle)?);
        let outcome = tracer.stop()?.success()?;
        let missed = missed(&outcome)?;
        let ours = outcome.trace();
        let threads = out_of_reach(&ours);
        println!("the kernel's tracefs does not hear the idle task of CPUs {deaf:?}");
        let theirs = within_reach(theirs, &deaf, &threads);
        let ours = within_reach(ours, &deaf, &threads);
        let everybody: BTreeSet<i32> = theirs.lines.iter().chain(&ours.lines).map(|line| line.pid).collect();
        let strangers = everybody.difference(&family(pid, &theirs)).count();
        ensure!(strangers > 0, "the kernel saw no switch from another task to ours");
        Ok((compare(&theirs, &ours, &everybody), missed))
    };
    let result = until_known(run, |_| Vec::new()).unwrap_or_else(|error| panic!("{error:#}"));
    report("switches and wake-ups", &result);
}
