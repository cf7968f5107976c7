//! The daemon: it mounts the mirror, runs the main loop and ends.
//!
//! The main loop waits for signals, full rings, changes of modules and timers. While no read or poll waits, no timer
//! collects records: they stay in the rings until a file is read, and programs overwrite the oldest ones.

pub(crate) mod descriptors;
pub(crate) mod place;

use std::{
    future::pending,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, mpsc::channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use fuser::{Config, Session, SessionACL};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{Signal, SignalKind, signal},
    time::{Interval, MissedTickBehavior, interval, sleep, sleep_until},
};

use self::place::{Mounted, Place, SOURCE};
use super::{
    helpers::{
        Helpers,
        opener::Opener,
        reaper,
        state_writer::{StateLifetime, StateWriter},
    },
    serve::{
        fuse::Fuse,
        hub::Hub,
        owner::{OWN, When},
        state_file::StateFile,
    },
    threads::spawn,
    tree::{attributes::Owner, dispatch::Tree},
};
use crate::{
    attach,
    engine::{
        Cooperative, Engine,
        client_memory::ClientMemory,
        confine, is_published, prepare_marks,
        saved::{self, Boot, ListedChange, log_failed},
    },
    ring::Waiter,
    sys::{mount, process::worker::Worker},
};

/// Interval at which the rings are checked while reads or polls wait for records.
const PERIOD: Duration = Duration::from_millis(10);

/// Interval at which the threads of waiting reads are checked for pending signals.
const SIGNALS: Duration = Duration::from_millis(20);

/// Interval at which the rings are read in any case: the times of records in them are exact for six days.
const RECORD_AGE: Duration = Duration::from_secs(86_400);

/// Limit for the end, without the time to pass events to the process that closes them.
const END: Duration = Duration::from_secs(1);

/// Limit for detaching the probes of user files at the end.
const UNLINK: Duration = Duration::from_millis(800);

/// A regular heartbeat of the main loop. It is sent after the tree's owner has answered, so a daemon with a stuck
/// owner sends none.
pub struct Heartbeat {
    /// The interval.
    pub every: Duration,
    /// Sends the heartbeat.
    pub beat: Box<dyn Fn()>,
}

/// What SIGHUP does: reads the configuration again, and returns the change of [`Options::listed`] and what to call when it is
/// done. `None` if the configuration cannot be used.
pub type Reload = Box<dyn FnMut() -> Option<(ListedChange, Box<dyn FnOnce() + Send>)>>;

/// How a mirror is served.
pub struct Options {
    /// The mount point.
    pub at: PathBuf,
    /// The owner of the files.
    pub owner: Owner,
    /// Whether to mount over another mirror that is served.
    pub over: bool,
    /// The processes that work for the daemon.
    pub helpers: Helpers,
    /// The heartbeat, if one is configured.
    pub heartbeat: Option<Heartbeat>,
    /// The pidfd of a process with which the mirror ends.
    pub until: Option<OwnedFd>,
    /// Where and how long the settings are kept.
    pub state: StateLifetime,
    /// Whether to restore the settings that a killed daemon saved.
    pub restore: bool,
    /// The settings at the start, if none are restored.
    pub boot: Option<Boot>,
    /// Lists of events to enable at the start, `SYSTEM:EVENT,SYSTEM,...`. If a state is restored, what differs from the
    /// lists of the last daemon is changed.
    pub listed: Vec<String>,
    /// What SIGHUP does. Without it, SIGHUP ends the daemon.
    pub reload: Option<Reload>,
}

