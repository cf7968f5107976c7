//! What keeps the tree going: mounting, signals, records on their way, readers that wait.
//!
//! While nobody waits for records nothing runs: full rings wake the daemon, everything else is done when a file is read.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::unix::{AsyncFd, AsyncFdReadyGuard},
    signal::unix::{SignalKind, signal},
};

use super::{
    closer,
    fuse::{Fuse, Hub},
    keeper::Keeper,
    whole::{Owner, Tree},
};
use crate::{
    control::instance::{Boot, Mirror, user::Hands},
    ring::Waiter,
};

/// How often the rings are looked at while somebody waits for what may be in them.
const PERIOD: Duration = Duration::from_millis(10);

/// How often requests are looked at whose callers take their time.
const HURRY: Duration = Duration::from_secs(1);

/// What a mirror is served with.
#[derive(Debug)]
pub struct Options {
    /// Where.
    pub at: PathBuf,
    /// Whose the files are.
    pub owner: Owner,
    /// Mount over whatever is there, another mirror included.
    pub over: bool,
    /// A process (its pidfd) to end with.
    pub until: Option<OwnedFd>,
    /// Keep what is set in a file while the daemon runs.
    pub keep: bool,
    /// Take up what a killed daemon had kept.
    pub restore: bool,
    /// What to do first where nothing was taken up.
    pub boot: Vec<Boot>,
}

/// Serves a mirror until SIGINT or SIGTERM comes or somebody unmounts it. `ready` is called once it is mounted.
///
/// # Errors
/// When it cannot be mounted, or the place is taken.
pub fn serve(mirror: Mirror, options: Options, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    clean_up(&options)?;
    allow_descriptors();
    std::fs::create_dir_all(&options.at)?;
    let (mut mirror, mut keeper) = (mirror, options.keep.then(|| Keeper::new(&options.at)));
    mirror.guard_with(closer::start);
    prepare(&mut mirror, keeper.as_mut(), &options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(mirror, keeper, options, ready))
}

async fn run(
    mirror: Mirror,
    keeper: Option<Keeper>,
    options: Options,
    ready: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Deprecated for types whose descriptor may change or be closed; a waiter owns its one to its end.
    #[expect(deprecated)]
    let rings = AsyncFd::new(Waiter::new(&[])?)?;
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
    let modules = mirror.module_changes().map(AsyncFd::new).transpose()?;
    let hub = Hub::new(Tree::new(mirror, options.owner), keeper);
    let mut config = Config::default();
    // Tools look for the word in the list of mounts.
    config.mount_options = vec![MountOption::FSName("tracefs".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    // One: closing a file is told of behind the back of who closed it, and must be heard of before what that one asks next, or
    // a file that nobody has open any more is still busy. Every request wants the tree, so a second thread would only wait.
    config.n_threads = Some(1);
    let session = Session::new(Fuse { hub: Arc::clone(&hub) }, &options.at, &config)?.spawn()?;
    let _ = hub.notifier.set(session.notifier());
    ready()?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = &mut ended => break,
            () = hub.gone.notified() => {
                hub.forget_kept();
                closer::close(hub.tree().mirror().end());
                return Ok(());
            }
            full = rings.readable() => {
                full?.clear_ready();
                // What woke us is to wake us again only by happening again.
                rings.get_ref().wait(Duration::ZERO)?;
                hub.learn_tasks();
                hub.tree().mirror().collect_all();
                hub.serve();
            }
            changed = readable(modules.as_ref()) => {
                changed?.clear_ready();
                hub.tree().mirror().learn_modules();
            }
            () = hub.changed.notified() => {
                let mut tree = hub.tree();
                for ring in tree.mirror().rings() {
                    // One that is watched already says so.
                    let _ = rings.get_ref().watch(ring);
                }
                drop(tree);
                hub.serve();
            }
            () = tokio::time::sleep(PERIOD), if hub.is_awaited() => hub.serve(),
            () = tokio::time::sleep(HURRY), if hub.asked.is_busy() => drop(hub.asked.hurry()),
        }
    }
    let writes = hub.tree().mirror().user_farewell();
    Hands::default().write(writes);
    // Whoever still has a file open gets errors from it once this process is gone.
    let unmounted = unmount(&options.at, UnmountFlags::DETACH);
    hub.forget_kept();
    closer::close(hub.tree().mirror().end());
    drop(session);
    Ok(unmounted?)
}

/// Takes all descriptors that we may have: each event that is on costs two, each probe some, each process that is told of user
/// events one. Who may raise what may be had takes as many as there can be.
pub fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|most| most.trim().parse().ok());
    let most = most.max(limit.maximum);
    if limit.maximum.is_some() && setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok()
    {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}

/// Waits until there is something to read; for ever where there is nothing to read from.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}

/// Takes up what a killed daemon had, or else does what is asked for at the start.
fn prepare(mirror: &mut Mirror, keeper: Option<&mut Keeper>, options: &Options) {
    let told = |failed: Vec<(String, Errno)>| {
        for (what, error) in failed {
            tracing::warn!("{what}: {error}");
        }
    };
    let saved = keeper.as_ref().filter(|_| options.restore).and_then(|keeper| {
        keeper.load().unwrap_or_else(|error| {
            tracing::warn!("what the last daemon kept cannot be read: {error}");
            None
        })
    });
    if let Some(saved) = saved {
        told(mirror.restore(&saved));
    } else {
        if let Some(keeper) = &keeper {
            keeper.forget();
        }
        options.boot.iter().for_each(|boot| told(mirror.boot(boot)));
    }
    if let Some(keeper) = keeper {
        keeper.keep(mirror);
    }
}

/// Takes away what a killed daemon left at a place: a mount that answers to nobody.
fn clean_up(options: &Options) -> io::Result<()> {
    let at = &options.at;
    loop {
        // Not stat(2), which the kernel may answer from what the dead one told it.
        match rustix::fs::statvfs(at) {
            // The second where the dead one's descriptors were closed while we asked.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => unmount(at, UnmountFlags::DETACH)?,
            Ok(_) if !options.over && is_mirror(at) => {
                let what = format!("there is a mirror at {} already", at.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            _ => return Ok(()),
        }
    }
}

/// Whether a FUSE file system with our name is mounted at exactly this place.
pub fn is_mirror(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ');
        words.next() == Some("tracefs")
            && words.next().map(Path::new) == Some(at)
            && words.next() == Some("fuse")
    })
}
