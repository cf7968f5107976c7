//! Threads that hit events repeatedly: one, while a test changes how they are traced, or two, one of which preempts the
//! other again and again in the middle of the same call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::workload;

/// A thread that waits for [`Load::go`], and then works until [`Load::stop`].
#[derive(Debug)]
pub struct Load {
    thread: JoinHandle<u64>,
    stop: Arc<AtomicBool>,
    go: Sender<()>,
    pid: i32,
}

impl Load {
    /// Starts a thread that will call `turn` repeatedly.
    ///
    /// # Errors
    /// When the thread ends before it reports its id.
    pub fn new(turn: impl Fn() + Send + 'static) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let (go, may_go) = channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut turns = 0;
                if sender.send(rustix::thread::gettid()).is_err() || may_go.recv().is_err() {
                    return turns;
                }
                while !stop.load(Ordering::Relaxed) {
                    turn();
                    turns += 1;
                }
                turns
            }
        });
        let pid = receiver.recv().context("the load ended early")?.as_raw_nonzero().get();
        Ok(Self { thread, stop, go, pid })
    }

    /// Thread id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Starts the calls.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn go(&self) -> Result<()> {
        self.go.send(()).context("the load is gone")
    }

    /// Ends the thread and returns the number of calls.
    ///
    /// # Errors
    /// When the thread panicked.
    pub fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.go);
        self.thread.join().ok().context("the load failed")
    }
}

/// Calls that the preempting thread makes after each wake-up.
pub const CALLS: u64 = 3;

/// Two threads of one CPU. The first makes calls without a pause. The second has a real-time priority: it wakes up,
/// makes [`CALLS`] calls, and sleeps.
#[derive(Debug)]
pub struct Preempting {
    threads: [JoinHandle<Result<u64>>; 2],
    pids: [i32; 2],
    go: [Sender<()>; 2],
}

impl Preempting {
    /// Creates the threads for a CPU. `call` gets the number of the thread and that of its call, both from 0. The second
    /// thread wakes up `wakes` times, and then both end.
    ///
    /// # Errors
    /// When a thread ends before it reports its id.
    pub fn new(cpu: usize, wakes: u64, call: impl Fn(usize, u64) + Clone + Send + 'static) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let spawn = |number: usize| {
            let (report, reported) = channel();
            let (go, may_go) = channel::<()>();
            let (over, call) = (Arc::clone(&over), call.clone());
            let thread = std::thread::spawn(move || {
                report.send(rustix::thread::gettid()).context("the test has ended")?;
                may_go.recv().context("the test has ended")?;
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one)?;
                let mut calls = 0;
                let mut next = || {
                    call(number, calls);
                    calls += 1;
                };
                if number == 0 {
                    while !over.load(Ordering::Relaxed) {
                        next();
                    }
                } else {
                    workload::be_real_time(10)?;
                    for wake in 0..wakes {
                        // The length varies, so that the thread wakes up at every instruction of the other's calls.
                        std::thread::sleep(Duration::from_nanos(30_000 + wake * 37 % 4096));
                        (0..CALLS).for_each(|_| next());
                    }
                    over.store(true, Ordering::Relaxed);
                }
                Ok(calls)
            });
            let pid = reported.recv().context("a thread ended early")?.as_raw_nonzero().get();
            Ok::<_, anyhow::Error>((thread, pid, go))
        };
        let (first, second) = (spawn(0)?, spawn(1)?);
        Ok(Self { threads: [first.0, second.0], pids: [first.1, second.1], go: [first.2, second.2] })
    }

    /// The ids of the threads.
    pub fn pids(&self) -> [i32; 2] {
        self.pids
    }

    /// Lets the threads run to their end. Returns the number of calls of each.
    ///
    /// # Errors
    /// When a thread may not have its CPU or its priority.
    pub fn run(self) -> Result<[u64; 2]> {
        for go in &self.go {
            go.send(()).context("a thread is gone")?;
        }
        let [first, second] =
            self.threads.map(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")));
        Ok([first?, second?])
    }
}
