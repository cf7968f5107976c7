//! Updates of user events in programs. A program sees that an event was enabled before the client that enabled it is
//! answered.
//!
//! A separate process writes the bits in the programs' memory, with a deadline. A thread writes the status page,
//! which programs map. It holds neither the tree nor a FUSE request meanwhile: the kernel may first read a page of
//! the mirror, which is another request. The kernel locks a page until such a read is answered, so the thread that
//! receives requests answers it, whatever else its client has requested.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use fuser::{INodeNo, Notifier};

use crate::{
    engine::user::{PendingUpdates, StatusBytes},
    fs::threads::{lock, spawn},
};

type Then = Box<dyn FnOnce() + Send>;

/// Writes the status page, or drops the kernel's copy of it if `stale`, and then calls `then`.
struct Job {
    stale: bool,
    then: Then,
}

/// Access to the status page and to the kernel, for the thread.
struct StatusPage {
    bytes: StatusBytes,
    /// The inode of each open file by handle. Each payer has an inode of its own, and a mapping keeps its file open.
    open: Mutex<HashMap<u64, u64>>,
    /// Empty until the file system is mounted.
    notifier: OnceLock<Notifier>,
}

/// Updates programs after changes. The thread starts with the first change of the page.
pub(crate) struct ProgramUpdater {
    page: Arc<StatusPage>,
    jobs: Mutex<Option<Sender<Job>>>,
    /// When a page of text was last put into the kernel's page cache, until it is dropped.
    text_cached: Mutex<Option<Instant>>,
}

/// How long pages of text stay in the page cache if their reader does not go on.
const TEXT_AGE: Duration = Duration::from_millis(100);

impl ProgramUpdater {
    pub(crate) fn new(bytes: StatusBytes) -> Self {
        let page = StatusPage { bytes, open: Mutex::default(), notifier: OnceLock::new() };
        Self { page: Arc::new(page), jobs: Mutex::default(), text_cached: Mutex::default() }
    }

    pub(crate) fn notify_by(&self, notifier: Notifier) {
        let _ = self.page.notifier.set(notifier);
    }

    /// Adds an open file of the status page.
    pub(crate) fn open_page(&self, handle: u64, ino: u64) {
        lock(&self.page.open).insert(handle, ino);
    }

    /// Removes an open file; does nothing for other files.
    pub(crate) fn close_page(&self, handle: u64) {
        lock(&self.page.open).remove(&handle);
    }

    /// The page, if it is what this open file shows.
    pub(crate) fn page_of(&self, handle: u64) -> Option<Vec<u8>> {
        let is_open = lock(&self.page.open).contains_key(&handle);
        is_open.then(|| self.page.bytes.to_vec())
    }

    /// Performs the updates of programs and then calls `then`, immediately if there are no updates.
    pub(crate) fn update(&self, updates: PendingUpdates, then: impl FnOnce() + Send + 'static) {
        let PendingUpdates { ticket, page } = updates;
        let then: Then = match ticket {
            Some(ticket) => Box::new(move || ticket.then(then)),
            None => Box::new(then),
        };
        // The page is written first. The bits are usually written by then.
        if page { self.send(Job { stale: false, then }) } else { then() }
    }

    /// Drops the kernel's copy of the page that programs map.
    pub(crate) fn forget_page(&self) {
        self.send(Job { stale: true, then: Box::new(|| {}) });
    }

    /// A page of text is in the kernel's page cache, and its reader will read the next one.
    pub(crate) fn set_caches_text(&self) {
        *lock(&self.text_cached) = Some(Instant::now());
    }

    /// Whether pages of text may be in the kernel's page cache.
    pub(crate) fn caches_text(&self) -> bool {
        lock(&self.text_cached).is_some()
    }

    /// Drops pages of text whose reader did not go on.
    pub(crate) fn forget_old_text(&self) {
        let is_old = lock(&self.text_cached).take_if(|since| since.elapsed() > TEXT_AGE).is_some();
        if is_old {
            self.forget_page();
        }
    }

    fn send(&self, job: Job) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            *jobs = start(Arc::clone(&self.page));
        }
        let unsent = match &*jobs {
            Some(jobs) => jobs.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        drop(jobs);
        if let Some(job) = unsent {
            (job.then)();
        }
    }
}

fn start(page: Arc<StatusPage>) -> Option<Sender<Job>> {
    let (jobs, taken) = channel::<Job>();
    let run = move || {
        while let Ok(first) = taken.recv() {
            // One write of the page serves all queued jobs, so that no job waits for many writes.
            let jobs: Vec<Job> = std::iter::once(first).chain(taken.try_iter()).collect();
            if jobs.iter().any(|job| job.stale) {
                page.put(true);
            }
            if jobs.iter().any(|job| !job.stale) {
                page.put(false);
            }
            for job in jobs {
                (job.then)();
            }
        }
    };
    let started = spawn("notify", run);
    started
        .inspect_err(|error| tracing::warn!("cannot update programs of user events: {error}"))
        .ok()
        .map(|_| jobs)
}

impl StatusPage {
    /// Writes the page to the kernel's page cache, where existing mappings see it, or drops it from there if `stale`.
    fn put(&self, stale: bool) {
        let page = self.bytes.to_vec();
        let Some(notifier) = self.notifier.get() else { return };
        let inodes: BTreeSet<u64> = lock(&self.open).values().copied().collect();
        for ino in inodes.into_iter().map(INodeNo) {
            let done = if stale { notifier.inval_inode(ino, 0, -1) } else { notifier.store(ino, 0, &page) };
            if let Err(error) = done {
                // The file was closed, and the kernel has forgotten it.
                tracing::debug!("no status page: {error}");
            }
        }
    }
}
