//! Records of a mounted mirror. They are compared with the kernel's tracefs during one run of the workload, or with
//! numbers that are known in advance.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use tracer_tests::compare::columns::{KNOWN, LEAST_OF_SIX};
use tracer_tests::compare::times::{RESOLUTION, backwards};
use tracer_tests::compare::{Comparison, Missed, compare, family, until_known};
use tracer_tests::host;
use tracer_tests::load::Load;
use tracer_tests::mirror::{self, Mounted, set, stat, text};
use tracer_tests::oracle::rawpage::Layout;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::workload::{self, Job};

use crate::hooks::descriptors;

/// Directory of an event that only the tests hit.
const EVENT: &str = "events/syscalls/sys_enter_getpgid";

/// Hits the event this many times.
fn hit(times: u64) {
    for _ in 0..times {
        rustix::process::getpgid(None).unwrap();
    }
}

/// Restricts an instance to this thread and enables the event.
fn arm(dir: &Path) -> Result<()> {
    set(dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
    set(dir, &format!("{EVENT}/enable"), "1")
}

/// One run of six jobs under a mirror and under the kernel's tracefs.
fn text_of_six_jobs() -> Result<(Comparison, Missed)> {
    let job = Job::start(&["syscalls", "files", "process", "signals", "time", "pipes"], 1)?;
    let pid = job.pid();
    let oracle = Oracle::create("mirror")?;
    let known = oracle.tracefs().events()?;
    let events = workload::events(&known);
    oracle.set("buffer_size_kb", "32768")?;
    oracle.pids(&[pid], true)?;
    let mounted = Mounted::start("text")?;
    let ours = mounted.instance("text")?;
    for (file, value) in [
        ("tracing_on", "0"),
        ("trace_clock", "mono"),
        ("options/hash-ptr", "0"),
        ("buffer_size_kb", "32768"),
        ("options/event-fork", "1"),
        ("set_event_pid", &pid.to_string()),
    ] {
        set(&ours, file, value)?;
    }
    let start = Instant::now();
    // All system calls share some programs.
    set(&ours, "events/syscalls/enable", "1")?;
    oracle.set("events/syscalls/enable", "1")?;
    let programs = descriptors(mounted.pid(), "bpf-prog");
    ensure!(programs < 64, "{programs} programs of system calls");
    for event in events.iter().filter(|event| !event.starts_with("syscalls:")) {
        oracle.enable(event, true)?;
        set(&ours, &format!("events/{}/enable", event.replace(':', "/")), "1")?;
    }
    println!("{} events turned on in both in {:?}", events.len(), start.elapsed());
    oracle.tracing(true)?;
    set(&ours, "tracing_on", "1")?;
    job.go()?;
    oracle.until_last_switch(pid)?;
    set(&ours, "tracing_on", "0")?;
    oracle.tracing(false)?;
    ensure!(oracle.lost()? == 0, "the kernel lost hits");
    ensure!(stat(&ours, "overrun")? + stat(&ours, "dropped events")? == 0, "we lost hits");
    let theirs = oracle.trace()?;
    let trace = Trace::parse(text(&ours, "trace")?.as_bytes());
    let result = compare(&theirs, &trace, &family(pid, &theirs));
    println!("{} lines of {} event types compared and equal", result.lines(), result.types());
    // At perf tracepoints the kernel runs one program per CPU at a time, so hits of an interrupt during a program
    // may be missing.
    let stats = text(&ours, "per_cpu/cpu0/stats")?;
    let missed = stats.lines().find_map(|line| line.strip_prefix("missed events on all CPUs: "));
    let missed: u64 = missed.context("missed events")?.parse()?;
    let missed = Missed::of_process(mounted.pid(), missed)?;
    println!("missed by the kernel's count: {missed:?}");
    println!("{}\nlost: {}\nset aside: {}", result.offsets, result.losses(), result.rules());
    print!("{}", result.columns);
    ensure!(result.types() >= 40, "only {} event types", result.types());
    let unequal = result.columns.wrong(KNOWN);
    ensure!(unequal.is_empty(), "columns of the latency field:\n{}", unequal.join("\n"));
    ensure!(result.offsets.is_one_clock(RESOLUTION), "{}", result.offsets);
    let backwards = backwards(&trace);
    ensure!(backwards.is_empty(), "older than the line before:\n{}", backwards.join("\n"));
    Ok((result, missed))
}

#[test]
fn the_text_is_the_kernels() {
    host::as_root(|| until_known(text_of_six_jobs, |all| all.columns.too_few(LEAST_OF_SIX)).map(drop));
}

#[test]
fn reading_consumes_or_not_and_the_counts_tell() {
    host::as_root(|| {
        let mounted = Mounted::start("counts")?;
        let dir = mounted.instance("counts")?;
        arm(&dir)?;
        hit(1000);
        for _ in 0..2 {
            ensure!(mirror::bodies(&text(&dir, "trace")?).len() == 1000, "trace consumes nothing");
        }
        ensure!(stat(&dir, "entries")? == 1000 && stat(&dir, "read events")? == 0, "nothing was consumed");
        let header = text(&dir, "trace")?;
        ensure!(header.contains("# entries-in-buffer/entries-written: 1000/1000 "), "{header:.400}");
        // The first part of the records as a stream.
        let mut pipe =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(dir.join("trace_pipe"))?;
        let mut piece = [0; 600];
        let length = pipe.read(&mut piece)?;
        ensure!(length == 600 || piece[length - 1] == b'\n', "{length}");
        let second = File::open(dir.join("trace_pipe")).map_err(|error| error.raw_os_error());
        ensure!(second.is_err_and(|error| error == Some(libc::EBUSY)), "two readers");
        let mut all = piece[..length].to_vec();
        let end = loop {
            match pipe.read(&mut piece) {
                Ok(0) => break None,
                Ok(length) => all.extend_from_slice(&piece[..length]),
                Err(error) => break error.raw_os_error(),
            }
        };
        ensure!(end == Some(libc::EAGAIN), "{end:?}");
        let lines = String::from_utf8(all)?;
        ensure!(lines.lines().count() == 1000 && !lines.starts_with('#'), "{lines:.300}");
        ensure!(stat(&dir, "entries")? == 0 && stat(&dir, "read events")? == 1000, "all was consumed");
        ensure!(mirror::bodies(&text(&dir, "trace")?).is_empty(), "nothing is left");
        // Tracing is off and the reader has already read data, so this is the end of the stream.
        set(&dir, "tracing_on", "0")?;
        hit(10);
        ensure!(pipe.read(&mut piece)? == 0, "the end");
        set(&dir, "tracing_on", "1")?;
        hit(5);
        ensure!(stat(&dir, "entries")? == 5, "hits while it was off do not count");
        set(&dir, "trace", "")?;
        ensure!(stat(&dir, "entries")? == 0 && stat(&dir, "read events")? == 0, "cleared");
        Ok(())
    });
}

#[test]
fn the_buffer_keeps_the_newest_or_the_oldest_records() {
    host::as_root(|| {
        // The stream begins with the oldest record, and reports lost records of its CPU.
        workload::pin_to_cpu(0)?;
        let mounted = Mounted::start("overwrite")?;
        let dir = mounted.instance("overwrite")?;
        set(&dir, "buffer_size_kb", "8")?;
        arm(&dir)?;
        hit(3000);
        let (entries, overrun) = (stat(&dir, "entries")?, stat(&dir, "overrun")?);
        ensure!(entries + overrun == 3000 && overrun > 1000, "{entries} and {overrun}");
        let trace = text(&dir, "trace")?;
        ensure!(mirror::bodies(&trace).len() as u64 == entries);
        ensure!(
            trace.contains(&format!("# entries-in-buffer/entries-written: {entries}/3000 ")),
            "{trace:.300}"
        );
        let mut pipe = File::open(dir.join("trace_pipe"))?;
        let mut first = vec![0; 200];
        pipe.read_exact(&mut first)?;
        let first = String::from_utf8_lossy(&first).into_owned();
        ensure!(first.starts_with("CPU:") && first.contains(" EVENTS]\n"), "{first}");
        drop(pipe);
        set(&dir, "trace", "")?;
        set(&dir, "options/overwrite", "0")?;
        hit(3000);
        let (entries, dropped) = (stat(&dir, "entries")?, stat(&dir, "dropped events")?);
        ensure!(entries + dropped == 3000 && stat(&dir, "overrun")? == 0, "{entries} and {dropped}");
        Ok(())
    });
}

/// Changes that drop no hit, each with a different program: the file, and the text with the pid of the load.
const CHANGES: [(&str, &str); 8] = [
    ("filter", "0"),
    ("trigger", "stacktrace if pid == 77"),
    ("filter", "common_pid == PID"),
    ("trigger", "enable_event:syscalls:sys_enter_getsid if pid == 77"),
    ("filter", "pid == 0 && common_pid > 5"),
    ("trigger", "!stacktrace"),
    ("filter", "pid == 0 && common_pid > 6"),
    ("trigger", "!enable_event:syscalls:sys_enter_getsid"),
];

#[test]
fn filters_and_triggers_change_under_load_and_no_hit_is_lost_or_seen_twice() {
    // Each change takes 30 ms on the host, and seconds in a virtual machine that is busy with hits.
    let rounds = if host::part() == 1 { 25 } else { 4 };
    host::as_root(|| {
        let mounted = Mounted::start("change")?;
        let dir = mounted.instance("change")?;
        set(&dir, "buffer_size_kb", "262144")?;
        let load = Load::new(|| {
            hit(100);
            if host::part() > 1 {
                // Under emulation the load and the changes share one CPU.
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        let pid = load.pid().to_string();
        set(&dir, "set_event_pid", &pid)?;
        set(&dir, &format!("{EVENT}/enable"), "1")?;
        load.go()?;
        let start = Instant::now();
        for _ in 0..rounds {
            for (file, text) in CHANGES {
                // Truncating `trigger` would remove the triggers.
                let done = mirror::write(
                    &dir,
                    &format!("{EVENT}/{file}"),
                    text.replace("PID", &pid).as_bytes(),
                    file == "trigger",
                );
                ensure!(done == Ok(()), "{text} to {file}: {done:?}");
            }
        }
        let took = start.elapsed();
        let hits = 100 * load.stop()?;
        let (entries, dropped) = (stat(&dir, "entries")?, stat(&dir, "dropped events")?);
        // A fast machine records more than the buffer keeps.
        let overrun = stat(&dir, "overrun")?;
        let changes = rounds * CHANGES.len();
        println!("{hits} hits, {changes} changes in {took:?}, {dropped} dropped, {overrun} overwritten");
        ensure!(
            entries + overrun + dropped == hits,
            "{entries} recorded, {overrun} overwritten, {dropped} dropped of {hits}"
        );
        ensure!(hits > u64::from(host::share(10_000)), "{hits}");
        ensure!(text(&dir, &format!("{EVENT}/enable"))? == "1\n", "on as before");
        Ok(())
    });
}

#[test]
fn events_can_be_disabled_and_enabled_again_at_once() {
    host::as_root(|| {
        let mounted = Mounted::start("again")?;
        let dir = mounted.instance("again")?;
        arm(&dir)?;
        for round in 1..=50 {
            hit(7);
            set(&dir, &format!("{EVENT}/enable"), "0")?;
            hit(11);
            ensure!(stat(&dir, "entries")? == round * 7, "round {round}");
            set(&dir, &format!("{EVENT}/enable"), "1")?;
        }
        Ok(())
    });
}

#[test]
fn readers_wait_and_are_woken() {
    host::as_root(|| {
        let mounted = Mounted::start("wait")?;
        let dir = mounted.instance("wait")?;
        arm(&dir)?;
        let pipe = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(dir.join("trace_pipe"))?;
        let ready = |timeout: i64| {
            let limit = Timespec { tv_sec: timeout, tv_nsec: 20_000_000 };
            let mut poll = [PollFd::new(&pipe, PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&limit)).map(|_| poll[0].revents().contains(PollFlags::IN))
        };
        ensure!(!ready(0)?, "ready without a record");
        hit(1);
        ensure!(ready(5)?, "not ready with a record");
        drop(pipe);
        // A blocking reader receives the record as soon as it exists.
        set(&dir, "trace", "")?;
        let reader = std::thread::spawn({
            let path = dir.join("trace_pipe");
            move || -> std::io::Result<(usize, Instant)> {
                let length = File::open(path)?.read(&mut [0; 4096])?;
                Ok((length, Instant::now()))
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        ensure!(!reader.is_finished(), "the reader did not wait");
        let start = Instant::now();
        hit(1);
        let (length, end) = reader.join().ok().context("the reader failed")??;
        println!("woken after {:?}", end - start);
        ensure!(length > 50 && end - start < Duration::from_secs(2), "{length} bytes");
        // A signal ends another reader's wait.
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            // A shell that runs the tests in the background may ignore SIGINT, and child processes inherit that.
            let mut cat = Command::new("env");
            let mut cat = cat.args(["--default-signal", "cat"]).arg(dir.join("trace_pipe")).spawn()?;
            std::thread::sleep(Duration::from_millis(150));
            let pid = rustix::process::Pid::from_child(&cat);
            let start = Instant::now();
            rustix::process::kill_process(
                pid,
                rustix::process::Signal::from_named_raw(signal).context("signal")?,
            )?;
            let status = cat.wait()?;
            ensure!(start.elapsed() < Duration::from_secs(2) && !status.success(), "{status}");
        }
        Ok(())
    });
}

#[test]
fn marks_are_recorded_in_order() {
    host::as_root(|| {
        let mounted = Mounted::start("marks")?;
        let dir = mounted.instance("marks")?;
        let oracle = Oracle::create("marks")?;
        oracle.tracing(true)?;
        let mut takes = Vec::new();
        for name in [&dir, &oracle.dir().to_owned()] {
            let mut marker = File::options().append(true).open(name.join("trace_marker"))?;
            for text in ["one\n", "two", "", "three\nlines\n", "%s %d"] {
                marker.write_all(text.as_bytes())?;
            }
            let long = "x".repeat(5000);
            let taken = marker.write(long.as_bytes())?;
            ensure!(taken < 5000, "{taken}");
            takes.push(taken);
            let mut raw = File::options().append(true).open(name.join("trace_marker_raw"))?;
            raw.write_all(&[1, 2, 0, 0, 0xab, 0xcd])?;
            ensure!(raw.write(&[1, 2, 3]).is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)));
        }
        let kernel = mirror::bodies(&String::from_utf8(std::fs::read(oracle.trace_path())?)?);
        let ours = mirror::bodies(&text(&dir, "trace")?);
        // Kernels before 6.8 accept 1,024 bytes at a time; then only that part of a long mark is compared.
        let least = if takes[0] == takes[1] { usize::MAX } else { takes[1] };
        // The kernel pads raw data with the previous content of the memory.
        let cut = |bodies: &[String]| -> Vec<String> {
            let cut = |b: &String| b.split(" cd").next().unwrap_or_default().chars().take(least).collect();
            bodies.iter().map(cut).collect()
        };
        let lengths = |bodies: &[String]| bodies.iter().map(String::len).collect::<Vec<_>>();
        ensure!(cut(&ours) == cut(&kernel), "{:?} and {:?} bytes", lengths(&ours), lengths(&kernel));
        // A mark is visible to the next read, in its place between events.
        arm(&dir)?;
        for clock in ["local", "boot", "counter"] {
            set(&dir, "trace_clock", clock)?;
            let mut expected = Vec::new();
            for round in 0..50 {
                hit(1);
                set(&dir, "trace_marker", &format!("mark {round}"))?;
                expected.extend(["hit".to_owned(), format!("mark {round}")]);
                let shown = mirror::bodies(&text(&dir, "trace")?);
                let kind = |body: &String| match body.strip_prefix("tracing_mark_write: ") {
                    Some(mark) => mark.to_owned(),
                    None if body.starts_with("sys_getpgid") => "hit".to_owned(),
                    None => body.clone(),
                };
                ensure!(shown.iter().map(kind).eq(expected.iter().cloned()), "{clock}: {shown:?}");
            }
        }
        set(&dir, "options/markers", "0")?;
        ensure!(mirror::write(&dir, "trace_marker", b"x", true) == Err(libc::EINVAL));
        set(&dir, "options/markers", "1")?;
        set(&dir, "tracing_on", "0")?;
        ensure!(mirror::write(&dir, "trace_marker", b"x", true) == Err(libc::EBADF));
        Ok(())
    });
}

#[test]
fn pages_are_those_of_the_kernels_ring_buffer() {
    host::as_root(|| {
        let mounted = Mounted::start("pages")?;
        let dir = mounted.instance("pages")?;
        arm(&dir)?;
        hit(5000);
        set(&dir, "tracing_on", "0")?;
        let id: u16 = text(&dir, &format!("{EVENT}/id"))?.trim().parse()?;
        let times: BTreeSet<String> = text(&dir, "trace")?
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.split(": ").next()?.split_whitespace().last()?.to_owned()))
            .collect();
        let layout = Layout::of(&dir)?;
        let mut seen = 0;
        for cpu in 0..mirror::names(&dir.join("per_cpu"))?.len() as u32 {
            let path = dir.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            for record in layout.drain(&path, cpu)? {
                ensure!(record.payload[..2] == id.to_ne_bytes(), "{record:?}");
                let micros = (record.time + 500) / 1000;
                let shown = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
                ensure!(times.contains(&shown), "{shown} is no line's");
                seen += 1;
            }
        }
        ensure!(seen == 5000, "{seen} records");
        ensure!(stat(&dir, "entries")? == 0 && stat(&dir, "read events")? == 5000);
        Ok(())
    });
}

#[test]
fn lists_of_threads_are_enforced_and_followed() {
    host::as_root(|| {
        let mounted = Mounted::start("pids")?;
        let dir = mounted.instance("pids")?;
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        let here = || std::thread::spawn(|| hit(10)).join();
        arm(&dir)?;
        here().ok().context("a thread failed")?;
        ensure!(stat(&dir, "entries")? == 0, "a thread that is not in the list");
        set(&dir, "options/event-fork", "1")?;
        here().ok().context("a thread failed")?;
        ensure!(stat(&dir, "entries")? == 10, "the child of a thread in the list");
        // The kernel forgets a thread some time after its end.
        let start = Instant::now();
        while text(&dir, "set_event_pid")? != format!("{own}\n") {
            ensure!(start.elapsed() < Duration::from_secs(10), "ended threads stay in the list");
            std::thread::sleep(Duration::from_millis(10));
        }
        set(&dir, "set_event_notrace_pid", &own)?;
        hit(10);
        ensure!(stat(&dir, "entries")? == 10, "a thread in both lists");
        set(&dir, "set_event_notrace_pid", "")?;
        hit(10);
        ensure!(stat(&dir, "entries")? == 20, "the list was taken away");
        Ok(())
    });
}

#[test]
fn snapshots_keep_the_records() {
    host::as_root(|| {
        let mounted = Mounted::start("snapshot")?;
        let dir = mounted.instance("snapshot")?;
        arm(&dir)?;
        let counts = || -> Result<(usize, usize)> {
            let lines = |file| -> Result<usize> { Ok(mirror::bodies(&text(&dir, file)?).len()) };
            Ok((lines("snapshot")?, lines("trace")?))
        };
        ensure!(text(&dir, "snapshot")?.contains("* Snapshot is freed *"));
        hit(5);
        set(&dir, "snapshot", "1")?;
        ensure!(counts()? == (5, 0), "{:?}", counts());
        hit(3);
        // The buffers are swapped, as the kernel swaps them.
        set(&dir, "snapshot", "1")?;
        ensure!(counts()? == (3, 5), "{:?}", counts());
        set(&dir, "snapshot", "2")?;
        ensure!(counts()? == (0, 5), "{:?}", counts());
        ensure!(text(&dir, "snapshot")?.contains("* Snapshot is allocated *"));
        for (file, value) in [("snapshot", "x"), ("snapshot", ""), ("per_cpu/cpu0/snapshot", "0")] {
            ensure!(
                mirror::write(&dir, file, value.as_bytes(), true)
                    == if value.is_empty() { Ok(()) } else { Err(libc::EINVAL) }
            );
        }
        set(&dir, "snapshot", "1")?;
        let mut seen = 0;
        let layout = Layout::of(&dir)?;
        for cpu in 0..mirror::names(&dir.join("per_cpu"))?.len() as u32 {
            seen += layout.drain(&dir.join(format!("per_cpu/cpu{cpu}/snapshot_raw")), cpu)?.len();
        }
        ensure!(seen == 5, "{seen} records in pages");
        set(&dir, "snapshot", "0")?;
        ensure!(text(&dir, "snapshot")?.contains("* Snapshot is freed *"));
        Ok(())
    });
}

/// Whether all threads of a process sleep.
fn is_idle(pid: u32) -> Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // A thread may end during the loop.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 'D'])) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[test]
fn full_rings_are_drained_without_a_reader() {
    host::as_root(|| {
        let mounted = Mounted::start("unread")?;
        let dir = mounted.instance("unread")?;
        set(&dir, "buffer_size_kb", "65536")?;
        arm(&dir)?;
        // Five times the size of a ring. After each part of it the daemon is idle, so that it has drained what it was woken
        // for, on a slow machine too.
        for _ in 0..250 {
            hit(1000);
            std::thread::sleep(Duration::from_millis(2));
            let start = Instant::now();
            while !is_idle(mounted.pid())? {
                ensure!(start.elapsed() < Duration::from_secs(60), "the daemon is not idle");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (entries, dropped) = (stat(&dir, "entries")?, stat(&dir, "dropped events")?);
        ensure!((entries, dropped) == (250_000, 0), "{entries} and {dropped}");
        Ok(())
    });
}

#[test]
fn clocks_count_in_their_units() {
    host::as_root(|| {
        let mounted = Mounted::start("clocks")?;
        let dir = mounted.instance("clocks")?;
        arm(&dir)?;
        for clock in text(&dir, "trace_clock")?.replace(['[', ']'], "").split_whitespace() {
            set(&dir, "trace_clock", clock)?;
            hit(100);
            let trace = text(&dir, "trace")?;
            let stamps: Vec<f64> = trace
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| {
                    Ok(line
                        .split(": ")
                        .next()
                        .and_then(|l| l.split_whitespace().last())
                        .context("no time")?
                        .parse()?)
                })
                .collect::<Result<_>>()?;
            ensure!(stamps.len() == 100 && stamps.is_sorted(), "{clock}: {} records", stamps.len());
            if clock == "counter" {
                ensure!(stamps.windows(2).all(|two| (two[1] - two[0] - 1.0).abs() < 0.5), "{stamps:?}");
            }
        }
        Ok(())
    });
}
