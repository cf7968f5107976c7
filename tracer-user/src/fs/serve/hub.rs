//! The state that the thread of requests, the owner of the tree and the main loop share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use fuser::{FileAttr, FileType, INodeNo, Request};
use tokio::sync::Notify;

use super::{
    lookups::Lookups,
    notify::ProgramUpdater,
    owner::{BorrowedTree, Jobs, OWN, When},
    signals::{Reader, Signals},
    state_file::StateFile,
    streams::{self, Streams},
    waits::Waits,
};
use crate::{
    engine::{
        Cooperative, Engine, Saving,
        payers::Payers,
        quota::{Charge, Quotas},
        records::{collect_names, leave_unread},
        saved::{ListedChange, log_failed},
    },
    event::InstanceId,
    fs::{
        helpers::opener::Opener,
        threads::lock,
        tree::{attributes::Attributes, dispatch::Tree, inodes::Inodes},
    },
    ring::Waiter,
};

/// How long the kernel may cache names and attributes of directories, except those of removable events ([`kept`]).
/// Their numbers keep their meaning, and all changes are requests of the kernel.
pub(crate) const TTL: Duration = Duration::from_secs(3600);
/// How long changes by programs (user events) can wait until they are saved: a program can make many changes.
const SAVE_INTERVAL: Duration = Duration::from_millis(100);

/// How long one job collects records, of all instances.
const STEP: Duration = Duration::from_millis(20);
/// The size of files that can be mapped, before 6.6: a read(2) goes through the page cache, which ends there. The end of
/// the text corrects it.
const CACHED_TEXT_MAX: u64 = 16 << 20;

/// How long the kernel may cache a name: not at all for files, whose inode depends on the payer ([`Inodes`]), and for
/// dynamic events and their systems, which can be removed.
pub(crate) fn kept(attributes: &Attributes) -> Duration {
    if attributes.lasting && attributes.is_dir { TTL } else { Duration::ZERO }
}

pub(crate) struct Hub {
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) waits: Waits,
    signals: Signals,
    pub(crate) streams: Streams,
    pub(crate) inodes: Inodes,
    state_file: Option<Mutex<StateFile>>,
    /// When changes by programs are to be saved.
    save_at: Mutex<Option<Instant>>,
    pub(crate) updater: ProgramUpdater,
    payers: Payers,
    pub(crate) quotas: Quotas,
    pub(crate) opener: Arc<Opener>,
    pub(crate) lookups: Lookups,
    /// The charges of the open files by handle.
    charges: Mutex<HashMap<u64, Charge>>,
    rings: Arc<Waiter>,
    /// Whether the kernel can map files that are opened with `FOPEN_DIRECT_IO` (6.6 and later).
    maps_directly: AtomicBool,
    /// Whether the job that serves waiting reads is queued.
    serving: AtomicBool,
    /// Whether the job that collects records is queued.
    collecting: AtomicBool,
    /// Whether it collects records for which nobody waits.
    collecting_all: AtomicBool,
    /// The instance with which collecting records continues.
    next: Mutex<InstanceId>,
    own: Weak<Self>,
    /// Something changed: waiting reads and polls must be served.
    pub(crate) changed: Notify,
    /// The tree's owner has run the job of a heartbeat.
    pub(crate) alive: Notify,
    /// The file system was unmounted.
    pub(crate) gone: Notify,
}

impl Hub {
    pub(crate) fn new(
        mut tree: Tree,
        state_file: Option<StateFile>,
        rings: Arc<Waiter>,
        opener: Opener,
    ) -> Arc<Self> {
        let quotas = tree.engine().quotas.clone();
        Quotas::prepare();
        let updater = ProgramUpdater::new(tree.engine().user.page().clone());
        Arc::new_cyclic(|own| Self {
            jobs: Jobs::new(tree),
            waits: Waits::default(),
            signals: Signals::new(quotas.clone()),
            streams: Streams::default(),
            inodes: Inodes::default(),
            state_file: state_file.map(Mutex::new),
            save_at: Mutex::default(),
            updater,
            payers: Payers::new(quotas.clone()),
            quotas,
            opener: Arc::new(opener),
            lookups: Lookups::default(),
            charges: Mutex::default(),
            rings,
            maps_directly: AtomicBool::new(false),
            serving: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            collecting_all: AtomicBool::new(false),
            next: Mutex::new(InstanceId::TOP),
            own: Weak::clone(own),
            changed: Notify::new(),
            alive: Notify::new(),
            gone: Notify::new(),
        })
    }

