//! The duration of a small action that is repeated while something else runs.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

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

/// Two threads that wake each other through pipes: the machine's own share of the time of a small request.
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
