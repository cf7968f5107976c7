//! Runs the program under test. Tests start `tracer record`, wait until it is attached, stop it, and read its text
//! and counts. Other commands run to their end.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};

use crate::host;
use crate::oracle::Trace;

/// Time limit for attaching before the test fails (slow under emulation with hundreds of events).
const ATTACH: Duration = Duration::from_secs(120);

/// Time limit for the program to end after a signal.
const END: Duration = Duration::from_secs(60);

/// Locked while this process has an inheritable descriptor for a child, so that no other child inherits it.
static STARTING: Mutex<()> = Mutex::new(());

/// A `tracer` command that is not started yet.
#[derive(Debug)]
pub struct Tracer {
    command: Command,
}

/// A running `tracer` command that is ready: `tracer record` is attached.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

/// The result of a `tracer` command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error: notes and counts.
    pub stderr: String,
}

/// One event's closing counts, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hits that passed the early checks.
    pub hits: u64,
    /// Hits that the filter dropped.
    pub filtered: u64,
    /// Hits that were recorded.
    pub recorded: u64,
    /// Hits that were lost.
    pub dropped: u64,
    /// Hits for which the kernel did not run the program, because another program was running on that CPU.
    pub missed: u64,
}

impl Counts {
    /// Whether every hit is accounted for.
    pub fn add_up(&self) -> bool {
        self.hits == self.filtered + self.recorded + self.dropped
    }
}

