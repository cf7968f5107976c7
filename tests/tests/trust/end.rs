//! The end of a daemon: SIGTERM and SIGINT end it, independent of what it does and of clients that wait. Nothing stays
//! mounted. `events::hooks` tests the end with many attached programs, and `./x bench --only delays` measures it.
//!
//! And the end of clients while a file system of theirs does not answer. The kernel tears down the address space in the
//! thread that drops the last reference to it. A reader of a file of `/proc/PID` that has a reference can be that thread.

use std::{
    fs::{File, read},
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    thread::gettid,
};
use tracer_tests::{
    blocked_fs::BlockedFs,
    host,
    mirror::{Mounted, set, text},
};
use tracer_user::kernel::proc::process_of;

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

/// How many processes end while they are read.
const ENDS: usize = 6;
/// How long a process has to end as far as the file system lets it.
const ENDING: Duration = Duration::from_millis(300);

/// A process with a page that its file system must take back before its address space is gone.
fn start(held: &BlockedFs) -> Result<Child> {
    let mut command = host::binary_as(65534, 65534, "tracer-test-stuck", "TRACER_TEST_STUCK_BIN")?;
    let mut child =
        command.arg("dirty").arg(held.file()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "{line}");
    Ok(child)
}

/// A thread that repeats a read until it fails.
struct Reading {
    /// The start of the read in progress.
    since: Arc<Mutex<Option<Instant>>>,
    stop: Arc<AtomicBool>,
}

impl Reading {
    fn start(read: ReadStatus, pid: u32) -> Self {
        let (since, stop) = (Arc::<Mutex<Option<Instant>>>::default(), Arc::<AtomicBool>::default());
        let (its, stops) = (Arc::clone(&since), Arc::clone(&stop));
        let set = move |at| *its.lock().unwrap_or_else(PoisonError::into_inner) = at;
        std::thread::spawn(move || {
            let mut more = true;
            while more && !stops.load(Ordering::Relaxed) {
                set(Some(Instant::now()));
                more = read(pid);
            }
            set(None);
        });
        Self { since, stop }
    }

    fn present(&self) -> Option<Instant> {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.present().is_none()
    }
}

/// Reads something of a thread; returns whether the thread exists.
type ReadStatus = fn(u32) -> bool;

/// What the owner of the tree reads of a thread that may be ending.
const READ: [(&str, ReadStatus); 2] = [
    ("comm", |pid| read(format!("/proc/{pid}/comm")).is_ok()),
    ("the process", |pid| process_of(pid).is_ok()),
];

#[test]
fn reading_an_ending_process_waits_for_no_file_system_of_it() {
    host::as_root(|| {
        let held = BlockedFs::mount("ending")?;
        held.release();
        for (name, read) in READ {
            let mut waited = 0;
            for _ in 0..ENDS {
                let mut child = start(&held)?;
                held.hold_writes();
                let readers = [Reading::start(read, child.id()), Reading::start(read, child.id())];
                child.kill()?;
                std::thread::sleep(ENDING);
                // A reader that waits for the file system continues only when that is released.
                let mark = Instant::now();
                let begins_again = |reader: &Reading| reader.present().is_none_or(|since| since > mark);
                let all_go_on =
                    await_true(&format!("{name}: no reader waits"), || Ok(readers.iter().all(begins_again)));
                waited += usize::from(held.release_writes());
                all_go_on?;
                await_true("the readers end", || Ok(readers.iter().all(Reading::has_ended)))?;
                child.wait()?;
            }
            eprintln!("{name}: the kernel waited for the file system in {waited} of {ENDS} ends");
        }
        Ok(())
    });
}

#[test]
fn what_the_owner_reads_of_a_thread_takes_no_reference_to_its_memory() {
    host::as_root(|| {
        if !host::hooks_functions() {
            host::skip(host::FUNCTION_HOOKS, "no hook for functions");
            return Ok(());
        }
        let mounted = Mounted::start("references")?;
        let dir = mounted.dir();
        set(dir, "dynamic_events", "p:ending/reference get_task_mm")?;
        set(dir, "events/ending/reference/filter", &format!("common_pid == {}", rustix::thread::gettid()))?;
        set(dir, "events/ending/reference/enable", "1")?;
        let references = |read: ReadStatus| -> Result<usize> {
            set(dir, "trace", "")?;
            ensure!(read(1), "process 1");
            Ok(text(dir, "trace")?.lines().filter(|line| line.contains(" reference: ")).count())
        };
        // The trace shows references where there are some.
        let status = references(|pid| read(format!("/proc/{pid}/status")).is_ok())?;
        let stat = references(|pid| read(format!("/proc/{pid}/stat")).is_ok())?;
        ensure!(status > 0 && stat > 0, "status {status}, stat {stat}");
        for (name, read) in READ {
            let taken = references(read)?;
            ensure!(taken == 0, "{name}: {taken}");
        }
        mounted.stop()?.success()?;
        Ok(())
    });
}
