//! Unread records: programs overwrite the oldest ones, and the daemon does nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, stat, text};

/// The event of [`call`], and its only argument.
const EVENT: &str = "events/syscalls/sys_enter_getpgid";

/// Causes `count` hits on the current CPU.
fn call(count: u64) {
    for number in 0..count {
        // The argument numbers the calls, and no process has such an id.
        let _ = rustix::process::getpgid(rustix::process::Pid::from_raw((1 << 30) + number as i32));
    }
}

/// Calls that fill more than half of the ring, so that the daemon is woken, and waits until it has been.
fn wake() -> u64 {
    let calls = 40_000;
    call(calls);
    std::thread::sleep(Duration::from_millis(if host::part() > 1 { 2000 } else { 300 }));
    calls
}

/// The numbers of the calls in a text of records.
fn numbers(text: &str) -> Result<Vec<u64>> {
    let calls = text.lines().filter_map(|line| line.split_once("sys_getpgid(pid: "));
    calls
        .map(|(_, rest)| {
            Ok(u64::from_str_radix(rest.trim_start_matches("0x").trim_end_matches(')'), 16)? - (1 << 30))
        })
        .collect()
}

/// The processor time of a process.
fn processor_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("a stat file")?.1.split(' ');
    let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// An instance that records the calls of this thread, which runs on the last CPU.
fn instance(mounted: &Mounted) -> Result<(std::path::PathBuf, usize)> {
    let cpu = host::last_cpu()?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one)?;
    let instance = mounted.instance("unread")?;
    set(&instance, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
    set(&instance, &format!("{EVENT}/enable"), "1")?;
    Ok((instance, cpu))
}

fn counts(instance: &Path) -> Result<[u64; 4]> {
    let count = |key: &str| stat(instance, key);
    Ok([count("entries")?, count("overrun")?, count("dropped events")?, count("read events")?])
}

#[test]
fn old_records_are_overwritten_and_counted() {
    host::as_root(|| {
        let mounted = Mounted::start("unread")?;
        let (instance, _) = instance(&mounted)?;
        // Each round makes more records than the ring and the buffer hold together.
        let calls = 200_000;
        let (mut all, mut last_read) = (0, 0);
        for round in 0..3 {
            all += wake();
            let (since, before) = (Instant::now(), processor_time(mounted.pid())?);
            call(calls);
            let (took, used) = (since.elapsed(), processor_time(mounted.pid())?.saturating_sub(before));
            all += calls;
            let [entries, overrun, dropped, read] = counts(&instance)?;
            println!("round {round}: {took:?}, the daemon {used:?}: {entries} {overrun} {dropped} {read}");
            ensure!(
                entries + overrun + read == all && dropped == 0,
                "{all}: {entries} {overrun} {dropped} {read}"
            );
            // A record takes 36 bytes of a page there.
            ensure!(entries >= 1408 * 1024 / 36 * 3 / 4, "{entries} entries");
            // The ring wakes the daemon once, before it overwrites.
            ensure!(used < took / 4, "the daemon used {used:?} of {took:?}");
            let seen = numbers(&text(&instance, "trace")?)?;
            ensure!(seen.len() as u64 == entries, "{} of {entries}", seen.len());
            ensure!(
                seen.iter().zip(calls - entries..calls).all(|(seen, number)| *seen == number),
                "a record is missing"
            );
            last_read = read;
        }
        ensure!(last_read == 0, "reading trace takes no record");
        Ok(())
    });
}

#[test]
fn a_reader_that_comes_late_is_told_how_much_it_lost() {
    host::as_root(|| {
        let mounted = Mounted::start("unread-late")?;
        let (instance, cpu) = instance(&mounted)?;
        let calls = 150_000;
        let all = wake() + calls;
        call(calls);
        set(&instance, "tracing_on", "0")?;
        let pipe = std::fs::File::options().read(true).open(instance.join("trace_pipe"))?;
        let mut text = Vec::new();
        let mut part = vec![0; 1 << 16];
        while !text.ends_with(format!("{:x})\n", (1 << 30) + calls - 1).as_bytes()) {
            let read = rustix::io::read(&pipe, &mut part[..])?;
            text.extend_from_slice(&part[..read]);
        }
        let text = String::from_utf8(text)?;
        let seen = numbers(&text)?;
        let lost = all - seen.len() as u64;
        let first = text.lines().next().unwrap_or_default();
        ensure!(first == format!("CPU:{cpu} [LOST {lost} EVENTS]"), "{lost}: {first}");
        let [entries, overrun, dropped, read] = counts(&instance)?;
        ensure!(
            [entries, overrun, dropped, read] == [0, lost, 0, seen.len() as u64],
            "{entries} {overrun} {dropped} {read}"
        );
        Ok(())
    });
}

#[test]
fn a_masked_cpu_keeps_its_records() {
    host::as_root(|| {
        let mounted = Mounted::start("unread-masked")?;
        let (instance, cpu) = instance(&mounted)?;
        ensure!(cpu > 0, "one CPU is not enough");
        call(100);
        set(&instance, "tracing_cpumask", "1")?;
        call(200_000);
        let seen = numbers(&text(&instance, "trace")?)?;
        ensure!(seen == (0..100).collect::<Vec<_>>(), "{} records", seen.len());
        ensure!(counts(&instance)? == [100, 0, 0, 0], "{:?}", counts(&instance)?);
        Ok(())
    });
}
