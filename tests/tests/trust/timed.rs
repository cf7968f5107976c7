//! Shared code of the tests of time limits: limits against hanging, a repeated small request with the times of each
//! answer, and client processes.
//!
//! No verdict depends on how fast a request is: `./x bench --only delays` measures that. The tests check that a small
//! request is answered while something else is in progress, which is certain on a slow machine too.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::names;

/// Time limit of an action that usually takes less than 100 ms. Only an action that hangs exceeds it.
pub(crate) fn soon() -> Duration {
    host::patience(Duration::from_secs(10))
}

/// Time limit of a large request, such as enabling a thousand events, which usually takes less than a second.
pub(crate) fn at_last() -> Duration {
    host::patience(Duration::from_secs(60))
}

/// Runs a function in a separate thread; `None` when it takes too long.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(act()));
    is_done.recv_timeout(limit).ok()
}

/// Waits until a condition holds, for at most [`soon`].
pub(crate) fn await_true(what: &str, mut is_true: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + soon();
    while !is_true()? {
        ensure!(Instant::now() < end, "{what}: not yet");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// When a request began and when it was answered.
type Span = (Instant, Instant);

/// A thread that repeats a small request.
pub(crate) struct Repeated {
    name: &'static str,
    answers: Arc<Mutex<Vec<Span>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Repeated {
    pub(crate) fn start(name: &'static str, mut act: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (ends, kept) = (Arc::clone(&stop), Arc::clone(&answers));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let start = Instant::now();
                act()?;
                kept.lock().unwrap_or_else(PoisonError::into_inner).push((start, Instant::now()));
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        Self { name, answers, stop, thread }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn spans(&self) -> Vec<Span> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of requests that began after `from` and were answered before `to`.
    pub(crate) fn answered_within(&self, (from, to): Span) -> usize {
        self.spans().iter().filter(|(began, ended)| *began > from && *ended < to).count()
    }

    /// Waits for this many further answers, each for at most [`soon`].
    pub(crate) fn pass(&self, count: usize) -> Result<()> {
        for more in self.spans().len()..self.spans().len() + count {
            let end = Instant::now() + soon();
            while self.spans().len() <= more {
                ensure!(!self.thread.is_finished(), "{}: failed", self.name);
                ensure!(Instant::now() < end, "{}: no answer", self.name);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Ends the thread. Returns the number of answers. A request that waited for longer than [`soon`] is an error.
    pub(crate) fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        await_true(self.name, || Ok(self.thread.is_finished()))?;
        let all = self.spans();
        self.thread.join().ok().context("a thread panicked")?.context(self.name)?;
        let longest = all.iter().map(|(began, ended)| *ended - *began).max().unwrap_or_default();
        ensure!(longest < soon(), "{}: a request took {longest:?}", self.name);
        Ok(all.len())
    }
}

/// A process that is killed on drop.
pub(crate) struct Client(pub(crate) Child);

impl Client {
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let program = host::binary("tracer-user-client", "TRACER_USER_CLIENT_BIN")?;
        let child =
            Command::new(program).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut client = Self(child.context("cannot start a client")?);
        // The client writes a byte just before its main action.
        client.0.stdout.as_mut().context("its output")?.read_exact(&mut [0])?;
        Ok(client)
    }

    /// Waits until the process waits in a page fault, or has ended.
    pub(crate) fn blocks(&mut self) -> Result<()> {
        let call = format!("/proc/{}/syscall", self.0.id());
        await_true("the client waits in a page fault", || {
            // A process that waits outside a system call has the number -1.
            Ok(self.0.try_wait()?.is_some()
                || std::fs::read_to_string(&call).is_ok_and(|text| text.starts_with("-1 ")))
        })
    }

    /// The signal that ended the process, if it ended by itself within the limit.
    pub(crate) fn ended_by(&mut self, limit: Duration) -> Result<Option<i32>> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.signal());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        host::kill(&mut self.0);
    }
}

/// The system with the most events, among the systems that do not take minutes to close.
pub(crate) fn largest(dir: &Path) -> Result<String> {
    let count =
        |system: &String| std::fs::read_dir(dir.join("events").join(system)).map_or(0, Iterator::count);
    let systems = names(&dir.join("events"))?.into_iter();
    let systems = systems.filter(|system| system != "syscalls" && count(system) < 150);
    systems.max_by_key(count).context("no events")
}
