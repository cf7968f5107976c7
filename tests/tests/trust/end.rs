//! The end of a daemon: SIGTERM ends it soon, independent of attached programs and waiting clients.

use std::{
    fs::File,
    io::Read,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
};
use tracer_tests::{
    host,
    mirror::{Mounted, set},
};

use crate::timed::{Client, alone, largest, soon};

/// The time between SIGTERM and the end of a daemon.
fn end(mounted: Mounted) -> Result<Duration> {
    let pid = Pid::from_raw(mounted.pid().cast_signed()).context("no process")?;
    let start = Instant::now();
    kill_process(pid, Signal::TERM)?;
    mounted.stop_within(host::patience(Duration::from_secs(30)))?.success()?;
    Ok(start.elapsed())
}

/// Ends a daemon with all events of the machine enabled, and waits until another process has closed them. The kernel
/// holds a lock during that time. An emulated machine would take many minutes.
fn end_with_all_events(check: impl Fn(&str, Duration) -> Result<()>) -> Result<()> {
    if host::part() > 1 {
        return Ok(());
    }
    let mounted = Mounted::start("all")?;
    let closer = children(mounted.pid())?.into_iter().find(|child| name_of(*child) == "tracer-closer");
    let closer = closer.context("no process closes events")?;
    set(mounted.dir(), "set_event_pid", &std::process::id().to_string())?;
    for value in ["1", "0", "1"] {
        set(mounted.dir(), "events/enable", value)?;
    }
    check("with all events on", end(mounted)?)?;
    let start = Instant::now();
    while name_of(closer) == "tracer-closer" && !is_zombie(closer) {
        ensure!(start.elapsed() < Duration::from_secs(300), "events are still being closed");
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("all events were closed after {:?}", start.elapsed());
    Ok(())
}

/// The child processes of a process.
fn children(pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("children"))?;
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    Ok(all)
}

/// The name of a process, empty if it is gone.
fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with('Z'))
}

#[test]
fn the_end_comes_within_two_seconds_in_every_state() {
    alone(|| {
        let check = |state: &str, took: Duration| {
            println!("{state}: ended after {took:?}");
            ensure!(took <= host::patience(Duration::from_secs(2)), "{state}: ended after {took:?}");
            Ok(())
        };
        check("idle", end(Mounted::start("idle")?)?)?;

        let mounted = Mounted::start("on")?;
        set(mounted.dir(), "set_event_pid", &std::process::id().to_string())?;
        set(mounted.dir(), "events/syscalls/enable", "1")?;
        set(mounted.dir(), &format!("events/{}/enable", largest(mounted.dir())?), "1")?;
        check("with many events on", end(mounted)?)?;
        end_with_all_events(check)?;

        for wait in [20, 100, 300] {
            let mounted = Mounted::start("enabling")?;
            let dir = mounted.dir().to_owned();
            set(&dir, "set_event_pid", &std::process::id().to_string())?;
            let enabling = std::thread::spawn(move || {
                let _ = set(&dir, "events/syscalls/enable", "1");
                largest(&dir).map(|system| set(&dir, &format!("events/{system}/enable"), "1"))
            });
            std::thread::sleep(Duration::from_millis(wait));
            check("while events are turned on", end(mounted)?)?;
            let _ = enabling.join();
        }

        let mounted = Mounted::start("waiting")?;
        let dir = mounted.dir().to_owned();
        let mut pipe = File::open(dir.join("trace_pipe"))?;
        let reader =
            std::thread::spawn(move || pipe.read(&mut [0; 64]).map_err(|error| error.raw_os_error()));
        let polled = rustix::fs::open(
            dir.join("per_cpu/cpu0/trace_pipe_raw"),
            OFlags::RDONLY | OFlags::NONBLOCK,
            Mode::empty(),
        )?;
        let poller = std::thread::spawn(move || {
            let mut fds = [rustix::event::PollFd::new(&polled, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None)
        });
        let path = dir.join("per_cpu/cpu1/trace_pipe_raw").to_string_lossy().into_owned();
        let mut mapping = Client::start(&["touch", &path, "0", "0"])?;
        std::thread::sleep(Duration::from_millis(200));
        ensure!(mapping.0.try_wait()?.is_none() && !reader.is_finished(), "nobody waits");
        check("with a reader, a poller and a mapping that wait", end(mounted)?)?;
        let ended = mapping.ended_by(soon())?;
        ensure!(ended == Some(libc::SIGBUS), "the mapping: {ended:?}, {:?}", mapping.0.try_wait()?);
        ensure!(reader.join().is_ok_and(|read| read.is_err()), "the reader got something");
        ensure!(poller.join().is_ok_and(|ready| ready.is_ok()), "the poller waits");
        Ok(())
    });
}
