//! Threads that make the text of `trace` and `snapshot`, so that the owner of the tree does not.
//!
//! The owner takes the open file out of the table and gives it to a thread with a copy of the state that formatting
//! needs. Jobs for the file wait until the thread puts it back. The owner starts no more texts than there are
//! threads, so that the texts of different payers are made in the order in which the owner serves them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use crate::fs::threads::{lock, spawn};

/// Maximum number of texts that are made at once.
const THREADS_MAX: usize = 4;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Debug, Default)]
pub(crate) struct TextThreads {
    work: Mutex<Option<Sender<Work>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    free: AtomicUsize,
}

impl TextThreads {
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = lock(&self.threads);
        for number in 0..cpus.clamp(2, THREADS_MAX) {
            let receiver = Arc::clone(&receiver);
            let serve = move || {
                while let Some(work) = take(&receiver) {
                    work();
                }
            };
            threads.push(spawn(&format!("text-{number}"), serve)?);
            self.free.fetch_add(1, Ordering::AcqRel);
        }
        *lock(&self.work) = Some(sender);
        Ok(())
    }

    /// Whether a thread is free. Only the owner takes threads, so a thread that is free stays so until the owner
    /// takes it.
    pub(crate) fn is_free(&self) -> bool {
        self.free.load(Ordering::Acquire) > 0
    }

    /// Runs the work in a thread, or in the calling thread if none was started. The thread is free again after
    /// [`TextThreads::done`].
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.free.fetch_sub(1, Ordering::AcqRel);
        let work: Work = Box::new(work);
        let unsent = match &*lock(&self.work) {
            Some(sender) => sender.send(work).err().map(|unsent| unsent.0),
            None => Some(work),
        };
        if let Some(work) = unsent {
            work();
        }
    }

    /// Ends a [`TextThreads::run`].
    pub(crate) fn done(&self) {
        self.free.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the threads after the texts that they make.
    pub(crate) fn end(&self) {
        lock(&self.work).take();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn take(work: &Mutex<Receiver<Work>>) -> Option<Work> {
    lock(work).recv().ok()
}
