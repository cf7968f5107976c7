//! The place that a mirror is mounted at: found once, and told from other mounts at the same place by the mount's number.
//!
//! Only two mounts are ever taken away: the one that this daemon made, and one of a daemon that is dead. What somebody else
//! mounted above stays, and so does then what lies below it.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, fstatvfs, open},
    io::Errno,
    mount::{UnmountFlags, unmount},
};

use crate::{
    kernel::mounts::Mount,
    sys::mount::{self, MountId},
};

/// What mirrors are mounted from: tools look for the word in the list of mounts.
pub(in crate::fs) const SOURCE: &str = "tracefs";

/// A directory, and its path without symlinks.
#[derive(Debug)]
pub(in crate::fs) struct Place {
    dir: OwnedFd,
    path: PathBuf,
}

impl Place {
    /// The directory at a path, its symlinks followed; what is mounted there is not asked for anything.
    fn find(at: &Path) -> io::Result<Self> {
        let dir = open(at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        Ok(Self { dir, path })
    }

    /// The same, made where it is not there.
    fn make(at: &Path) -> io::Result<Self> {
        match Self::find(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(at)?;
                Self::find(at)
            }
            found => found,
        }
    }

    /// Makes a place free for a mirror: what a killed daemon left there goes. `over` is whether it may lie above a mirror that is
    /// served.
    pub(in crate::fs) fn prepare(at: &Path, over: bool) -> io::Result<Self> {
        loop {
            let place = Self::make(at)?;
            let Some(id) = place.mirror()? else { return Ok(place) };
            if !is_dead(&place) {
                if over {
                    return Ok(place);
                }
                let what = format!("there is a mirror at {} already", place.path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            let path = place.path.clone();
            drop(place);
            take_away(&path, id)?;
        }
    }

    /// Its path without symlinks.
    pub(in crate::fs) fn path(&self) -> &Path {
        &self.path
    }

    /// The mirror that is mounted exactly here, above everything else.
    fn mirror(&self) -> io::Result<Option<MountId>> {
        let Some(id) = MountId::of(self.dir.as_fd())? else { return Ok(None) };
        let is_ours =
            |found: &Mount| found.fs_type == "fuse" && found.source == SOURCE && found.root == Path::new("/");
        Ok(Mount::find(id.id)?.filter(is_ours).map(|_| id))
    }

    /// Attaches a mirror's mount.
    pub(in crate::fs) fn attach(self, mirror: &OwnedFd) -> io::Result<Mounted> {
        let id = MountId::of(mirror.as_fd())?.ok_or(Errno::INVAL)?;
        mount::attach(mirror.as_fd(), self.dir.as_fd())?;
        Ok(Mounted { path: self.path, id })
    }
}

/// Whether a mirror's daemon is gone. Not stat(2), which the kernel may answer from what the dead one told it.
fn is_dead(place: &Place) -> bool {
    // The second where the dead one's descriptors were closed while we asked.
    matches!(fstatvfs(&place.dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes a mount away if it lies on top at a path; whether it did.
fn take_away(path: &Path, id: MountId) -> io::Result<bool> {
    let top = {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty())?;
        // A descriptor would keep it from going.
        MountId::of(dir.as_fd())?
    };
    if top != Some(id) {
        return Ok(false);
    }
    // Forced: a thread that waits for an answer gets an error, also where it is one of ours.
    unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW | UnmountFlags::FORCE)?;
    Ok(true)
}

/// A mirror that this process mounted; it goes with this.
#[derive(Debug)]
pub(in crate::fs) struct Mounted {
    path: PathBuf,
    id: MountId,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing of it is there any more, unless something went wrong on the way.
        let _ = take_away(&self.path, self.id);
    }
}

impl Mounted {
    /// Takes it away, and mirrors of the dead below it; what somebody else mounted above it stays, and it below.
    pub(in crate::fs) fn unmount(self) -> io::Result<()> {
        if !take_away(&self.path, self.id)? {
            if Mount::find(self.id.id)?.is_some() {
                tracing::warn!(
                    "something else is mounted above the mirror at {}: both stay, and the mirror answers nobody any more",
                    self.path.display()
                );
            }
            return Ok(());
        }
        loop {
            let place = Place::find(&self.path)?;
            let Some(below) = place.mirror()?.filter(|_| is_dead(&place)) else { return Ok(()) };
            drop(place);
            if !take_away(&self.path, below)? {
                return Ok(());
            }
        }
    }
}

/// Whether a mirror is mounted at exactly this place.
pub fn is_mirror(at: &Path) -> bool {
    Place::find(at).is_ok_and(|place| place.mirror().is_ok_and(|mirror| mirror.is_some()))
}
