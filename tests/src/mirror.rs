//! The mirror under test: `tracer mount` with its own mount point, and functions that access files of a mirror and of
//! the kernel's tracefs in the same way.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::host;
use crate::tracer::{Outcome, Running, Tracer};

/// A mounted mirror, which is unmounted on drop.
#[derive(Debug)]
pub struct Mounted {
    running: Option<Running>,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts a mirror.
    ///
    /// # Errors
    /// When it cannot be mounted, with the daemon's output.
    pub fn start(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::at(std::env::temp_dir().join(format!("tracer-{purpose}-{}-{number}", std::process::id())))
    }

    /// Mounts a mirror at this path.
    ///
    /// # Errors
    /// When it cannot be mounted, with the daemon's output.
    pub fn at(dir: PathBuf) -> Result<Self> {
        Self::with(dir, &[])
    }

    /// Mounts a mirror at this path with more arguments.
    ///
    /// # Errors
    /// When it cannot be mounted, with the daemon's output.
    pub fn with(dir: PathBuf, arguments: &[&str]) -> Result<Self> {
        let running = Tracer::new([Path::new("mount"), &dir])?.args(arguments).start()?;
        Ok(Self { running: Some(running), dir })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().map_or(0, Running::pid)
    }

    /// Helper processes of the daemon with this name, in the order in which they were started.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn helpers(&self, name: &str) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((own, rest)) = stat.rsplit_once(") ") else { continue };
            let mut words = rest.split(' ');
            let (state, parent) = (words.next(), words.next().and_then(|word| word.parse::<u32>().ok()));
            if own.ends_with(&format!("({name}")) && parent == Some(self.pid()) && state != Some("Z") {
                found.push(pid);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Creates an instance and returns its directory.
    ///
    /// # Errors
    /// The errors of mkdir(2).
    pub fn instance(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join("instances").join(name);
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(dir)
    }

    /// Interrupts the daemon and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(mut self) -> Result<Outcome> {
        self.running.take().context("it runs")?.stop()
    }

    /// Does the same as [`Mounted::stop`] with a time limit: the kernel detaches many events slowly.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop_within(mut self, limit: Duration) -> Result<Outcome> {
        self.running.take().context("it runs")?.stop_within(limit)
    }

    /// Waits for the end of a daemon that a signal ends.
    ///
    /// # Errors
    /// When it does not end.
    pub fn ended_within(mut self, limit: Duration) -> Result<Outcome> {
        self.running.take().context("it runs")?.wait_within(limit)
    }

    /// Kills the daemon; the kernel cleans up after it.
    pub fn kill(&mut self) {
        drop(self.running.take());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(running) = self.running.take()
            && let Err(error) = running.stop()
        {
            eprintln!("{error:#}");
        }
        // Only a killed daemon leaves a mount behind.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Unmounts a mirror without `MNT_DETACH`, which fails while a process uses it. A child that another test forks holds
/// its parent's descriptors until it executes its program, so `EBUSY` counts only if it remains.
///
/// # Errors
/// When the mirror cannot be unmounted, or is in use for ten seconds.
pub fn unmount_unused(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + host::patience(Duration::from_secs(10));
    loop {
        match unmount(dir, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            done => return done.with_context(|| format!("cannot unmount {}", dir.display())),
        }
    }
}

/// The result of a write; the error is an errno.
pub type Answer = Result<(), i32>;

/// Writes to a file as a shell does: `>` truncates it first, `>>` does not. After a short write it writes the
/// remainder again.
///
/// # Errors
/// The errno.
pub fn write(dir: &Path, file: &str, text: &[u8], append: bool) -> Answer {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut file = File::options().write(true).truncate(!append).open(dir.join(file)).map_err(number)?;
    file.write_all(text).map_err(number)
}

/// Reads a file in large pieces, as `cat` does.
///
/// # Errors
/// The errno.
pub fn read(dir: &Path, file: &str) -> Result<Vec<u8>, i32> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut file = File::open(dir.join(file)).map_err(number)?;
    let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 17]);
    loop {
        match file.read(&mut piece).map_err(number)? {
            0 => return Ok(all),
            length => all.extend_from_slice(&piece[..length]),
        }
    }
}

/// A file's text.
///
/// # Errors
/// The errors of the file, with its name.
pub fn text(dir: &Path, file: &str) -> Result<String> {
    let bytes = read(dir, file).map_err(std::io::Error::from_raw_os_error);
    Ok(String::from_utf8_lossy(&bytes.with_context(|| file.to_owned())?).into_owned())
}

/// Writes to a file; a refusal is an error.
///
/// # Errors
/// The errors of the file, with its name.
pub fn set(dir: &Path, file: &str, value: &str) -> Result<()> {
    let done = write(dir, file, value.as_bytes(), false).map_err(std::io::Error::from_raw_os_error);
    done.with_context(|| format!("{value:?} to {file}"))
}

/// The lines of a trace without task, CPU, flags and time, which change from run to run.
pub fn bodies(trace: &str) -> Vec<String> {
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect()
}

/// `missed events on all CPUs` of an instance, which every CPU's file shows.
///
/// # Errors
/// The file cannot be read, or shows no such number.
pub fn missed(dir: &Path) -> Result<u64> {
    let stats = text(dir, "per_cpu/cpu0/stats")?;
    let line = stats.lines().find_map(|line| line.strip_prefix("missed events on all CPUs: "));
    Ok(line.context("no count of missed events")?.parse()?)
}

/// The hits that an instance may lack, because the kernel ran no program for them and counted them: 0 before 7.0, where
/// no program at a raw tracepoint is preempted.
///
/// # Errors
/// As [`missed`].
pub fn may_lack(dir: &Path) -> Result<u64> {
    if tracer_user::kernel::version() < (7, 0) { Ok(0) } else { missed(dir) }
}

/// The sum of a key of `stats` over all CPUs.
///
/// # Errors
/// When there is no such key.
pub fn stat(dir: &Path, key: &str) -> Result<u64> {
    let mut sum = 0;
    for cpu in names(&dir.join("per_cpu"))? {
        let stats = text(dir, &format!("per_cpu/{cpu}/stats"))?;
        let line = stats.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        sum += line.with_context(|| format!("no {key}"))?.parse::<u64>()?;
    }
    Ok(sum)
}

/// The names in a directory.
///
/// # Errors
/// The errors of the directory.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    ensure!(!names.is_empty(), "{} is empty", dir.display());
    Ok(names)
}

/// Whether a line of a stack is one of the functions through which the kernel calls a tracer. They differ between
/// tracers, and the last function depends on the number of tracers.
pub fn is_of_the_hook(line: &str) -> bool {
    let hooks = ["__traceiter_", "trace_event_raw_event_", "ftrace_syscall_", "perf_trace_", "perf_syscall_"];
    line.strip_prefix(" => ").is_some_and(|name| hooks.iter().any(|hook| name.starts_with(hook)))
}

/// Functions of each stack in a trace, the innermost first.
pub fn stacks(trace: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for line in trace.lines() {
        if line.ends_with("<stack trace>") {
            all.push(Vec::new());
        } else if let (Some(name), Some(last), false) =
            (line.strip_prefix(" => "), all.last_mut(), is_of_the_hook(line))
        {
            last.push(name.to_owned());
        }
    }
    all
}
