//! The mirror under test: `tracer mount` at a place of its own, and one way to use files of it and of the kernel's
//! tracefs alike.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};

use crate::tracer::{Outcome, Running, Tracer};

/// A mirror that is mounted, until this is dropped.
#[derive(Debug)]
pub struct Mounted {
    running: Option<Running>,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts one.
    ///
    /// # Errors
    /// When it cannot be mounted, with what it said.
    pub fn start(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::at(std::env::temp_dir().join(format!("tracer-{purpose}-{}-{number}", std::process::id())))
    }

    /// Mounts one at this place.
    ///
    /// # Errors
    /// When it cannot be mounted, with what it said.
    pub fn at(dir: PathBuf) -> Result<Self> {
        Self::with(dir, &[])
    }

    /// Mounts one at this place with more arguments.
    ///
    /// # Errors
    /// When it cannot be mounted, with what it said.
    pub fn with(dir: PathBuf, arguments: &[&str]) -> Result<Self> {
        let running = Tracer::new([Path::new("mount"), &dir])?.args(arguments).start()?;
        Ok(Self { running: Some(running), dir })
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().map_or(0, Running::pid)
    }

    /// Processes of this name that work for the daemon, in the order in which they were started.
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

    /// Makes an instance and gives its directory.
    ///
    /// # Errors
    /// Those of mkdir(2).
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

    /// The same, with more patience: the kernel takes its time where many events hang.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop_within(mut self, limit: Duration) -> Result<Outcome> {
        self.running.take().context("it runs")?.stop_within(limit)
    }

    /// Kills the daemon; what it leaves is the kernel's.
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
        // Nothing is mounted any more unless the daemon was killed.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.dir);
    }
}

/// What a write came to: nothing, or the error number.
pub type Answer = Result<(), i32>;

/// Writes to a file as a shell does: `>` empties it first, `>>` does not, and what a write leaves is written again.
///
/// # Errors
/// The error number.
pub fn write(dir: &Path, file: &str, text: &[u8], append: bool) -> Answer {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut file = File::options().write(true).truncate(!append).open(dir.join(file)).map_err(number)?;
    file.write_all(text).map_err(number)
}

/// Reads a file in large pieces, as `cat` does.
///
/// # Errors
/// The error number.
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
/// Those of the file, with its name.
pub fn text(dir: &Path, file: &str) -> Result<String> {
    let bytes = read(dir, file).map_err(std::io::Error::from_raw_os_error);
    Ok(String::from_utf8_lossy(&bytes.with_context(|| file.to_owned())?).into_owned())
}

/// Writes to a file and wants it to be taken.
///
/// # Errors
/// Those of the file, with its name.
pub fn set(dir: &Path, file: &str, value: &str) -> Result<()> {
    let done = write(dir, file, value.as_bytes(), false).map_err(std::io::Error::from_raw_os_error);
    done.with_context(|| format!("{value:?} to {file}"))
}

/// Lines of a trace without what changes from one run to the next: who, where and when.
pub fn bodies(trace: &str) -> Vec<String> {
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect()
}

/// The number behind a key of all CPUs' `stats`, summed up.
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
/// Those of the directory.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    ensure!(!names.is_empty(), "{} is empty", dir.display());
    Ok(names)
}

/// Whether a line of a stack is one of the functions through which a tracer is called, which every tracer has others of;
/// whether the last one shows depends on how many tracers there are.
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
