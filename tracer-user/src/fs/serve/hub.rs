//! What requests, the thread that owns the tree and the daemon's loop share.

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
        instance::{Marks, Mirror, mark::Mark, user::PendingUpdates},
        quota::{Charge, Quotas},
    },
    event::InstanceId,
    fs::{
        helpers::opener::Opener,
        tree::{attributes::Attributes, dispatch::Tree},
    },
    ring::Waiter,
};

/// How long the kernel may keep names and attributes: numbers mean the same for ever, and every change comes through it.
pub(in crate::fs) const TTL: Duration = Duration::from_secs(3600);
/// How long what programs set may take to be kept: one of them may set much.
const KEEP_APART: Duration = Duration::from_millis(100);

/// How long records are taken in at a time, of all instances.
const STEP: Duration = Duration::from_millis(20);

/// The same for what may go, events that were made and their systems.
pub(in crate::fs) fn kept(attributes: &Attributes) -> Duration {
    if attributes.lasting { TTL } else { Duration::ZERO }
}

/// What requests and the daemon share.
pub(in crate::fs) struct Hub {
    jobs: Arc<Jobs>,
    /// Reads that wait, and who polls.
    pub(in crate::fs) waits: Waits,
    /// Streams of pages that are open to be read.
    pub(in crate::fs) streams: Streams,
    keeper: Option<Mutex<Keeper>>,
    /// When what programs set is to be kept.
    keep_at: Mutex<Option<Instant>>,
    /// Tells programs of user events.
    pub(in crate::fs) teller: Teller,
    /// What each uid's clients have.
    pub(in crate::fs) quotas: Quotas,
    /// Opens the files that clients name.
    pub(in crate::fs) opener: Arc<Opener>,
    /// Asks the kernel what takes long.
    pub(in crate::fs) lookups: Lookups,
    /// For the open files.
    charges: Mutex<HashMap<u64, Charge>>,
    rings: Arc<Waiter>,
    /// Whether the kernel maps files that it keeps no pages of (6.6 and later).
    maps_directly: AtomicBool,
    /// Whether these jobs are queued already.
    serving: AtomicBool,
    collecting: AtomicBool,
    /// The instance at which taking records in goes on.
    next: Mutex<InstanceId>,
    own: Weak<Self>,
    /// Something changed that the daemon may have to act on.
    pub(in crate::fs) changed: Notify,
    /// The tree's owner answered.
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

    /// The tree's thread and what is queued for it.
    pub(in crate::fs) fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Has something done by the thread that owns the tree.
    pub(in crate::fs) fn post(
        &self,
        uid: u32,
        name: &'static str,
        when: When,
        act: impl FnOnce(&mut View<'_>) + Send + 'static,
    ) {
        self.jobs.post(uid, name, when, act);
    }

    /// The number of an open file's table of user events, where it has one.
    pub(in crate::fs) fn user_file(&self, handle: u64) -> Option<u64> {
        self.jobs.files().user_file(handle)
    }

    /// Where writes to an open file go, where they are marks.
    pub(in crate::fs) fn marks(&self, handle: u64) -> Option<(Arc<Marks>, Mark)> {
        self.jobs.files().marks(handle)
    }

    /// Counts an open file for a uid.
    pub(in crate::fs) fn hold(&self, handle: u64, charge: Charge) {
        lock(&self.charges).insert(handle, charge);
    }

    /// Counts it no more.
    pub(in crate::fs) fn let_go(&self, handle: u64) {
        lock(&self.charges).remove(&handle);
    }

    /// Tells programs what there is to tell, and then does something.
    pub(in crate::fs) fn tell(&self, news: PendingUpdates, then: impl FnOnce() + Send + 'static) {
        self.teller.tell(news, then);
    }

    /// Lets the kernel forget the page that programs map.
    pub(in crate::fs) fn forget_page(&self) {
        self.teller.forget_page();
    }

    /// Learns what became of programs, and tells them.
    pub(in crate::fs) fn learn_tasks(&self) {
        let hub = Weak::clone(&self.own);
        self.post(OWN, "tasks", When::Alone, move |view| {
            if let Some(hub) = hub.upgrade() {
                let news = view.mirror().user_news();
                hub.tell(news, || {});
            }
        });
    }

    /// Learns events of modules, unless an operation is going on.
    pub(in crate::fs) fn learn_modules(mirror: &mut Mirror) {
        if !mirror.is_within_turn() {
            mirror.learn_modules();
        }
    }

    /// What is to be done behind an operation: keeps what was set, watches new rings, and says what is to be told to programs.
    pub(in crate::fs) fn finish(&self, mirror: &mut Mirror) -> PendingUpdates {
        self.keep_state(mirror);
        self.attend(mirror)
    }

    /// The same without keeping what was set.
    pub(in crate::fs) fn attend(&self, mirror: &mut Mirror) -> PendingUpdates {
        for ring in mirror.rings() {
            // One that is watched already says so.
            let _ = self.rings.watch(ring);
        }
        self.changed.notify_one();
        mirror.user_news()
    }

    /// Keeps what programs set, soon.
    pub(in crate::fs) fn keep_soon(&self) {
        if self.keeper.is_some() {
            lock(&self.keep_at).get_or_insert_with(|| Instant::now() + KEEP_APART);
        }
    }

    /// Waits until there is something to keep that programs set.
    pub(in crate::fs) async fn keep_due(&self) {
        let at = *lock(&self.keep_at);
        match at {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Keeps it.
    pub(in crate::fs) fn keep_now(&self) {
        *lock(&self.keep_at) = None;
        let hub = Weak::clone(&self.own);
        self.post(OWN, "keep", When::Alone, move |view| {
            if let Some(hub) = hub.upgrade() {
                hub.keep_state(view.mirror());
            }
        });
    }

    /// Keeps what was set, where it is kept.
    pub(in crate::fs) fn keep_state(&self, mirror: &Mirror) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).keep(mirror);
        }
    }

    /// Forgets what was kept: the end is a regular one.
    pub(in crate::fs) fn forget_kept(&self) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).forget();
        }
    }

    /// Answers those who wait, so far as there is something for them.
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

    fn serve_in(&self, view: &mut View<'_>) -> bool {
        // Records are printed with what takes long to be read.
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

    /// Takes in what was recorded, and answers those who wait for it.
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

    /// Whether the kernel maps files that it keeps no pages of.
    pub(in crate::fs) fn maps_directly(&self) -> bool {
        self.maps_directly.load(Ordering::Acquire)
    }

    pub(in crate::fs) fn set_maps_directly(&self, maps: bool) {
        self.maps_directly.store(maps, Ordering::Release);
    }
}