    pub(crate) fn payer(&self, request: &Request) -> u32 {
        self.payers.payer(request.uid(), request.pid())
    }

    /// The payer of a request to an open file. A set-user-ID program uses files that its caller opened, so root's
    /// requests count for the payer that opened the file.
    pub(crate) fn payer_at(&self, request: &Request, handle: u64) -> u32 {
        match self.payer(request) {
            0 => lock(&self.charges).get(&handle).map_or(0, Charge::payer),
            payer => payer,
        }
    }

    /// Queues a job of the daemon itself, which does nothing once the hub is gone.
    fn post(
        &self,
        name: &'static str,
        when: When,
        act: impl FnOnce(&Self, &mut BorrowedTree<'_>) + Send + 'static,
    ) {
        let hub = Weak::clone(&self.own);
        self.jobs.post(OWN, name, when, move |tree| {
            if let Some(hub) = hub.upgrade() {
                act(&hub, tree);
            }
        });
    }

    pub(crate) fn hold(&self, handle: u64, charge: Charge) {
        lock(&self.charges).insert(handle, charge);
    }

    pub(crate) fn release_handle(&self, handle: u64) {
        lock(&self.charges).remove(&handle);
    }

    /// Queues a job that learns about forks, execs and exits of programs with user events, and updates programs.
    pub(crate) fn learn_tasks(&self) {
        self.post("tasks", When::Alone, |hub, tree| hub.change(tree, |_| (), |()| {}));
    }

    /// Queues a job that learns the events of loaded and unloaded modules.
    pub(crate) fn learn_modules(&self) {
        self.post("modules", When::Alone, |hub, tree| {
            hub.change(tree, |tree| tree.engine().learn_modules(), |()| {});
        });
    }

    /// Learns the events of loaded and unloaded modules for a request that looks for files, except in a turn within
    /// another operation. The next change applies the effects.
    pub(crate) fn modules_now(engine: &mut Engine) {
        if !engine.scheduler().is_serving() {
            engine.learn_modules();
        }
    }

    /// Queues a job that applies a new configuration.
    pub(crate) fn apply(&self, listed: ListedChange, done: impl FnOnce() + Send + 'static) {
        self.post("reload", When::Alone, move |hub, tree| {
            if let Some(state_file) = &hub.state_file {
                lock(state_file).set_listed(&listed.new);
            }
            hub.change(tree, |tree| log_failed(listed.apply(tree.engine())), |()| done());
            hub.save_state(tree.engine());
        });
    }

    /// Executes a change, applies its effects, and then answers the client with its result. The settings are saved,
    /// and programs with user events are updated, before the answer.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        tree: &mut BorrowedTree<'_>,
        act: impl FnOnce(&mut BorrowedTree<'_>) -> T,
        answer: impl FnOnce(T) + Send + 'static,
    ) {
        let done = act(tree);
        let engine = tree.engine();
        let effects = engine.take_effects();
        match effects.saving {
            Saving::Nothing => {}
            Saving::Soon => self.save_soon(),
            Saving::Now => self.save_state(engine),
        }
        if effects.rings {
            for ring in engine.rings() {
                // A ring that is watched already returns an error.
                let _ = self.rings.watch(ring);
            }
        }
        self.changed.notify_one();
        self.updater.update(effects.updates, move || answer(done));
    }

    /// Saves changes by programs, after at most [`SAVE_INTERVAL`].
    fn save_soon(&self) {
        if self.state_file.is_some() {
            lock(&self.save_at).get_or_insert_with(|| Instant::now() + SAVE_INTERVAL);
        }
    }

    /// When changes by programs must be saved.
    pub(crate) fn save_at(&self) -> Option<Instant> {
        *lock(&self.save_at)
    }

    /// Queues the job that saves changes by programs.
    pub(crate) fn save_now(&self) {
        *lock(&self.save_at) = None;
        self.post("save", When::Alone, |hub, tree| hub.save_state(tree.engine()));
    }

    fn save_state(&self, engine: &Engine) {
        if let Some(state_file) = &self.state_file {
            lock(state_file).save(engine);
        }
    }

    /// Saves the settings a last time, if they stay for the next daemon.
    pub(crate) fn save_for_next(&self, engine: &Engine) {
        if let Some(state_file) = self.state_file.as_ref().map(lock).filter(|state_file| state_file.stays()) {
            drop(state_file);
            self.save_state(engine);
        }
    }

    /// Removes the saved settings, unless they stay, because the daemon ends regularly.
    pub(crate) fn end_state(&self) {
        if let Some(state_file) = &self.state_file {
            lock(state_file).end();
        }
    }

    /// Ends the waiting reads whose thread has a pending signal. Another thread looks for the signals.
    pub(crate) fn end_interrupted(&self) {
        let hub = Weak::clone(&self.own);
        let interrupt = move |reader: &Reader| {
            if let Some(hub) = hub.upgrade() {
                hub.waits.interrupt(&hub.streams, reader);
            }
        };
        self.signals.look(|| self.waits.readers(), interrupt);
    }

    /// Queues the job that answers waiting reads and polls that are ready.
    pub(crate) fn serve(&self) {
        if self.waits.is_empty() || self.serving.swap(true, Ordering::AcqRel) {
            return;
        }
        self.post("serve", When::Any, |hub, tree| {
            hub.serving.store(false, Ordering::Release);
            if !hub.serve_in(tree) {
                hub.serve();
            }
        });
    }

    /// Answers waiting reads and polls that are ready. Returns `false` if another job must look at the rest.
    fn serve_in(&self, tree: &mut BorrowedTree<'_>) -> bool {
        // Printing records needs facts that take long to read.
        if self.waits.has_reads() && !tree.engine().facts.can_print() {
            let hub = Weak::clone(&self.own);
            self.lookups.queue(OWN, tree.lookup_of(None), move |_| {
                if let Some(hub) = hub.upgrade() {
                    hub.serve();
                }
            });
            return true;
        }
        self.waits.serve(tree, &self.streams)
    }

    /// Queues the job that collects the records of all instances.
    pub(crate) fn collect_all(&self) {
        self.collecting_all.store(true, Ordering::Release);
        self.collect();
    }

    /// Queues the job that collects records because a ring is half full, and answers the reads that wait for them. If
    /// nobody waits, programs may overwrite the oldest records instead.
    pub(crate) fn collect(&self) {
        if self.collecting.swap(true, Ordering::AcqRel) {
            return;
        }
        self.post("collect", When::Any, |hub, tree| {
            hub.collecting.store(false, Ordering::Release);
            let since = Instant::now();
            let mut instances = tree.engine().attachments.recording();
            let next = *lock(&hub.next);
            let first = instances.iter().position(|instance| *instance >= next).unwrap_or(0);
            instances.rotate_left(first);
            let mut all = true;
            let leaves = !hub.collecting_all.swap(false, Ordering::AcqRel) && !hub.waits.is_awaited();
            collect_names(tree.engine());
            for instance in instances {
                if leaves && leave_unread(tree.engine(), instance) {
                    continue;
                }
                if since.elapsed() > STEP {
                    *lock(&hub.next) = instance;
                    all = false;
                    break;
                }
                all &= tree.engine().collect_some(instance);
            }
            all &= hub.serve_in(tree);
            if !all {
                if leaves {
                    hub.collect();
                } else {
                    hub.collect_all();
                }
            }
        });
    }

    /// The attributes of an inode in FUSE's form.
    pub(crate) fn attr(&self, attributes: &Attributes, ino: u64, since: SystemTime) -> FileAttr {
        FileAttr {
            ino: INodeNo(ino),
            size: match attributes.size {
                _ if self.streams.is_open(ino) => streams::SIZE,
                1.. if !self.maps_directly() => CACHED_TEXT_MAX,
                size => size,
            },
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

    pub(crate) fn maps_directly(&self) -> bool {
        self.maps_directly.load(Ordering::Acquire)
    }

    pub(crate) fn set_maps_directly(&self, maps: bool) {
        self.maps_directly.store(maps, Ordering::Release);
    }
}
