//! Writing bits into programs' memory, which may make whoever does it wait: memory can be another file system's, or ours.
//!
//! A thread of its own does it. When it does not come back, it is given up with the memory that it hangs in, and another one
//! goes on behind that place; so a program can only keep itself from being told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use super::spaces::Write;

/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes to be done, and how far they are.
#[derive(Debug)]
struct Batch {
    writes: Vec<Write>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    batches: Sender<Arc<Batch>>,
    done: Receiver<()>,
}

impl Worker {
    fn start() -> std::io::Result<Self> {
        let (batches, taken) = channel::<Arc<Batch>>();
        let (tell, done) = channel();
        std::thread::Builder::new().name("user-events".to_owned()).spawn(move || {
            for batch in taken {
                loop {
                    let at = batch.next.load(Ordering::Acquire);
                    let Some(write) = batch.writes.get(at) else { break };
                    if !write.memory.is_stuck() {
                        write.run();
                        // It may have been given up meanwhile.
                        write.memory.set_stuck(false);
                    }
                    if batch.next.compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
                        return;
                    }
                }
                if tell.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { batches, done })
    }
}

/// What writes.
#[derive(Debug, Default)]
pub struct Hands {
    worker: Option<Worker>,
}

impl Hands {
    /// Writes all, as far as nothing hangs.
    pub fn write(&mut self, writes: Vec<Write>) {
        if writes.is_empty() {
            return;
        }
        let mut batch = Arc::new(Batch { writes, next: AtomicUsize::new(0) });
        loop {
            let worker = match self.worker.take().map_or_else(Worker::start, Ok) {
                Ok(worker) => worker,
                Err(error) => return tracing::warn!("programs are not told of events: {error}"),
            };
            if worker.batches.send(Arc::clone(&batch)).is_err() {
                continue;
            }
            let mut seen = batch.next.load(Ordering::Acquire);
            loop {
                match worker.done.recv_timeout(PATIENCE) {
                    Ok(()) => {
                        self.worker = Some(worker);
                        return;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                let now = batch.next.load(Ordering::Acquire);
                if now == seen {
                    break;
                }
                seen = now;
            }
            // The worker finds its place taken when it comes back, and ends.
            if batch.next.compare_exchange(seen, usize::MAX, Ordering::AcqRel, Ordering::Acquire).is_err() {
                self.worker = Some(worker);
                continue;
            }
            let Some(hangs) = batch.writes.get(seen) else { return };
            tracing::warn!("a program's memory does not answer: it is not told of events any more");
            hangs.memory.set_stuck(true);
            let left = batch.writes[seen + 1..].to_vec();
            batch = Arc::new(Batch { writes: left, next: AtomicUsize::new(0) });
        }
    }
}
