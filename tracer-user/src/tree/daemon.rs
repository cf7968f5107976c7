//! What keeps the tree going: mounting, signals, records on their way, readers that wait.
//!
//! While nobody waits for records nothing runs: full rings wake the daemon, everything else is done when a file is read.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use super::{
    fuse::{Fuse, Hub},
    whole::Tree,
};
use crate::{control::instance::Mirror, ring::Waiter};

/// How often the rings are looked at while somebody waits for what may be in them.
const PERIOD: Duration = Duration::from_millis(10);

/// What a mirror is served with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where.
    pub at: PathBuf,
    /// Group of the files.
    pub gid: u32,
}

/// Serves a mirror until SIGINT or SIGTERM comes or somebody unmounts it. `ready` is called once it is mounted.
///
/// # Errors
/// When it cannot be mounted, or the place is taken.
pub fn serve(mirror: Mirror, options: &Options, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    clean_up(&options.at)?;
    std::fs::create_dir_all(&options.at)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(mirror, options, ready))
}

async fn run(mirror: Mirror, options: &Options, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Deprecated for types whose descriptor may change or be closed; a waiter owns its one to its end.
    #[expect(deprecated)]
    let rings = AsyncFd::new(Waiter::new(&[])?)?;
    let hub = Arc::new(Hub::new(Tree::new(mirror, options.gid)));
    let mut config = Config::default();
    // Tools look for the word in the list of mounts.
    config.mount_options = vec![MountOption::FSName("tracefs".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    config.n_threads = Some(2);
    let session = Session::new(Fuse { hub: Arc::clone(&hub) }, &options.at, &config)?.spawn()?;
    ready()?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = hub.gone.notified() => return Ok(()),
            full = rings.readable() => {
                full?.clear_ready();
                // What woke us is to wake us again only by happening again.
                rings.get_ref().wait(Duration::ZERO)?;
                hub.tree().mirror().collect_all();
                hub.serve();
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
        }
    }
    // Whoever still has a file open gets errors from it once this process is gone.
    let unmounted = unmount(&options.at, UnmountFlags::DETACH);
    drop(session);
    Ok(unmounted?)
}

/// Takes away what a killed daemon left at a place: a mount that answers to nobody.
fn clean_up(at: &Path) -> io::Result<()> {
    loop {
        // Not stat(2), which the kernel may answer from what the dead one told it.
        match rustix::fs::statvfs(at) {
            Err(Errno::NOTCONN) => unmount(at, UnmountFlags::DETACH)?,
            Ok(_) if is_mirror(at) => {
                let what = format!("there is a mirror at {} already", at.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            _ => return Ok(()),
        }
    }
}

/// Whether a FUSE file system with our name is mounted at exactly this place.
fn is_mirror(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ');
        words.next() == Some("tracefs")
            && words.next().map(Path::new) == Some(at)
            && words.next() == Some("fuse")
    })
}
