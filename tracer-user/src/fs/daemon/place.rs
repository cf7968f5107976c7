//! The mount point of a mirror. Its path is resolved once. The mount id and the device number identify the mirror among
//! all mounts as long as its FUSE connection exists.
//!
//! Only two kinds of mounts are ever unmounted: the mount of this daemon, and mounts of dead daemons. If another
//! mount lies above one of these, both stay. A mount is checked and unmounted through one descriptor, because users
//! may own directories above a mirror and could rename them between two lookups of a path.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, fstatvfs, open},
    io::Errno,
};

use crate::{
    kernel::proc::mounts::Mount,
    sys::mount::{self, MountId},
};

/// The source of a mirror's mount. Tools search the list of mounts for this word.
pub(crate) const SOURCE: &str = "tracefs";

/// How often a mount is looked for whose place moves between two system calls.
const LOOKS: usize = 256;

/// A directory, and its path without symlinks.
#[derive(Debug)]
pub(crate) struct Place {
    dir: OwnedFd,
    path: PathBuf,
}

impl Place {
    /// Opens the directory at a path and follows symlinks. This sends no request to a file system that is mounted
    /// there.
    fn find(at: &Path) -> io::Result<Self> {
        let dir = open(at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        Ok(Self { dir, path })
    }

    /// As [`Place::find`]; creates the directory if it does not exist.
    fn make(at: &Path) -> io::Result<Self> {
        match Self::find(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(at)?;
                Self::find(at)
            }
            found => found,
        }
    }

    /// Prepares a mount point: unmounts the mirrors of dead daemons. `over` allows a mount above a mirror that is
    /// served; without it, that is an error.
    pub(crate) fn prepare(at: &Path, over: bool) -> io::Result<Self> {
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
            // If another mount appeared above, the next look finds that one.
            if !is_covered(id)? {
                mount::detach(place.dir.as_fd())?;
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The mount id of the mirror that is the top mount here, if there is one.
    fn mirror(&self) -> io::Result<Option<MountId>> {
        let Some(id) = MountId::of(self.dir.as_fd())? else { return Ok(None) };
        let is_ours =
            |found: &Mount| found.fs_type == "fuse" && found.source == SOURCE && found.root == Path::new("/");
        Ok(Mount::find(id.id)?.filter(is_ours).map(|_| id))
    }

    /// Attaches the mount of a mirror here. `connection` serves its file system.
    pub(crate) fn attach(self, mirror: &OwnedFd, connection: OwnedFd) -> io::Result<Mounted> {
        let id = MountId::of(mirror.as_fd())?.ok_or(Errno::INVAL)?;
        mount::attach(mirror.as_fd(), self.dir.as_fd())?;
        Ok(Mounted { path: self.path, id, connection })
    }
}

/// Whether the daemon of a mirror is gone. The kernel can answer stat(2) from its cache, but forwards statfs(2) to
/// the daemon.
fn is_dead(place: &Place) -> bool {
    // The second error occurs if the daemon's descriptors are closed during the call.
    matches!(fstatvfs(&place.dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Whether another mount lies above a mount.
fn is_covered(id: MountId) -> io::Result<bool> {
    let all = Mount::all()?;
    let own = all.iter().find(|mount| mount.id == id.id);
    Ok(own.is_some_and(|own| all.iter().any(|mount| mount.covers(own))))
}

/// What became of a mount that was to be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Unmounted,
    /// It was unmounted before.
    Gone,
    /// It stays because another mount lies above it.
    Covered,
    /// It stays because its place could not be opened.
    Unreachable,
}

/// The mirror that this process mounted. A drop unmounts it.
#[derive(Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
    id: MountId,
    /// Serves the file system.
    connection: OwnedFd,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a regular end it is already unmounted.
        let _ = self.unmount_if_top();
    }
}

impl Mounted {
    /// Unmounts the mirror unless another mount lies above it. The kernel's list of mounts has its present place, which
    /// the owner of a directory above can change at any time. So the id is compared after the place was opened.
    ///
    /// Once the mirror is unmounted, by whomever, the next mount of anything can have its id and device number. The
    /// kernel ends the connection before it frees the number.
    fn unmount_if_top(&self) -> io::Result<Ending> {
        for _ in 0..LOOKS {
            let all = Mount::all()?;
            let Some(own) = all.iter().find(|mount| mount.id == self.id.id) else { return Ok(Ending::Gone) };
            if all.iter().any(|mount| mount.covers(own)) {
                return Ok(Ending::Covered);
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let root = match open(&own.at, flags, Mode::empty()) {
                Ok(root) => root,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let is_same = MountId::of(root.as_fd())? == Some(self.id);
            // The descriptor keeps its mount's device number, so it suffices that the mirror has it now.
            if !mount::is_connected(self.connection.as_fd())? {
                return Ok(Ending::Gone);
            }
            if is_same {
                mount::detach(root.as_fd())?;
                return Ok(Ending::Unmounted);
            }
        }
        Ok(Ending::Unreachable)
    }

    /// Unmounts the mirror and mirrors of dead daemons below it. If another mount lies above it, both stay.
    pub(crate) fn unmount(self) -> io::Result<()> {
        let path = self.path.display();
        match self.unmount_if_top()? {
            Ending::Unmounted => {
                // The path may lead elsewhere by now, or nowhere.
                while let Ok(place) = Place::find(&self.path)
                    && let Some(below) = place.mirror()?
                    && is_dead(&place)
                    && !is_covered(below)?
                {
                    mount::detach(place.dir.as_fd())?;
                }
            }
            Ending::Gone => {}
            Ending::Covered => tracing::warn!(
                "something else is mounted above the mirror at {path}: both stay, and the mirror no longer answers"
            ),
            Ending::Unreachable => tracing::warn!(
                "the mirror at {path} stays, because its place cannot be opened; it no longer answers"
            ),
        }
        Ok(())
    }
}

/// Whether a mirror is the top mount at a path.
pub fn is_mirror(at: &Path) -> bool {
    Place::find(at).is_ok_and(|place| place.mirror().is_ok_and(|mirror| mirror.is_some()))
}
