//! bpftrace: the installed one, and the newest one that the user names.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::host;

use super::tool::{BUFFER_KB, end};

/// Time limit for bpftrace to attach.
const ATTACHES: Duration = Duration::from_secs(20);

/// The environment variable with the command of the newest bpftrace: its words, one a line.
const NEWEST: &str = "BPFTRACE_NEWEST";

/// The first version with one buffer for all CPUs. Earlier ones have a buffer and a perf event for each CPU.
const FIRST_WITH_ONE_BUFFER: (u32, u32) = (0, 20);

/// The first version that says that it has attached. Earlier ones say that they are attaching.
const FIRST_WITH_ATTACHED: (u32, u32) = (0, 24);

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpftrace {
    /// The machine's own.
    Installed,
    /// The one that `BPFTRACE_NEWEST` names.
    Newest,
}

impl Bpftrace {
    /// The program without arguments. `None` if none is named.
    fn program(self) -> Option<Command> {
        match self {
            Self::Installed => Some(Command::new("bpftrace")),
            Self::Newest => {
                let words = std::env::var(NEWEST).ok()?;
                let mut words = words.lines();
                let mut command = Command::new(words.next()?);
                command.args(words);
                Some(command)
            }
        }
    }

    /// What it says about its version, such as `bpftrace v0.17.0`. `None` if it cannot run here.
    pub(super) fn version(self) -> Option<&'static str> {
        static INSTALLED: OnceLock<Option<String>> = OnceLock::new();
        static NEWEST: OnceLock<Option<String>> = OnceLock::new();
        let known = match self {
            Self::Installed => &INSTALLED,
            Self::Newest => &NEWEST,
        };
        let ask = || {
            let output = self.program()?.arg("--version").output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        known.get_or_init(ask).as_deref()
    }

    /// Its version's number.
    fn number(self) -> (u32, u32) {
        self.version().map_or((0, 0), parse_version)
    }

    /// The command that runs a script, with buffers of the common size.
    pub(crate) fn command(self, script: &str) -> Result<Command> {
        let mut command = self.program().with_context(|| format!("{NEWEST} names no bpftrace"))?;
        let buffers = if self.number() < FIRST_WITH_ONE_BUFFER { 1 } else { host::last_cpu()? + 1 };
        let pages = (BUFFER_KB as usize / 4 * buffers).next_power_of_two();
        command
            .env("BPFTRACE_PERF_RB_PAGES", pages.to_string())
            .args(["-B", "line", "-e", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Starts a script, and returns when its probe is attached.
    pub(crate) fn attached(self, script: &str) -> Result<AttachedBpftrace> {
        let mut child =
            self.command(script)?.spawn().with_context(|| format!("cannot start {self:?} bpftrace"))?;
        let mut output = BufReader::new(child.stdout.take().context("no output")?);
        let mut errors = BufReader::new(child.stderr.take().context("no errors")?);
        if self.number() >= FIRST_WITH_ATTACHED {
            read_until(&mut errors, "Attached")?;
        } else {
            read_until(&mut output, "Attaching").or_else(|error| {
                let mut why = String::new();
                std::io::Read::read_to_string(&mut errors, &mut why)?;
                Err(error.context(why))
            })?;
            let buffers = if self.number() < FIRST_WITH_ONE_BUFFER { host::last_cpu()? + 1 } else { 0 };
            wait_for_probe(child.id(), buffers)?;
        }
        Ok(AttachedBpftrace { child, output, errors })
    }

    /// Starts a script and discards its output.
    pub(crate) fn start(self, script: &str) -> Result<RunningBpftrace> {
        let AttachedBpftrace { child, output, errors } = self.attached(script)?;
        let lost = Arc::new(AtomicU64::new(0));
        let (first, second) = (Arc::clone(&lost), Arc::clone(&lost));
        let readers = vec![
            std::thread::spawn(move || count_lost(output, &first)),
            std::thread::spawn(move || count_lost(errors, &second)),
        ];
        Ok(RunningBpftrace { child, lost, readers })
    }
}

/// Major and minor version in text such as `bpftrace v0.17.0`; 0 where there is none.
fn parse_version(version: &str) -> (u32, u32) {
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut numbers = digits.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Reads lines up to one that begins so.
fn read_until(stream: &mut impl BufRead, begin: &str) -> Result<()> {
    let (mut line, mut all) = (String::new(), String::new());
    while !line.starts_with(begin) {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            anyhow::bail!("bpftrace ended: {all}");
        }
        all.push_str(&line);
    }
    Ok(())
}

/// Waits until bpftrace has a perf event for the probe, in addition to those of its `buffers`. Its output announces the
/// attachment too early.
fn wait_for_probe(pid: u32, buffers: usize) -> Result<()> {
    let deadline = Instant::now() + ATTACHES;
    while Instant::now() < deadline {
        let events = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .context("bpftrace ended")?
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|target| target.to_string_lossy().contains("[perf_event]"))
            .count();
        if events > buffers {
            // Setting the program and enabling the event follow immediately.
            std::thread::sleep(Duration::from_millis(100));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("bpftrace does not attach")
}

/// A bpftrace whose probe is attached.
pub(crate) struct AttachedBpftrace {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) errors: BufReader<ChildStderr>,
}

/// A running bpftrace. Threads read its output, count the lost events and discard the text.
pub(crate) struct RunningBpftrace {
    child: Child,
    lost: Arc<AtomicU64>,
    readers: Vec<JoinHandle<()>>,
}

impl RunningBpftrace {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, and returns the number of lost hits.
    pub(super) fn stop(mut self) -> Result<u64> {
        end(&mut self.child)?;
        for reader in self.readers {
            let _ = reader.join();
        }
        Ok(self.lost.load(Ordering::Relaxed))
    }
}

/// Reads a stream to its end and adds up `Lost N events`.
fn count_lost(mut stream: impl BufRead, lost: &AtomicU64) {
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        if let Some(rest) = line.strip_prefix(b"Lost ") {
            let text = String::from_utf8_lossy(rest);
            let n = text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(1);
            lost.fetch_add(n, Ordering::Relaxed);
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(parse_version("bpftrace v0.17.0"), (0, 17));
        assert_eq!(parse_version("bpftrace v0.27.1-2"), (0, 27));
        assert_eq!(parse_version("?"), (0, 0));
    }

    #[test]
    fn lost_events_are_added_up() {
        let lost = AtomicU64::new(0);
        count_lost(&b"12\nLost 5 events\nLost 7 events\nWARNING: Total lost event count: 12\n"[..], &lost);
        assert_eq!(lost.into_inner(), 12);
    }
}
