//! The daemon: it mounts the mirror, runs the main loop and ends.
//!
//! The main loop waits for signals, full rings, changes of modules and timers. While no read or poll waits, no timer
//! collects records: they stay in the rings until a ring is half full or a file is read.

pub(in crate::fs) mod descriptors;
pub(in crate::fs) mod place;

use std::{
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, mpsc::channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use fuser::{Config, Session, SessionACL};
use rustix::io::Errno;
use tokio::{
    io::unix::{AsyncFd, AsyncFdReadyGuard},
    signal::unix::{SignalKind, signal},
};

use self::place::{Mounted, Place, SOURCE};
use super::{
    helpers::{Helpers, opener::Opener, reaper},
    serve::{
        fuse::Fuse,
        hub::Hub,
        owner::{OWN, When},
        state_file::Keeper,
    },
    tree::{attributes::Owner, dispatch::Tree},
};
use crate::{
    attach,
    engine::{
        Cooperative, Engine,
        client_memory::ClientMemory,
        confine::{self, Role},
        saved::Boot,
    },
    ring::Waiter,
    sys::{mount, process::worker::Worker},
};

/// How often the rings are looked at while reads or polls wait for records.
const PERIOD: Duration = Duration::from_millis(10);

/// How often the pending signals of threads with waiting reads are looked up.
const SIGNALS: Duration = Duration::from_millis(20);

/// How long the end may take, without the time to hand events to the process that closes them.
const END: Duration = Duration::from_secs(1);

/// How long the end waits until probes of user files are detached.
const UNLINK: Duration = Duration::from_millis(800);

/// A regular sign of life of the main loop. It is given after the tree's owner has answered, so that a daemon whose owner is
/// stuck gives none.
pub struct Heartbeat {
    /// The interval.
    pub every: Duration,
    /// Gives the sign of life.
    pub beat: Box<dyn Fn()>,
}

impl std::fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heartbeat").field("every", &self.every).finish_non_exhaustive()
    }
}

/// How a mirror is served.
#[derive(Debug)]
pub struct Options {
    /// The mount point.
    pub at: PathBuf,
    /// The owner of the files.
    pub owner: Owner,
    /// Whether to mount over another mirror that is served.
    pub over: bool,
    /// The processes that work for it.
    pub helpers: Helpers,
    /// The sign of life, if one is wanted.
    pub heartbeat: Option<Heartbeat>,
    /// The pidfd of a process with which the mirror ends.
    pub until: Option<OwnedFd>,
    /// Whether to save the settings in a file while the daemon runs.
    pub keep: bool,
    /// Whether to restore the settings that a killed daemon saved.
    pub restore: bool,
    /// The settings at the start, if none are restored.
    pub boot: Vec<Boot>,
}

/// Serves a mirror until SIGINT or SIGTERM arrives, the process of [`Options::until`] ends, or the mirror is unmounted.
/// Calls `ready` after the mount.
///
/// # Errors
/// When the mirror cannot be mounted, or another mirror is mounted there.
pub fn serve(mirror: Engine, mut options: Options, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let place = Place::prepare(&options.at, options.over)?;
    descriptors::allow_descriptors();
    let (mut mirror, mut keeper) = (mirror, options.keep.then(|| Keeper::new(place.path())));
    if let Some(closer) = options.helpers.closer.take() {
        mirror.guard_with(closer.into_socket()?);
    }
    let memory = std::mem::take(&mut options.helpers.memory).into_iter().map(Worker::into_socket);
    let memory = ClientMemory::start(memory.collect::<io::Result<_>>()?)?;
    mirror.reach_programs_by(memory.clone());
    let openers = std::mem::take(&mut options.helpers.openers).into_iter().map(Worker::into_socket);
    let opener = Opener::new(openers.collect::<Result<_, _>>()?);
    prepare(&mut mirror, keeper.as_mut(), &opener, &options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(mirror, (memory, opener, place), keeper, options, ready))
}