/// Serves a mirror until SIGINT or SIGTERM arrives, the process of [`Options::until`] ends, or the mirror is
/// unmounted. Calls `ready` after the mount.
///
/// # Errors
/// When the mirror cannot be mounted, or another mirror is mounted there.
pub fn serve(
    mut engine: Engine,
    mut options: Options,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let place = Place::prepare(&options.at, options.over)?;
    descriptors::allow_descriptors();
    let Helpers { closer, openers, memory, state_writers } = std::mem::take(&mut options.helpers);
    let sockets =
        |workers: Vec<Worker>| workers.into_iter().map(Worker::into_socket).collect::<io::Result<Vec<_>>>();
    let writer = StateWriter::new(sockets(state_writers)?);
    let mut state_file = StateFile::new(place.path(), &options.state, writer);
    if let Some(closer) = closer {
        engine.attachments.set_guard(closer.into_socket()?);
    }
    let memory = ClientMemory::start(sockets(memory)?)?;
    engine.user.set_memory(memory.clone(), &engine.quotas);
    let opener = Opener::new(sockets(openers)?);
    prepare(&mut engine, state_file.as_mut(), &opener, &options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(engine, (memory, opener, place), state_file, options, ready))
}

async fn run(
    engine: Engine,
    (memory, opener, place): (ClientMemory, Opener, Place),
    state_file: Option<StateFile>,
    mut options: Options,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = options.reload.is_some().then(|| signal(SignalKind::hangup())).transpose()?;
    let waiter = Arc::new(Waiter::new(&[])?);
    // `AsyncFd` is deprecated for types whose descriptor can change or be closed. A waiter keeps its descriptor.
    #[expect(deprecated)]
    let rings = AsyncFd::new(Arc::clone(&waiter))?;
    #[expect(deprecated)]
    let until = options.until.map(AsyncFd::new).transpose()?;
    let ended = if_any(until.as_ref().map(AsyncFd::readable));
    tokio::pin!(ended);
    #[expect(deprecated)]
    let modules = engine.registry.module_fd().map(AsyncFd::new).transpose()?;
    let facts = Arc::clone(&engine.facts);
    let pins = is_published(&engine);
    let hub = Hub::new(Tree::new(engine, options.owner), state_file, waiter, opener);
    let its = Arc::downgrade(&hub);
    memory.on_attention(move || {
        if let Some(hub) = its.upgrade() {
            hub.learn_tasks();
        }
    });
    let mut config = Config::default();
    config.acl = SessionACL::All;
    // One thread keeps requests in order. FUSE reports a close asynchronously, and the close must come before the
    // client's next request, or else a closed file would still be busy. The thread only queues jobs and never blocks.
    config.n_threads = Some(1);
    let (device, root) = mount::fuse(SOURCE)?;
    let connection = device.try_clone()?;
    let session = Session::from_fd(Fuse { hub: Arc::clone(&hub) }, device, SessionACL::All, config)?;
    let mounted = place.attach(&root, connection)?;
    // The descriptor would prevent others from unmounting the mirror.
    drop(root);
    // This can need a mount, which the system call filter below forbids.
    let _ = facts.preemption();
    // The first job watches the rings of restored instances, and its end publishes how marks are recorded.
    hub.learn_tasks();
    let warmed = spawn("facts", move || {
        // Requests that do not need these facts have priority.
        let _ = rustix::process::setpriority_process(None, 10);
        facts.warm();
    });
    if let Err(error) = warmed {
        tracing::debug!("cannot read facts in advance: {error}");
    }
    // The filter is in place before the first request is served.
    confine::filter_calls_of_daemon(pins);
    let owner = hub.jobs.start()?;
    let session = session.spawn()?;
    hub.updater.notify_by(session.notifier());
    hub.streams.notify_by(session.notifier());
    ready()?;
    let mut beats = options.heartbeat.as_ref().map(|heartbeat| interval(heartbeat.every));
    let mut looked = interval(SIGNALS);
    looked.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut aged = interval(RECORD_AGE);
    let served = loop {
        tokio::select! {
            _ = interrupt.recv() => break true,
            _ = terminate.recv() => break true,
            _ = &mut ended => break true,
            () = hub.gone.notified() => break false,
            _ = if_any(hangup.as_mut().map(Signal::recv)) => {
                if let Some((listed, done)) = options.reload.as_mut().and_then(|reload| reload()) {
                    hub.apply(listed, done);
                }
            }
            full = rings.readable() => {
                full?.clear_ready();
                // This clears the readiness, so that only new records wake the loop again.
                rings.get_ref().wait(Duration::ZERO)?;
                hub.collect();
                hub.learn_tasks();
            }
            _ = aged.tick() => hub.collect_all(),
            changed = if_any(modules.as_ref().map(AsyncFd::readable)) => {
                changed?.clear_ready();
                hub.learn_modules();
            }
            _ = if_any(beats.as_mut().map(Interval::tick)) => {
                let ours = Arc::clone(&hub);
                hub.jobs.look(OWN, "beat", When::Any, move |_| ours.alive.notify_one());
            }
            () = hub.alive.notified() => {
                if let Some(heartbeat) = &options.heartbeat {
                    (heartbeat.beat)();
                }
            }
            () = hub.changed.notified() => hub.serve(),
            () = sleep(PERIOD), if hub.waits.is_awaited() => hub.serve(),
            _ = looked.tick(), if hub.waits.has_reads() || hub.updater.caches_text() => {
                hub.updater.forget_old_text();
                hub.end_interrupted();
                hub.waits.end_long_pages(&hub.streams);
            }
            () = if_any(hub.save_at().map(|at| sleep_until(at.into()))) => hub.save_now(),
        }
    };
    let done = end(&hub, owner, served.then_some(mounted));
    drop(session);
    done
}

