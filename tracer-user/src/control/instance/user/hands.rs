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

#[cfg(test)]
mod tests {
    use super::super::spaces::Spaces;
    use super::*;

    #[test]
    fn memory_that_hangs_is_passed_over() {
        let (mut spaces, own) = (Spaces::default(), std::process::id());
        let words = Box::new([0_u8; 2]);
        let at = words.as_ptr().expose_provenance() as u64;
        spaces.ask(own, 1, at, 0).unwrap();
        spaces.ask(own, 2, at + 1, 1).unwrap();
        let now = || {
            let mut now = [0; 2];
            crate::sys::memory::read(own, at, &mut now).unwrap();
            now
        };
        let mut hands = Hands::default();
        hands.write(Vec::new());
        hands.write([spaces.writes(1, true), spaces.writes(2, true)].concat());
        assert_eq!(now(), [1, 2]);
        // Somebody has the memory and does not give it back: the writer that waits for it is given up.
        let off = [spaces.writes(1, false), spaces.writes(2, false)].concat();
        let memory = Arc::clone(&off[0].memory);
        let taken = memory.take();
        hands.write(off);
        assert!(memory.is_stuck());
        drop(taken);
        // It comes back, and the memory is as good as any.
        while memory.is_stuck() {
            std::thread::yield_now();
        }
        hands.write(spaces.writes(2, false));
        assert_eq!(now(), [0, 0]);
        drop(words);
    }
}
