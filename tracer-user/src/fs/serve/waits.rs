//! Reads that wait for records, and those who poll files.
//!
//! A read that has nothing to give yet is kept, and answered when there is something. One that fills a page of the kernel's
//! (splice(2), or memory that is mapped) keeps that page locked: it does not wait while somebody else opens the file, for
//! which the kernel wants all its pages.
//!
//! A poll stands for one open file, however often it is asked. The kernel does not say when a caller of poll(2) gave up, so
//! interest in what only a look can tell ends with one notification, after [`INTEREST`] at the latest: a caller that still
//! waits asks again then.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fuser::{Errno, PollNotifier, ReplyData};

use super::{errno::errno, owner::View};
use crate::{engine::quota::Charge, event::InstanceId, fs::tree::open::Outcome};

/// How long a poll is taken to be waited for.
const INTEREST: Duration = Duration::from_secs(1);
/// How long waiting reads are looked through at a time.
const STEP: Duration = Duration::from_millis(8);
/// Polls that are looked at between two looks at the clock, and how long they are looked through at a time.
const POLLS: usize = 64;
/// Threads that are looked at for signals at a time.
const THREADS: usize = 64;

/// A read that waits.
pub(in crate::fs) struct Waiting {
    pub(in crate::fs) handle: u64,
    pub(in crate::fs) size: usize,
    pub(in crate::fs) pid: u32,
    /// The file and where in it, if a page of the kernel's is to be filled.
    pub(in crate::fs) page: Option<(u64, u64)>,
    pub(in crate::fs) reply: ReplyData,
    pub(in crate::fs) _charge: Charge,
}

/// Somebody who waits until a file is ready.
struct Polled {
    notifier: PollNotifier,
    /// Nothing but our looking at it tells when it is.
    by_clock: bool,
    since: Instant,
}