async fn run(
    mirror: Engine,
    (memory, opener, place): (ClientMemory, Opener, Place),
    keeper: Option<Keeper>,
    options: Options,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let waiter = Arc::new(Waiter::new(&[])?);
    // `AsyncFd` is deprecated for types whose descriptor can change or be closed. A waiter keeps its descriptor.
    #[expect(deprecated)]
    let rings = AsyncFd::new(Arc::clone(&waiter))?;
    #[expect(deprecated)]
    let until = options.until.map(AsyncFd::new).transpose()?;
    let ended = async {
        match &until {
            Some(process) => drop(process.readable().await),
            None => std::future::pending().await,
        }
    };
    tokio::pin!(ended);
    #[expect(deprecated)]
    let modules = mirror.registry().module_fd().map(AsyncFd::new).transpose()?;
    let facts = Arc::clone(&mirror.facts);
    let hub = Hub::new(Tree::new(mirror, options.owner), keeper, waiter, opener);
    let its = Arc::downgrade(&hub);
    memory.on_attention(move || {
        if let Some(hub) = its.upgrade() {
            hub.learn_tasks();
        }
    });
    let mut config = Config::default();
    config.acl = SessionACL::All;
    // One thread keeps requests in order. FUSE reports a close asynchronously, and the close must come before the client's
    // next request, or else a closed file would still be busy. The thread only queues jobs and never blocks.
    config.n_threads = Some(1);
    let (device, root) = mount::fuse(SOURCE)?;
    let session = Session::from_fd(Fuse { hub: Arc::clone(&hub) }, device, SessionACL::All, config)?;
    let mounted = place.attach(&root)?;
    // The descriptor would prevent others from unmounting the mirror.
    drop(root);
    // This can need a mount, which the system call filter below forbids.
    let _ = facts.preemption();
    let ours = Arc::clone(&hub);
    let warmed = std::thread::Builder::new().name("facts".to_owned()).spawn(move || {
        // Requests that do not need these facts have priority.
        let _ = rustix::process::setpriority_process(None, 10);
        facts.warm();
        // Marks need the address of a function, which is known now.
        ours.post(OWN, "marks", When::Any, |view| view.mirror().stale_marks());
    });
    if let Err(error) = warmed {
        tracing::debug!("facts are read when they are needed: {error}");
    }
    // The filter is in place before the first request is served.
    confine::filter_calls(Role::Daemon);
    let owner = hub.jobs().start()?;
    let session = session.spawn()?;
    hub.teller.notify_by(session.notifier());
    hub.streams.tell_by(session.notifier());
    ready()?;
    let mut beats = options.heartbeat.as_ref().map(|heartbeat| tokio::time::interval(heartbeat.every));
    let mut looked = tokio::time::interval(SIGNALS);
    looked.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let served = loop {
        tokio::select! {
            _ = interrupt.recv() => break true,
            _ = terminate.recv() => break true,
            () = &mut ended => break true,
            () = hub.gone.notified() => break false,
            full = rings.readable() => {
                full?.clear_ready();
                // This clears the readiness, so that only new records wake the loop again.
                rings.get_ref().wait(Duration::ZERO)?;
                hub.collect();
                hub.learn_tasks();
            }
            changed = readable(modules.as_ref()) => {
                changed?.clear_ready();
                hub.post(OWN, "modules", When::Alone, |view| Hub::learn_modules(view.mirror()));
            }
            () = tick(beats.as_mut()) => {
                let ours = Arc::clone(&hub);
                hub.post(OWN, "beat", When::Any, move |_| ours.alive.notify_one());
            }
            () = hub.alive.notified() => {
                if let Some(heartbeat) = &options.heartbeat {
                    (heartbeat.beat)();
                }
            }
            () = hub.changed.notified() => hub.serve(),
            () = tokio::time::sleep(PERIOD), if hub.waits.is_awaited() => hub.serve(),
            _ = looked.tick(), if hub.waits.has_reads() => hub.waits.end_interrupted(),
            () = hub.keep_due() => hub.keep_now(),
        }
    };
    let done = end(&hub, owner, served.then_some(mounted));
    drop(session);
    done
}

/// Ends everything within [`END`], even if a client is stuck or the kernel takes long to detach programs.
fn end(hub: &Arc<Hub>, owner: JoinHandle<()>, mounted: Option<Mounted>) -> io::Result<()> {
    let since = Instant::now();
    hub.jobs().stop();
    let (give, given) = channel();
    hub.post(OWN, "end", When::Ending, move |view| {
        let mirror = view.mirror();
        let farewell = mirror.end_user_events();
        let step = mirror.scheduler().longest_step();
        tracing::debug!(name = step.name, ms = step.took.as_millis(), "longest step");
        let _ = give.send(farewell);
    });
    if let Ok(Some(farewell)) = given.recv_timeout(END / 3) {
        // An access to programs' memory can block, so another thread waits for it.
        let (done, is_done) = channel();
        let wait = move || {
            farewell.wait();
            let _ = done.send(());
        };
        if std::thread::Builder::new().name("farewell".to_owned()).spawn(wait).is_ok() {
            let _ = is_done.recv_timeout(END / 3);
        }
    }
    // From now on, open files return errors, and requests that wait for an answer fail at once.
    let unmounted = mounted.map_or(Ok(()), Mounted::unmount);
    hub.waits.end();
    hub.forget_kept();
    let (begin, begun) = channel();
    let (give, given) = channel();
    hub.post(OWN, "end", When::Ending, move |view| {
        let _ = begin.send(());
        let _ = give.send(view.mirror().end());
    });
    let ended = given.recv_timeout(END.saturating_sub(since.elapsed())).ok();
    let is_over = ended.is_some();
    if let Some(events) = ended {
        reaper::close(events);
    } else {
        // The guard process closes the rest, as when this process is killed.
        if begun.try_recv().is_ok() {
            tracing::info!("the kernel takes long to detach programs; they go with this process");
        } else {
            tracing::warn!("an operation did not end in time; what it attached goes with this process");
        }
    }
    hub.jobs().end();
    if is_over {
        // The owner has no work left.
        let _ = owner.join();
    }
    if !attach::close_files(UNLINK) {
        tracing::warn!("a process keeps probes of its files from being taken off; they go with this process");
    }
    unmounted
}

/// Waits for the next heartbeat; for ever if there is none.
async fn tick(beats: Option<&mut tokio::time::Interval>) {
    match beats {
        Some(beats) => drop(beats.tick().await),
        None => std::future::pending().await,
    }
}

/// Waits until a descriptor is readable; for ever if there is none.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}

/// Restores the settings of a killed daemon, or else applies the settings of the start.
fn prepare(mirror: &mut Engine, keeper: Option<&mut Keeper>, opener: &Opener, options: &Options) {
    mirror.read_special_formats();
    let log_failed = |failed: Vec<(String, Errno)>| {
        for (what, error) in failed {
            tracing::warn!("{what}: {error}");
        }
    };
    let saved = keeper.as_ref().filter(|_| options.restore).and_then(|keeper| keeper.load());
    if let Some(saved) = saved {
        let quotas = mirror.quotas.clone();
        log_failed(mirror.restore(&saved, &mut |wanted| opener.look_now(&quotas, wanted)));
    } else {
        if let Some(keeper) = &keeper {
            keeper.forget();
        }
        options.boot.iter().for_each(|boot| log_failed(mirror.boot(boot)));
    }
    if let Some(keeper) = keeper {
        keeper.keep(mirror);
    }
}
