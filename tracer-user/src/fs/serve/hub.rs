//! The state that the thread of requests, the owner of the tree and the main loop share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use fuser::{FileAttr, FileType, INodeNo};
use tokio::sync::Notify;

use super::{
    lookups::Lookups,
    notify::Teller,
    owner::{Jobs, OWN, View, When},
    state_file::Keeper,
    streams::{self, Streams},
    waits::Waits,
};
use crate::{
    engine::{
        Cooperative, Engine,
        quota::{Charge, Quotas},
        records::{Mark, Marks},
        user::PendingUpdates,
    },
    event::InstanceId,
    fs::{
        helpers::opener::Opener,
        tree::{attributes::Attributes, dispatch::Tree},
    },
    ring::Waiter,
};

/// How long the kernel may cache names and attributes. A number never gets another meaning, and all changes are requests of
/// the kernel.
pub(in crate::fs) const TTL: Duration = Duration::from_secs(3600);
/// How long changes by programs (user events) can wait until they are saved: a program can make many changes.
const KEEP_APART: Duration = Duration::from_millis(100);

/// How long one job collects records, of all instances.
const STEP: Duration = Duration::from_millis(20);

/// How long the kernel may cache a name: not at all for dynamic events and their systems, which can be removed.
pub(in crate::fs) fn kept(attributes: &Attributes) -> Duration {
    if attributes.lasting { TTL } else { Duration::ZERO }
}

/// The shared state.
pub(in crate::fs) struct Hub {
    jobs: Arc<Jobs>,
    /// Reads and polls that wait.
    pub(in crate::fs) waits: Waits,
    /// Streams of pages that are open for reading.
    pub(in crate::fs) streams: Streams,
    keeper: Option<Mutex<Keeper>>,
    /// When changes by programs are to be saved.
    keep_at: Mutex<Option<Instant>>,
    /// Tells programs of user events.
    pub(in crate::fs) teller: Teller,
    /// The resources that each uid uses.
    pub(in crate::fs) quotas: Quotas,
    /// Opens the files that clients name.
    pub(in crate::fs) opener: Arc<Opener>,
    /// Reads facts of the kernel that take long to read.
    pub(in crate::fs) lookups: Lookups,
    /// The charges of the open files by handle.
    charges: Mutex<HashMap<u64, Charge>>,
    rings: Arc<Waiter>,
    /// Whether the kernel can map files that are opened with `FOPEN_DIRECT_IO` (6.6 and later).
    maps_directly: AtomicBool,
    /// Whether the job that serves waiting reads is queued.
    serving: AtomicBool,
    /// Whether the job that collects records is queued.
    collecting: AtomicBool,
    /// The instance with which collecting records continues.
    next: Mutex<InstanceId>,
    own: Weak<Self>,
    /// Something changed: waiting reads and polls must be served.
    pub(in crate::fs) changed: Notify,
    /// The tree's owner has run the job of a heartbeat.
    pub(in crate::fs) alive: Notify,
    /// The file system was unmounted.
    pub(in crate::fs) gone: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(in crate::fs) fn new(
        mut tree: Tree,
        keeper: Option<Keeper>,
        rings: Arc<Waiter>,
        opener: Opener,
    ) -> Arc<Self> {
        let opener = Arc::new(opener);
        let quotas = tree.mirror().quotas.clone();
        let jobs = Jobs::new(tree);
        let teller = Teller::new(&jobs);
        Arc::new_cyclic(|own| Self {
            jobs,
            waits: Waits::default(),
            streams: Streams::default(),
            keeper: keeper.map(Mutex::new),
            keep_at: Mutex::default(),
            teller,
            quotas,
            opener,
            lookups: Lookups::default(),
            charges: Mutex::default(),
            rings,
            maps_directly: AtomicBool::new(false),
            serving: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            next: Mutex::new(InstanceId::TOP),
            own: Weak::clone(own),
            changed: Notify::new(),
            alive: Notify::new(),
            gone: Notify::new(),
        })
    }