/// All who wait.
#[derive(Default)]
pub(in crate::fs) struct Waits {
    reads: Mutex<Vec<Waiting>>,
    /// How many there are, those that are being looked at among them.
    count: AtomicUsize,
    polls: Mutex<BTreeMap<u64, Polled>>,
    /// The open file at which looking through polls goes on.
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waits {
    /// Keeps a read.
    pub(in crate::fs) fn add(&self, read: Waiting) {
        self.count.fetch_add(1, Ordering::AcqRel);
        lock(&self.reads).push(read);
    }

    /// Keeps a poll in place of the last one of that file.
    pub(in crate::fs) fn poll(&self, handle: u64, notifier: PollNotifier, by_clock: bool) {
        lock(&self.polls).insert(handle, Polled { notifier, by_clock, since: Instant::now() });
    }

    /// Forgets who polled a file that is closed.
    pub(in crate::fs) fn forget(&self, handle: u64) {
        lock(&self.polls).remove(&handle);
    }

    /// Whether somebody waits for what only looking tells.
    pub(in crate::fs) fn is_awaited(&self) -> bool {
        self.has_reads() || lock(&self.polls).values().any(|polled| polled.by_clock)
    }

    /// Whether reads wait.
    pub(in crate::fs) fn has_reads(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether anybody waits.
    pub(in crate::fs) fn is_empty(&self) -> bool {
        !self.has_reads() && lock(&self.polls).is_empty()
    }

    /// Answers the reads that can be answered and wakes those who poll what is ready. Whether that were all; the rest is to
    /// be looked at again. `filled` is told of pages that were filled.
    pub(in crate::fs) fn serve(&self, view: &mut View<'_>, filled: impl Fn(u64, u64, usize)) -> bool {
        let since = Instant::now();
        let mut waiting = std::mem::take(&mut *lock(&self.reads));
        let mut left = Vec::new();
        let mut all = true;
        // Records are taken in once for each instance, however many wait for them.
        let mut settled = HashMap::new();
        while let Some(read) = waiting.pop() {
            if since.elapsed() > STEP {
                left.push(read);
                all = false;
                break;
            }
            if view.files().is_busy(read.handle) || !settle(view, &mut settled, read.handle) {
                left.push(read);
                all = false;
                continue;
            }
            match view.read_some(read.handle, 0, read.size) {
                Ok(Some(Outcome::Data(data))) => {
                    if let Some((_, offset)) = read.page {
                        filled(read.handle, offset, data.len());
                    }
                    self.answered(1);
                    read.reply.data(&data);
                }
                Ok(Some(Outcome::Wait)) => left.push(read),
                Ok(None) => {
                    left.push(read);
                    all = false;
                }
                Err(error) => {
                    self.answered(1);
                    read.reply.error(errno(error));
                }
            }
        }
        // Those that were not looked at come first the next time, which takes from the end.
        left.append(&mut waiting);
        lock(&self.reads).append(&mut left);
        self.wake(view, &mut settled, since) && all
    }

    fn answered(&self, reads: usize) {
        self.count.fetch_sub(reads, Ordering::AcqRel);
    }

    /// Wakes those who poll what is ready; whether all were looked at.
    fn wake(&self, view: &mut View<'_>, settled: &mut HashMap<InstanceId, bool>, since: Instant) -> bool {
        let first = self.next.load(Ordering::Relaxed);
        let mut next = first;
        let mut wrapped = first == 0;
        loop {
            let part: Vec<(u64, bool)> = lock(&self.polls)
                .range(next..)
                .take_while(|(handle, _)| !wrapped || first == 0 || **handle < first)
                .take(POLLS)
                .map(|(handle, polled)| (*handle, polled.by_clock && polled.since.elapsed() > INTEREST))
                .collect();
            let Some((last, _)) = part.last().copied() else {
                if wrapped {
                    self.next.store(0, Ordering::Relaxed);
                    return true;
                }
                (next, wrapped) = (0, true);
                continue;
            };
            for (handle, is_old) in part {
                self.wake_one(view, settled, handle, is_old);
            }
            next = last + 1;
            if since.elapsed() > STEP {
                self.next.store(next, Ordering::Relaxed);
                return false;
            }
        }
    }

    fn wake_one(
        &self,
        view: &mut View<'_>,
        settled: &mut HashMap<InstanceId, bool>,
        handle: u64,
        is_old: bool,
    ) {
        if !is_old {
            if view.files().is_busy(handle) {
                return;
            }
            settle(view, settled, handle);
            if !view.is_awaited(handle) {
                return;
            }
        }
        if let Some(polled) = lock(&self.polls).remove(&handle) {
            // A caller of poll(2) may be gone.
            let _ = polled.notifier.notify();
        }
    }

    /// Ends reads whose thread was sent a signal, of as many as are looked at in one call.
    ///
    /// The kernel tells of signals by FUSE_INTERRUPT, which fuser 0.18 refuses, after which it is not told again: so the
    /// signals that a thread has pending are looked up.
    pub(in crate::fs) fn end_interrupted(&self) {
        let pids: Vec<u32> = lock(&self.reads).iter().take(THREADS).map(|read| read.pid).collect();
        let interrupted: HashSet<u32> = pids.iter().copied().filter(|pid| is_interrupted(*pid)).collect();
        let ended: Vec<Waiting> = {
            let mut reads = lock(&self.reads);
            let ended = reads.extract_if(.., |read| interrupted.contains(&read.pid)).collect();
            let looked_at = pids.len().min(reads.len());
            reads.rotate_left(looked_at);
            ended
        };
        self.answered(ended.len());
        for read in ended {
            read.reply.error(Errno::EINTR);
        }
    }

    /// Ends the reads that keep pages of a file locked: somebody else opens it.
    pub(in crate::fs) fn end_pages(&self, ino: u64) {
        let is_page = |read: &mut Waiting| read.page.is_some_and(|(file, _)| file == ino);
        let ended: Vec<Waiting> = lock(&self.reads).extract_if(.., is_page).collect();
        self.answered(ended.len());
        for read in ended {
            read.reply.error(Errno::EINTR);
        }
    }

    /// Ends all.
    pub(in crate::fs) fn end(&self) {
        lock(&self.polls).clear();
        let reads = std::mem::take(&mut *lock(&self.reads));
        self.answered(reads.len());
        for read in reads {
            read.reply.error(Errno::EINTR);
        }
    }
}

/// Takes in what was recorded for an open file's readers, once for each instance. Whether that was all.
fn settle(view: &mut View<'_>, settled: &mut HashMap<InstanceId, bool>, handle: u64) -> bool {
    let Some(instance) = view.instance_of(handle) else { return true };
    *settled.entry(instance).or_insert_with(|| view.settle(handle))
}

/// Whether a thread has a signal pending that it does not block, or is no more (proc(5)).
fn is_interrupted(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let mask = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_signals_goes_on_and_one_that_is_gone_does_not() {
        assert!(!is_interrupted(std::process::id()));
        assert!(is_interrupted(u32::MAX >> 1));
    }
}