/// Ends everything within [`END`], even if a client is stuck or the kernel takes long to detach programs.
fn end(hub: &Arc<Hub>, owner: JoinHandle<()>, mounted: Option<Mounted>) -> io::Result<()> {
    let since = Instant::now();
    hub.jobs.stop();
    let (give, given) = channel();
    let its = Arc::clone(hub);
    hub.jobs.post(OWN, "end", When::Ending, move |tree| {
        let engine = tree.engine();
        its.save_for_next(engine);
        let farewell = engine.user.end_reports();
        let step = engine.scheduler().longest_step();
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
        if spawn("farewell", wait).is_ok() {
            let _ = is_done.recv_timeout(END / 3);
        }
    }
    // From now on, open files return errors, and requests that wait for an answer fail at once.
    let unmounted = mounted.map_or(Ok(()), Mounted::unmount);
    hub.waits.end(&hub.streams);
    hub.end_state();
    let (begin, begun) = channel();
    let (give, given) = channel();
    hub.jobs.post(OWN, "end", When::Ending, move |tree| {
        let _ = begin.send(());
        let _ = give.send(tree.engine().end());
    });
    let ended = given.recv_timeout(END.saturating_sub(since.elapsed())).ok();
    let is_over = ended.is_some();
    // Without an answer, the guard process closes the rest, as when this process is killed.
    if let Some(events) = ended {
        reaper::close(events);
    } else if begun.try_recv().is_ok() {
        tracing::info!("the kernel takes long to detach programs; they end with this process");
    } else {
        tracing::warn!("an operation did not end in time; its attachments end with this process");
    }
    hub.jobs.end();
    if is_over {
        // The owner has no work left.
        let _ = owner.join();
    }
    if !attach::close_files(UNLINK) {
        tracing::warn!(
            "probes of files could not be removed because a process blocks it; they end with this process"
        );
    }
    unmounted
}

/// Waits for a future; for ever if there is none.
async fn if_any<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

/// Restores the settings of the last daemon, or else applies the settings of the start.
fn prepare(engine: &mut Engine, mut state_file: Option<&mut StateFile>, opener: &Opener, options: &Options) {
    prepare_marks(&engine.facts, engine.registry.events());
    let state = state_file.as_ref().filter(|_| options.restore).and_then(|state_file| state_file.load());
    let mut listed = ListedChange { old: Vec::new(), new: options.listed.clone() };
    if let Some(state) = state {
        let quotas = engine.quotas.clone();
        log_failed(saved::restore(engine, &state, &mut |wanted| opener.look_now(&quotas, wanted)));
        listed.old = state.listed;
    } else {
        if let Some(state_file) = &mut state_file {
            state_file.forget();
        }
        options.boot.iter().for_each(|boot| log_failed(saved::boot(engine, boot)));
    }
    log_failed(listed.apply(engine));
    if let Some(state_file) = state_file {
        state_file.set_listed(&options.listed);
        state_file.save(engine);
    }
}