    /// The queue of the tree's owner.
    pub(in crate::fs) fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Queues a job ([`Jobs::post`]).
    pub(in crate::fs) fn post(
        &self,
        uid: u32,
        name: &'static str,
        when: When,
        act: impl FnOnce(&mut View<'_>) + Send + 'static,
    ) {
        self.jobs.post(uid, name, when, act);
    }

    /// The number of an open file's table of user events, if it has one.
    pub(in crate::fs) fn user_file(&self, handle: u64) -> Option<u64> {
        self.jobs.files().user_file(handle)
    }

    /// The queue of marks that receives the writes to an open file, if there is one.
    pub(in crate::fs) fn marks(&self, handle: u64) -> Option<(Arc<Marks>, Mark)> {
        self.jobs.files().marks(handle)
    }

    /// Keeps the charge of an open file.
    pub(in crate::fs) fn hold(&self, handle: u64, charge: Charge) {
        lock(&self.charges).insert(handle, charge);
    }

    /// Drops the charge of a file that was closed.
    pub(in crate::fs) fn let_go(&self, handle: u64) {
        lock(&self.charges).remove(&handle);
    }

    /// Tells programs about updates and then calls `then`.
    pub(in crate::fs) fn tell(&self, news: PendingUpdates, then: impl FnOnce() + Send + 'static) {
        self.teller.tell(news, then);
    }

    /// Drops the kernel's copy of the page that programs map.
    pub(in crate::fs) fn forget_page(&self) {
        self.teller.forget_page();
    }

    /// Queues a job that learns about forks, execs and exits of programs with user events, and tells programs.
    pub(in crate::fs) fn learn_tasks(&self) {
        let hub = Weak::clone(&self.own);
        self.post(OWN, "tasks", When::Alone, move |view| {
            if let Some(hub) = hub.upgrade() {
                let news = view.mirror().user_news();
                hub.tell(news, || {});
            }
        });
    }

    /// Learns the events of loaded and unloaded modules, except in a turn within another operation.
    pub(in crate::fs) fn learn_modules(mirror: &mut Engine) {
        if !mirror.scheduler().is_serving() {
            mirror.learn_modules();
        }
    }

    /// Ends an operation: saves the settings, watches new rings, and returns the updates for programs.
    pub(in crate::fs) fn finish(&self, mirror: &mut Engine) -> PendingUpdates {
        self.keep_state(mirror);
        self.attend(mirror)
    }

    /// As [`Hub::finish`], without saving.
    pub(in crate::fs) fn attend(&self, mirror: &mut Engine) -> PendingUpdates {
        for ring in mirror.rings() {
            // A ring that is watched already returns an error.
            let _ = self.rings.watch(ring);
        }
        self.changed.notify_one();
        mirror.user_news()
    }

    /// Saves changes by programs, after at most [`KEEP_APART`].
    pub(in crate::fs) fn keep_soon(&self) {
        if self.keeper.is_some() {
            lock(&self.keep_at).get_or_insert_with(|| Instant::now() + KEEP_APART);
        }
    }

    /// Waits until changes by programs must be saved.
    pub(in crate::fs) async fn keep_due(&self) {
        let at = *lock(&self.keep_at);
        match at {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Queues the job that saves changes by programs.
    pub(in crate::fs) fn keep_now(&self) {
        *lock(&self.keep_at) = None;
        let hub = Weak::clone(&self.own);
        self.post(OWN, "keep", When::Alone, move |view| {
            if let Some(hub) = hub.upgrade() {
                hub.keep_state(view.mirror());
            }
        });
    }

    /// Saves the settings, if the daemon saves them.
    pub(in crate::fs) fn keep_state(&self, mirror: &Engine) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).keep(mirror);
        }
    }

    /// Removes the saved settings, because the daemon ends regularly.
    pub(in crate::fs) fn forget_kept(&self) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).forget();
        }
    }

    /// Queues the job that answers waiting reads and polls that are ready.
    pub(in crate::fs) fn serve(&self) {
        if self.waits.is_empty() || self.serving.swap(true, Ordering::AcqRel) {
            return;
        }
        let hub = Weak::clone(&self.own);
        self.post(OWN, "serve", When::Any, move |view| {
            let Some(hub) = hub.upgrade() else { return };
            hub.serving.store(false, Ordering::Release);
            if !hub.serve_in(view) {
                hub.serve();
            }
        });
    }

    /// Answers waiting reads and polls that are ready. Returns `false` if another job must look at the rest.
    fn serve_in(&self, view: &mut View<'_>) -> bool {
        // Printing records needs facts that take long to read.
        if self.waits.has_reads() && !view.mirror().facts.can_print() {
            let hub = Weak::clone(&self.own);
            self.lookups.ask(view.lookup_of(None), move |_| {
                if let Some(hub) = hub.upgrade() {
                    hub.serve();
                }
            });
            return true;
        }
        self.waits.serve(view, |handle, offset, length| self.streams.filled(handle, offset, length))
    }

    /// Queues the job that collects records and answers the reads that wait for them.
    pub(in crate::fs) fn collect(&self) {
        if self.collecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let hub = Weak::clone(&self.own);
        self.post(OWN, "collect", When::Any, move |view| {
            let Some(hub) = hub.upgrade() else { return };
            hub.collecting.store(false, Ordering::Release);
            let since = Instant::now();
            let mut instances = view.mirror().recording();
            let next = *lock(&hub.next);
            let first = instances.iter().position(|instance| *instance >= next).unwrap_or(0);
            instances.rotate_left(first);
            let mut all = true;
            for instance in instances {
                if since.elapsed() > STEP {
                    *lock(&hub.next) = instance;
                    all = false;
                    break;
                }
                all &= view.mirror().collect_some(instance);
            }
            all &= hub.serve_in(view);
            if !all {
                hub.collect();
            }
        });
    }

    pub(in crate::fs) fn attr(&self, attributes: &Attributes, since: SystemTime) -> FileAttr {
        FileAttr {
            ino: INodeNo(attributes.number),
            size: if self.streams.is_open(attributes.number) { streams::SIZE } else { attributes.size },
            blocks: 0,
            atime: since,
            mtime: since,
            ctime: since,
            crtime: since,
            kind: if attributes.is_dir { FileType::Directory } else { FileType::RegularFile },
            perm: attributes.mode,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Whether the kernel can map files that are opened with `FOPEN_DIRECT_IO`.
    pub(in crate::fs) fn maps_directly(&self) -> bool {
        self.maps_directly.load(Ordering::Acquire)
    }

    pub(in crate::fs) fn set_maps_directly(&self, maps: bool) {
        self.maps_directly.store(maps, Ordering::Release);
    }
}