impl Tracer {
    /// `tracer` with these arguments.
    ///
    /// # Errors
    /// When there is no such binary.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut command = Command::new(host::binary("tracer", "TRACER_BIN")?);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self { command })
    }

    /// `tracer record` without further arguments.
    ///
    /// # Errors
    /// When there is no such binary.
    pub fn record() -> Result<Self> {
        Self::new(["record"])
    }

    /// Adds `-e 'EVENT if FILTER'`.
    #[must_use]
    pub fn event(self, event: &str, filter: Option<&str>) -> Self {
        match filter {
            Some(filter) => self.args(["-e", &format!("{event} if {filter}")]),
            None => self.args(["-e", event]),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets its working directory.
    #[must_use]
    pub fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the command to its end.
    ///
    /// # Errors
    /// When it does not start. The outcome contains the exit status.
    pub fn run(mut self) -> Result<Outcome> {
        let output = {
            let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            self.command.spawn().context("cannot start tracer")?
        };
        let output = output.wait_with_output()?;
        Ok(Outcome {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts the command and returns once it is ready (`--ready-fd`).
    ///
    /// # Errors
    /// When it ends instead, with its output.
    pub fn start(mut self) -> Result<Running> {
        let turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        // The pipe is not close-on-exec: the child inherits the descriptor under the same number.
        let (ready, signal) = rustix::pipe::pipe()?;
        // Inserts the option before `--`, which ends the options.
        let arguments: Vec<_> = self.command.get_args().map(OsStr::to_owned).collect();
        let cut = arguments.iter().position(|a| a == "--").unwrap_or(arguments.len());
        let mut command = Command::new(self.command.get_program());
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
            .args(&arguments[..cut])
            .arg("--ready-fd")
            .arg(signal.as_raw_fd().to_string())
            .args(&arguments[cut..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.command = command;
        let mut child = self.command.spawn().context("cannot start tracer")?;
        drop(signal);
        rustix::io::fcntl_setfd(&ready, rustix::io::FdFlags::CLOEXEC)?;
        drop(turn);
        let stdout = drain(child.stdout.take().context("no stdout")?);
        let stderr = drain(child.stderr.take().context("no stderr")?);
        let mut running = Running { child, stdout: Some(stdout), stderr: Some(stderr) };
        if !attached(&ready, &mut running)? {
            let outcome = running.collect()?;
            bail!("tracer was not ready: {}: {}", outcome.status, outcome.stderr);
        }
        Ok(running)
    }
}

/// Reads a stream to its end in a thread.
fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        if std::env::var_os("TRACER_LOG").is_some() {
            eprintln!("{}", String::from_utf8_lossy(&bytes));
        }
        bytes
    })
}

/// Waits for the ready byte; false when the program ended or took too long.
fn attached(ready: &OwnedFd, running: &mut Running) -> Result<bool> {
    let deadline = Instant::now() + ATTACH;
    let slice = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while Instant::now() < deadline {
        if rustix::event::poll(&mut [PollFd::new(ready, PollFlags::IN)], Some(&slice))? > 0 {
            return Ok(rustix::io::read(ready, &mut [0_u8; 1])? == 1);
        }
        if running.child.try_wait()?.is_some() {
            return Ok(false);
        }
    }
    running.child.kill()?;
    Ok(false)
}

impl Running {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Interrupts the program as Ctrl-C does and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(self) -> Result<Outcome> {
        self.stop_within(END)
    }

    /// Does the same as [`Running::stop`] with another time limit.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop_within(self, limit: Duration) -> Result<Outcome> {
        self.signal(Signal::INT)?;
        self.wait_within(limit)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).context("tracer is gone")
    }

    /// Waits until the program ends by itself.
    ///
    /// # Errors
    /// When it does not end in time; the program is then killed.
    pub fn wait(self) -> Result<Outcome> {
        self.wait_within(END)
    }

    /// Does the same as [`Running::wait`] with another time limit.
    ///
    /// # Errors
    /// When it does not end in time; the program is then killed.
    pub fn wait_within(mut self, limit: Duration) -> Result<Outcome> {
        let deadline = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child.kill()?;
                let outcome = self.collect()?;
                bail!("tracer did not end: {}", outcome.stderr);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.collect()
    }

    fn collect(&mut self) -> Result<Outcome> {
        let status = self.child.wait()?;
        let text = |stream: &mut Option<JoinHandle<Vec<u8>>>| {
            stream.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        let stdout = text(&mut self.stdout);
        let stderr = String::from_utf8_lossy(&text(&mut self.stderr)).into_owned();
        Ok(Outcome { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Outcome {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the outcome itself, or an error with the program's output.
    ///
    /// # Errors
    /// When the program failed.
    pub fn success(self) -> Result<Self> {
        ensure!(self.status.success(), "tracer failed: {}: {}", self.status, self.stderr);
        Ok(self)
    }

    /// The trace in standard output.
    pub fn trace(&self) -> Trace {
        Trace::parse(&self.stdout)
    }

    /// The JSON values of standard output, one per line.
    ///
    /// # Errors
    /// When a line is not JSON, with the line.
    pub fn json(&self) -> Result<Vec<serde_json::Value>> {
        let text = self.text();
        text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }

    /// The closing counts by name: the events, and `total`.
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        self.stderr.lines().filter_map(counts_of).collect()
    }
}

/// Parses `NAME: hits=1, filtered=2, recorded=3, dropped=4`.
fn counts_of(line: &str) -> Option<(String, Counts)> {
    let (name, rest) = line.split_once(": hits=")?;
    let rest = format!("hits={rest}");
    let mut counts = Counts::default();
    for part in rest.split(", ") {
        let (key, value) = part.trim().split_once('=')?;
        let value = value.parse().ok()?;
        match key {
            "hits" => counts.hits = value,
            "filtered" => counts.filtered = value,
            "recorded" => counts.recorded = value,
            "dropped" => counts.dropped = value,
            "missed" => counts.missed = value,
            _ => {}
        }
    }
    Some((name.trim().to_owned(), counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let (name, counts) =
            counts_of("sched:sched_switch: hits=10, filtered=7, recorded=2, dropped=1").unwrap();
        assert_eq!(name, "sched:sched_switch");
        assert_eq!(counts, Counts { hits: 10, filtered: 7, recorded: 2, dropped: 1, missed: 0 });
        assert!(counts.add_up());
        assert_eq!(counts_of("note: nothing here"), None);
    }
}
