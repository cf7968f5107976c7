//! Processes that hold the lock of their address space indefinitely. No client may wait for them, neither for the
//! names of their mapped files nor for probes of these files.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tracer_tests::blocked_fs::BlockedFs;
use tracer_tests::host;
use tracer_tests::mirror::{self, set, text};
use tracer_tests::tracer::{Running, Tracer};

use crate::timed::{await_true, soon, within};
use crate::{entry, hits, run};

/// An unprivileged user's process that holds its address space's lock. Dropping it releases the lock.
struct Stuck {
    held: BlockedFs,
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Stuck {
    /// Starts the process, which maps `mapped`.
    fn start(purpose: &str, mapped: &Path) -> Result<Self> {
        let held = BlockedFs::mount(purpose)?;
        let mut command = host::binary_as(65534, 65534, "tracer-test-stuck", "TRACER_TEST_STUCK_BIN")?;
        command.arg(held.file()).arg(mapped);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut stuck = Self { held, child, said };
        stuck.hear("ready")?;
        Ok(stuck)
    }

    fn hear(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        ensure!(line.trim() == word, "{line}");
        Ok(())
    }

    /// Makes the process hold the lock.
    fn hold(&mut self) -> Result<()> {
        self.child.stdin.take().context("a pipe")?.write_all(b"\n")?;
        self.hear("stuck")?;
        // The process prints this before it takes the lock.
        await_true("the process waits", || Ok(threads(self.child.id())?.contains(&'D')))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.held.release();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The states of a process's threads.
pub(crate) fn threads(pid: u32) -> Result<Vec<char>> {
    let mut states = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        states.extend(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()));
    }
    Ok(states)
}

/// A directory that is removed on drop, with the mount at its `mirror`.
struct Scratch(PathBuf);

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-stuck-{purpose}-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir))
    }

    /// A program in a separate file.
    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::copy("/bin/true", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    fn mirror(&self) -> Result<(PathBuf, Running)> {
        let place = self.0.join("mirror");
        let running = Tracer::new([Path::new("mount"), &place])?.start()?;
        Ok((place, running))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = unmount(self.0.join("mirror"), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a function in a separate thread, because it may never return; delivers the result and the duration.
fn beside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Receiver<(T, Duration)> {
    let (to, answer) = channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        let done = act();
        let _ = to.send((done, start.elapsed()));
    });
    answer
}

/// Reads a file and writes a mark several times, as other clients that must be served. Returns the longest time.
fn others(dir: &Path) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let own = dir.to_owned();
        let answer = beside(move || {
            text(&own, "tracing_on")?;
            // A file that is opened with truncation may change, so it would wait for writes; this open appends.
            let done = mirror::write(&own, "trace_marker", b"still here", true);
            done.map_err(|error| anyhow::anyhow!("a mark: {error}"))
        });
        let (done, took) = answer.recv_timeout(soon()).context("other files hang")?;
        done?;
        longest = longest.max(took);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(longest)
}

/// The first line of each user stack of a thread, where the kernel shows the file of an address. The test beside this
/// one has a process of the same name.
fn stacks(trace: &str, thread: u32) -> Vec<&str> {
    let thread = format!("-{thread} ");
    let lines = trace.lines().zip(trace.lines().skip(1));
    let of_thread = |line: &str| line.contains(&thread) && line.ends_with("<user stack trace>");
    lines.filter(|(line, next)| of_thread(line) && next.starts_with(" =>")).map(|(_, next)| next).collect()
}

