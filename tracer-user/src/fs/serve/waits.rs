//! Reads that wait for records, and polls.
//!
//! A read without data is kept and answered when there is data. A read that fills a page of the kernel's page cache
//! (splice(2) or a mapping) keeps this page locked. It does not wait while another client opens the file, because the
//! kernel locks all pages of the file then. If the file is open more than once, it waits for [`SHARED`] at most, because
//! the other client may need the page.
//!
//! There is at most one poll for each open file. The kernel does not report that a caller of poll(2) stopped waiting.
//! So a poll of a file that must be looked at regularly ends with one notification, after [`INTEREST`] at the latest.
//! A caller that still waits polls again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fuser::{Errno, PollNotifier, ReplyData};

use super::{errno::errno, owner::BorrowedTree, signals::Reader, streams::Streams};
use crate::{
    engine::quota::Charge,
    event::InstanceId,
    fs::{threads::lock, tree::open::Outcome},
};

/// How long a poll is kept without a notification.
const INTEREST: Duration = Duration::from_secs(1);
/// How long a read keeps a page locked that other clients may need.
const SHARED: Duration = Duration::from_millis(200);
/// How long one job looks at waiting reads and polls.
const STEP: Duration = Duration::from_millis(8);
/// The number of polls to examine between two checks of the clock.
const POLLS: usize = 64;
/// Maximum number of threads whose signals are looked up at a time.
const THREADS: usize = 64;

pub(crate) struct Waiting {
    pub(crate) handle: u64,
    pub(crate) size: usize,
    pub(crate) pid: u32,
    /// The file and the offset, if the read fills a page of the kernel's page cache.
    pub(crate) page: Option<(u64, u64)>,
    pub(crate) since: Instant,
    pub(crate) reply: ReplyData,
    pub(crate) charge: Charge,
}

impl Waiting {
    fn fail(self, streams: &Streams, error: Errno) {
        match self.page {
            Some((_, offset)) => {
                let reply = (self.reply, Some(self.charge));
                streams.fail((self.handle, offset), self.pid, reply, error);
            }
            None => self.reply.error(error),
        }
    }
}

/// A caller that waits until a file is ready.
struct Polled {
    notifier: PollNotifier,
    /// Whether the file must be looked at regularly.
    by_clock: bool,
    since: Instant,
}

#[derive(Default)]
pub(crate) struct Waits {
    reads: Mutex<Vec<Waiting>>,
    /// The number of waiting reads, including those that [`Waits::serve`] has taken out of `reads`.
    count: AtomicUsize,
    polls: Mutex<BTreeMap<u64, Polled>>,
    /// The handle with which looking at polls continues.
    next: AtomicU64,
}

impl Waits {
    pub(crate) fn add(&self, read: Waiting) {
        self.count.fetch_add(1, Ordering::AcqRel);
        lock(&self.reads).push(read);
    }

    /// Adds a poll, which replaces an earlier poll of the same open file.
    pub(crate) fn poll(&self, handle: u64, notifier: PollNotifier, by_clock: bool) {
        lock(&self.polls).insert(handle, Polled { notifier, by_clock, since: Instant::now() });
    }

    /// Removes the poll of a file that is closed.
    pub(crate) fn forget(&self, handle: u64) {
        lock(&self.polls).remove(&handle);
    }

    /// Whether reads or polls wait for files that must be looked at regularly.
    pub(crate) fn is_awaited(&self) -> bool {
        self.has_reads() || lock(&self.polls).values().any(|polled| polled.by_clock)
    }

    pub(crate) fn has_reads(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_reads() && lock(&self.polls).is_empty()
    }

