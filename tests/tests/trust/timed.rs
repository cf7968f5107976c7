//! Shared code of the tests of time limits: a timer of a small repeated action, and client processes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::names;

/// Measures the duration of a small action repeatedly.
pub(crate) struct Timed {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<Vec<Duration>>>,
}

impl Timed {
    pub(crate) fn start(mut act: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let start = Instant::now();
                act()?;
                all.push(start.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(all)
        });
        Self { stop, thread }
    }

    /// The number of actions, the 99th percentile and the maximum.
    pub(crate) fn end(self) -> Result<(usize, Duration, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = self.thread.join().ok().context("a thread failed")??;
        all.sort_unstable();
        ensure!(all.len() >= 50, "only {} were timed", all.len());
        Ok((all.len(), all[all.len() * 99 / 100], all[all.len() - 1]))
    }
}

/// Two threads that wake each other through pipes. They measure the machine's own delay in a small request.
pub(crate) fn machine() -> Result<Timed> {
    let (asked, ask) = rustix::pipe::pipe()?;
    let (answered, answer) = rustix::pipe::pipe()?;
    let (mut asked, mut answer) = (File::from(asked), File::from(answer));
    std::thread::spawn(move || {
        let mut byte = [0];
        while asked.read_exact(&mut byte).is_ok() && answer.write_all(&byte).is_ok() {}
    });
    let (mut ask, mut answered) = (File::from(ask), File::from(answered));
    Ok(Timed::start(move || {
        ask.write_all(&[1])?;
        Ok(answered.read_exact(&mut [0])?)
    }))
}

/// Time limit of a small request that does not wait, on a machine with other load.
pub(crate) fn soon() -> Duration {
    host::patience(Duration::from_secs(5))
}

/// Locked by the running test: the tests measure times, so they run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test that needs root, alone.
pub(crate) fn alone(test: impl FnOnce() -> Result<()>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    host::as_root(test);
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
        let _ = self.0.kill();
        let _ = self.0.wait();
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