#[test]
fn no_client_waits_for_the_files_of_a_process_that_holds_its_lock() {
    host::as_root(|| {
        let scratch = Scratch::new("maps")?;
        let (place, running) = scratch.mirror()?;
        set(&place, "options/userstacktrace", "1")?;
        set(&place, "options/sym-userobj", "1")?;
        // Shells call it too.
        set(&place, "events/syscalls/sys_enter_getpgid/filter", "comm == \"tracer-test-stu\"")?;
        set(&place, "events/syscalls/sys_enter_getpgid/enable", "1")?;
        let mut stuck = Stuck::start("maps", Path::new("/bin/true"))?;
        set(&place, "events/syscalls/sys_enter_getpgid/enable", "0")?;
        let before = text(&place, "trace")?;
        ensure!(stacks(&before, stuck.pid()).len() == 3, "{before}");
        ensure!(stacks(&before, stuck.pid()).iter().all(|line| line.contains("[+0x")), "{before}");
        stuck.hold()?;
        await_true("the daemon discards what it knows of the process", || {
            let own = place.clone();
            let trace = within(soon(), move || text(&own, "trace")).context("a read hangs")??;
            Ok(stacks(&trace, stuck.pid()).iter().all(|line| line.starts_with(" =>  <")))
        })?;
        for reader in ["trace", "trace", "trace_pipe"] {
            let own = place.clone();
            let answer = beside(move || {
                if reader == "trace" {
                    return text(&own, reader);
                }
                let mut pipe = fs::File::open(own.join(reader))?;
                let mut bytes = vec![0; 1 << 16];
                let length = std::io::Read::read(&mut pipe, &mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
            });
            let longest = others(&place)?;
            let (trace, took) = answer.recv_timeout(soon()).context("a read hangs")?;
            let trace = trace?;
            ensure!(stacks(&trace, stuck.pid()).len() == 3 || reader == "trace_pipe", "{trace}");
            ensure!(stacks(&trace, stuck.pid()).iter().all(|line| line.starts_with(" =>  <")), "{trace}");
            eprintln!("{reader}: {took:?}; others {longest:?} at most");
        }
        running.stop_within(soon())?.success()?;
        ensure!(threads(stuck.pid())?.contains(&'D'), "it let go before");
        Ok(())
    });
}

/// Enables or disables a probe, which makes the kernel wait. Returns the result, its duration, and the times of other
/// clients during the write.
fn enable(dir: &Path, event: &str, value: &'static str) -> Result<(mirror::Answer, Duration, Duration)> {
    let (own, file) = (dir.to_owned(), format!("events/files/{event}/enable"));
    let answer = beside(move || mirror::write(&own, &file, value.as_bytes(), false));
    let longest = others(dir)?;
    let (done, took) = answer.recv_timeout(soon()).context("a write hangs")?;
    Ok((done, took, longest))
}

/// Only one test does this, and it is short, because all forks on the machine wait while a probe waits
/// (`dup_mmap_sem`).
#[test]
fn no_client_waits_for_a_probe_of_a_file_that_such_a_process_has_mapped() {
    // Without uprobe.multi a uprobe is a perf event, and the kernel holds `event_mutex` while it waits.
    let needs_mutex = host::kernel() < (6, 6);
    host::as_root(|| {
        let scratch = Scratch::new("probe")?;
        let program = scratch.program("program")?;
        let (place, running) = scratch.mirror()?;
        let offset = entry(&program)?;
        for (event, args) in [("first", ""), ("second", " $comm")] {
            let line = format!("p:files/{event} {}:{offset:#x}{args}", program.display());
            let done = mirror::write(&place, "dynamic_events", line.as_bytes(), true);
            ensure!(done.is_ok(), "{line}: {done:?}");
        }
        set(&place, "events/files/second/enable", "1")?;
        run(&program)?;
        ensure!(hits(&place, "second")? == 1);
        {
            let mut stuck = Stuck::start("probe", &program)?;
            stuck.hold()?;
            let (done, took, longest) = enable(&place, "first", "1")?;
            eprintln!("on: {done:?} after {took:?}; others {longest:?} at most");
            ensure!(done == Err(libc::ETIMEDOUT), "{done:?}");
            // The next write returns at once, and no refused event is enabled. Where the kernel needs the mutex to
            // identify the event, the write fails; a write to the kernel's own file would wait there.
            let start = Instant::now();
            let done = mirror::write(&place, "events/syscalls/sys_enter_getsid/enable", b"1", true);
            ensure!(done == if needs_mutex { Err(libc::ETIMEDOUT) } else { Ok(()) }, "{done:?}");
            ensure!(start.elapsed() < host::patience(Duration::from_secs(1)), "{:?}", start.elapsed());
            ensure!(text(&place, "events/files/first/enable")? == "0\n");
        }
        // Links that were attached too late are closed, and refused events are disabled.
        set(&place, "events/syscalls/sys_enter_getsid/enable", "1")?;
        let (done, _, _) = enable(&place, "first", "1")?;
        ensure!(done.is_ok(), "{done:?}");
        run(&program)?;
        ensure!(hits(&place, "first")? == 1 && hits(&place, "second")? == 2, "{}", text(&place, "trace")?);
        let mut stuck = Stuck::start("off", &program)?;
        stuck.hold()?;
        let (done, took, longest) = enable(&place, "first", "0")?;
        eprintln!("off: {done:?} after {took:?}; others {longest:?} at most");
        ensure!(done.is_ok(), "{done:?}");
        // The kernel does not free a process with a thread that waits for such a lock: the mirror is unmounted and
        // the process remains as a zombie.
        let pid = running.pid();
        let start = Instant::now();
        running.signal(Signal::TERM)?;
        let is_mounted =
            || fs::read_to_string("/proc/self/mounts").map(|all| all.contains(&place.display().to_string()));
        await_true("the end", || Ok(!is_mounted()? && state(pid)? == 'Z'))
            .with_context(|| format!("{:?}", threads(pid)))?;
        eprintln!("ended but for threads {:?} after {:?}", threads(pid)?, start.elapsed());
        let start = Instant::now();
        drop(stuck);
        running.wait()?.success()?;
        eprintln!("gone {:?} after it let go", start.elapsed());
        Ok(())
    });
}

/// The state of a process, which is the state of its first thread.
fn state(pid: u32) -> Result<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).context("a state")
}
