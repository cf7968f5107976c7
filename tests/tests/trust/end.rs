//! The end of a daemon: SIGTERM and SIGINT end it, independent of what it does and of clients that wait. Nothing stays
//! mounted. `events::hooks` tests the end with many attached programs, and `./x bench --only delays` measures it.

use std::{fs::File, io::Read, sync::mpsc::channel, thread::JoinHandle, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    thread::gettid,
};
use tracer_tests::{
    host,
    mirror::{Mounted, set},
};

use crate::timed::{Client, await_true, largest, soon};

/// Ends a daemon by a signal. Nothing is mounted at its place afterwards, although a client may have open files.
fn end(mounted: Mounted, signal: Signal) -> Result<()> {
    let dir = mounted.dir().to_str().context("a path")?.to_owned();
    let pid = Pid::from_raw(mounted.pid().cast_signed()).context("no process")?;
    kill_process(pid, signal)?;
    mounted.ended_within(soon())?.success()?;
    ensure!(!std::fs::read_to_string("/proc/self/mounts")?.contains(&dir), "{dir} is still mounted");
    Ok(())
}

/// Starts a thread, and returns once it sleeps in `act`.
fn asleep<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let (send, started) = channel();
    let thread = std::thread::spawn(move || {
        let _ = send.send(gettid());
        act()
    });
    let stat = format!("/proc/self/task/{}/stat", started.recv()?.as_raw_nonzero());
    await_true("the thread sleeps", || {
        Ok(std::fs::read_to_string(&stat)?.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    })?;
    Ok(thread)
}

#[test]
fn a_daemon_ends_while_it_enables_events() {
    host::as_root(|| {
        for wait in [20, 100, 300] {
            let mounted = Mounted::start("enabling")?;
            let dir = mounted.dir().to_owned();
            set(&dir, "set_event_pid", &std::process::id().to_string())?;
            let enabling = std::thread::spawn(move || {
                let _ = set(&dir, "events/syscalls/enable", "1");
                largest(&dir).map(|system| set(&dir, &format!("events/{system}/enable"), "1"))
            });
            std::thread::sleep(Duration::from_millis(wait));
            end(mounted, Signal::TERM).with_context(|| format!("after {wait} ms"))?;
            let _ = enabling.join();
        }
        Ok(())
    });
}

#[test]
fn a_daemon_ends_while_clients_wait() {
    host::as_root(|| {
        for signal in [Signal::TERM, Signal::INT] {
            let mounted = Mounted::start("waiting")?;
            let dir = mounted.dir().to_owned();
            let held = File::open(dir.join("trace"))?;
            let mut pipe = File::open(dir.join("trace_pipe"))?;
            let reader = asleep(move || pipe.read(&mut [0; 64]).map_err(|error| error.raw_os_error()))?;
            let polled = rustix::fs::open(
                dir.join("per_cpu/cpu0/trace_pipe_raw"),
                OFlags::RDONLY | OFlags::NONBLOCK,
                Mode::empty(),
            )?;
            let poller = asleep(move || poll(&mut [PollFd::new(&polled, PollFlags::IN)], None))?;
            let path = dir.join("per_cpu/cpu1/trace_pipe_raw").to_string_lossy().into_owned();
            let mut mapping = Client::start(&["touch", &path, "0", "0"])?;
            mapping.blocks()?;
            ensure!(
                mapping.0.try_wait()?.is_none() && !reader.is_finished() && !poller.is_finished(),
                "a client does not wait"
            );
            end(mounted, signal).with_context(|| format!("{signal:?}"))?;
            let ended = mapping.ended_by(soon())?;
            ensure!(ended == Some(libc::SIGBUS), "the mapping: {ended:?}, {:?}", mapping.0.try_wait()?);
            ensure!(reader.join().is_ok_and(|read| read.is_err()), "the reader got something");
            ensure!(poller.join().is_ok_and(|ready| ready.is_ok()), "the poller waits");
            drop(held);
        }
        Ok(())
    });
}
