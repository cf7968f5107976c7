//! Processes that end while a file system of theirs does not answer. The kernel tears down the address space in the
//! thread that drops the last reference to it. A reader of a file of `/proc/PID` that has a reference can be that thread.

use std::fs::read;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::blocked_fs::BlockedFs;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_user::kernel::proc::process_of;

use crate::timed::await_true;

/// How many processes end while they are read.
const ENDS: usize = 6;
/// A read that takes this long waits for the file system.
const HANGS: Duration = Duration::from_millis(300);

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
    fn start(read: Read, pid: u32) -> Self {
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
type Read = fn(u32) -> bool;

/// What the owner of the tree reads of a thread that may be ending.
const READ: [(&str, Read); 2] = [
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
                std::thread::sleep(HANGS);
                // A reader that waits for the file system can only continue after this.
                let before = Instant::now();
                let present: Vec<_> = readers.iter().filter_map(Reading::present).collect();
                waited += usize::from(held.release_writes());
                let hangs = |since: &Instant| before.duration_since(*since) > HANGS * 2 / 3;
                ensure!(!present.iter().any(hangs), "{name}: a reader waits");
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
        let references = |read: Read| -> Result<usize> {
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