    /// Answers the reads that have data and notifies the polls of files that are ready. Returns `false` if the caller
    /// must call again for the rest.
    pub(crate) fn serve(&self, tree: &mut BorrowedTree<'_>, streams: &Streams) -> bool {
        let since = Instant::now();
        let mut waiting = std::mem::take(&mut *lock(&self.reads));
        let mut left = Vec::new();
        let mut all = true;
        // Records are collected once for each instance.
        let mut settled = HashMap::new();
        while let Some(read) = waiting.pop() {
            if since.elapsed() > STEP {
                left.push(read);
                all = false;
                break;
            }
            if tree.files().is_busy(read.handle) || !settle(tree, &mut settled, read.handle) {
                left.push(read);
                all = false;
                continue;
            }
            match tree.read(read.handle, 0, read.size) {
                Ok(Outcome::Data(data)) => {
                    if let Some((_, offset)) = read.page {
                        streams.filled(read.handle, offset, data.len());
                    }
                    self.answered(1);
                    read.reply.data(&data);
                }
                Ok(Outcome::Wait) => left.push(read),
                Err(error) => {
                    self.answered(1);
                    read.fail(streams, errno(error));
                }
            }
        }
        // The next call takes from the end, so it begins with the reads that were not looked at.
        left.append(&mut waiting);
        lock(&self.reads).append(&mut left);
        self.wake(tree, &mut settled, since) && all
    }

    fn answered(&self, reads: usize) {
        self.count.fetch_sub(reads, Ordering::AcqRel);
    }

    /// Notifies the polls of files that are ready. Returns whether all polls were looked at.
    fn wake(
        &self,
        tree: &mut BorrowedTree<'_>,
        settled: &mut HashMap<InstanceId, bool>,
        since: Instant,
    ) -> bool {
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
                self.wake_one(tree, settled, handle, is_old);
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
        tree: &mut BorrowedTree<'_>,
        settled: &mut HashMap<InstanceId, bool>,
        handle: u64,
        is_old: bool,
    ) {
        if !is_old {
            if tree.files().is_busy(handle) {
                return;
            }
            settle(tree, settled, handle);
            if !tree.is_awaited(handle) {
                return;
            }
        }
        if let Some(polled) = lock(&self.polls).remove(&handle) {
            // The caller of poll(2) can be gone.
            let _ = polled.notifier.notify();
        }
    }

    /// The threads of waiting reads whose signals are looked up next, [`THREADS`] at most.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        let mut reads = lock(&self.reads);
        let reader = |read: &Waiting| Reader { payer: read.charge.payer(), pid: read.pid, since: read.since };
        let readers: Vec<Reader> = reads.iter().take(THREADS).map(reader).collect();
        reads.rotate_left(readers.len());
        readers
    }

    /// Ends the waiting read of a thread that has a pending signal.
    pub(crate) fn interrupt(&self, streams: &Streams, reader: &Reader) {
        self.end_reads(streams, |read| read.pid == reader.pid && read.since == reader.since);
    }

    /// Ends the reads that keep pages of a file locked, because another client opens the file.
    pub(crate) fn end_pages(&self, streams: &Streams, ino: u64) {
        self.end_reads(streams, |read| read.page.is_some_and(|(file, _)| file == ino));
    }

    /// Ends the reads that keep a page locked for longer than [`SHARED`], if their file is open more than once.
    pub(crate) fn end_long_pages(&self, streams: &Streams) {
        self.end_reads(streams, |read| {
            read.page.is_some_and(|(file, _)| read.since.elapsed() > SHARED && streams.is_shared(file))
        });
    }

    pub(crate) fn end(&self, streams: &Streams) {
        lock(&self.polls).clear();
        self.end_reads(streams, |_| true);
    }

    /// Ends the waiting reads for which `is_over` is true.
    fn end_reads(&self, streams: &Streams, is_over: impl Fn(&Waiting) -> bool) {
        let ended: Vec<Waiting> = lock(&self.reads).extract_if(.., |read| is_over(read)).collect();
        self.answered(ended.len());
        for read in ended {
            read.fail(streams, Errno::EINTR);
        }
    }
}

/// Collects the records for an open file, once for each instance. Returns whether all were collected.
fn settle(tree: &mut BorrowedTree<'_>, settled: &mut HashMap<InstanceId, bool>, handle: u64) -> bool {
    let Some(instance) = tree.instance_of(handle) else { return true };
    *settled.entry(instance).or_insert_with(|| tree.settle(handle))
}
