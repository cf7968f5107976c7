//! The kernel's own tracefs as an oracle: a separate instance, which is removed on drop.
//!
//! Tests restrict it to processes that they started. It uses the clock `mono` and unhashed pointers, so that the text
//! depends only on the record.

mod line;
pub mod rawpage;
pub mod table;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::host::{self, Tracefs};

pub use line::{Flags, Line, Trace};

/// Buffer size of an instance in kilobytes per CPU, unless a test sets another.
const BUFFER_KB: u32 = 16 * 1024;

/// Time limit for the last switch from a process that has ended.
const LAST_SWITCH: Duration = Duration::from_secs(10);

/// An instance of the kernel's tracefs.
#[derive(Debug)]
pub struct Oracle {
    dir: PathBuf,
    tracefs: Tracefs,
}

impl Oracle {
    /// Creates an instance: tracing off, no events, clock `mono`, unhashed pointers.
    ///
    /// # Errors
    /// When tracefs cannot be mounted or the instance cannot be made or set up.
    pub fn create(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tracefs = Tracefs::find_or_mount()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tracer-{purpose}-{}-{number}", std::process::id());
        let dir = tracefs.root().join("instances").join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let oracle = Self { dir, tracefs };
        oracle.set("tracing_on", "0")?;
        oracle.set("trace_clock", "mono")?;
        // With `no_hash_pointers` on the kernel's command line, the option stays on. On 6.1, clearing it garbles
        // every text with a `%s`, because trace_event_format() and trace_check_vprintf() share a buffer.
        let raw = fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains("no_hash_pointers"));
        oracle.set("options/hash-ptr", if raw { "1" } else { "0" })?;
        oracle.set("buffer_size_kb", &BUFFER_KB.to_string())?;
        Ok(oracle)
    }

    /// Whether the kernel records names of tasks. The kernel counts the events that need names
    /// (`trace_event_enable_cmd_record()`). The count becomes wrong if several instances change `record-cmd` or
    /// `record-tgid` while events are enabled in others. The kernel then records no name until the next boot.
    ///
    /// # Errors
    /// When the instance cannot be made or read, or `sleep` cannot be run.
    pub fn names_tasks() -> Result<bool> {
        let oracle = Self::create("named")?;
        oracle.set("events/sched/sched_process_exec/enable", "1")?;
        for _ in 0..5 {
            oracle.tracing(true)?;
            // The kernel records the name when the task is switched out while tracing is on. A task that only ends may
            // wake its parent, which turns tracing off, before that.
            ensure!(std::process::Command::new("sleep").arg("0.01").status()?.success(), "sleep");
            oracle.tracing(false)?;
            let trace = fs::read_to_string(oracle.dir.join("trace"))?;
            if trace.lines().any(|line| line.trim_start().starts_with("sleep-")) {
                return Ok(true);
            }
        }
        host::skip("task_names", "this kernel's tracefs records names of tasks no longer");
        Ok(false)
    }

    /// The directory of the instance.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mount of the instance.
    pub fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Writes a file of the instance.
    ///
    /// # Errors
    /// The errors of the file, with its name.
    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).with_context(|| format!("{value:?} to {}", path.display()))
    }

    /// Reads a file of the instance.
    ///
    /// # Errors
    /// The errors of the file, with its name.
    pub fn get(&self, file: &str) -> Result<String> {
        let path = self.dir.join(file);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Restricts events to these threads; `forks` adds their children.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pids(&self, pids: &[u32], forks: bool) -> Result<()> {
        self.set("options/event-fork", if forks { "1" } else { "0" })?;
        let list: Vec<String> = pids.iter().map(ToString::to_string).collect();
        self.set("set_event_pid", &list.join(" "))
    }

    /// Sets an event's filter; a refusal returns the kernel's errno.
    ///
    /// # Errors
    /// The errors of the write: `EINVAL` for a filter that the kernel does not accept.
    pub fn filter(&self, event: &str, filter: &str) -> io::Result<()> {
        fs::write(self.event_file(event, "filter"), filter)
    }

    /// The content of the event's filter file: the filter, or the error of the last refusal with its caret.
    ///
    /// # Errors
    /// When there is no such event.
    pub fn filter_text(&self, event: &str) -> io::Result<String> {
        // The file returns its text to the first read only, so the buffer must be large enough.
        let mut bytes = vec![0; 1 << 14];
        let length = fs::File::open(self.event_file(event, "filter"))?.read(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Enables or disables an event.
    ///
    /// # Errors
    /// When there is no such event or the kernel refuses it.
    pub fn enable(&self, event: &str, on: bool) -> Result<()> {
        let path = self.event_file(event, "enable");
        fs::write(&path, if on { "1" } else { "0" }).with_context(|| path.display().to_string())
    }

    /// Turns tracing on or off; events keep their state.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn tracing(&self, on: bool) -> Result<()> {
        self.set("tracing_on", if on { "1" } else { "0" })
    }

    /// Empties the buffers.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn clear(&self) -> Result<()> {
        self.set("trace", "")
    }

    /// Reads and parses `trace`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn trace(&self) -> Result<Trace> {
        let bytes = fs::read(self.dir.join("trace")).context("trace")?;
        Ok(Trace::parse(&bytes))
    }

    /// Waits until the last switch from an ended process is recorded, after which it has no more hits. Needs
    /// `sched:sched_switch`. Returns after ten seconds without it, and the comparison of the records then decides.
    ///
    /// # Errors
    /// When `trace` cannot be read.
    pub fn until_last_switch(&self, pid: u32) -> Result<()> {
        let (end, from) = (Instant::now() + host::patience(LAST_SWITCH), format!("prev_pid={pid} "));
        let is_last = |line: &Line| {
            let dead = ["prev_state=X", "prev_state=Z"].iter().any(|state| line.text.contains(state));
            dead && line.event() == "sched_switch" && line.text.contains(&from)
        };
        while !self.trace()?.lines.iter().any(is_last) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The path of `trace`, for measurements of a reader.
    pub fn trace_path(&self) -> PathBuf {
        self.dir.join("trace")
    }

    /// Hits lost because a buffer was full, over all CPUs (`overrun` and `dropped events` of `stats`).
    ///
    /// # Errors
    /// When the statistics cannot be read.
    pub fn lost(&self) -> Result<u64> {
        let mut lost = 0;
        for entry in fs::read_dir(self.dir.join("per_cpu")).context("per_cpu")? {
            let text = fs::read_to_string(entry?.path().join("stats")).context("stats")?;
            lost += text
                .lines()
                .filter_map(|line| line.split_once(": "))
                .filter(|(key, _)| matches!(*key, "overrun" | "commit overrun" | "dropped events"))
                .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
                .sum::<u64>();
        }
        Ok(lost)
    }

    fn event_file(&self, event: &str, file: &str) -> PathBuf {
        self.dir.join("events").join(event.replace(':', "/")).join(file)
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("events/enable"), "0");
        // The instance is busy for a moment while another process reads one of its files.
        for _ in 0..50 {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("{} stays behind: it is in use", self.dir.display());
    }
}

/// The kernel's bytes as text, one character per byte: names need not be UTF-8.
pub fn visible(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The entries of an `error_log`, without their timestamps.
pub fn log_entries(log: &[u8]) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in visible(log).lines() {
        match line.split_once("] ") {
            Some((stamp, entry)) if stamp.starts_with('[') => entries.push(entry.to_owned() + "\n"),
            _ => entries
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|entry| *entry += &(line.to_owned() + "\n")),
        }
    }
    entries
}
