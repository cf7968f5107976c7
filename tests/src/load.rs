//! A thread that hits events repeatedly while a test changes how they are traced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

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
