//! Mounts as descriptors: new file systems (fsopen(2), fsmount(2)), the identity of a mount, and mount namespaces.
//!
//! A new mount is detached: no path leads to it until it is attached.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
    unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The identity of a mount among all current mounts. The kernel reuses mount ids and device numbers, but not both
/// while the mount's file system is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId {
    /// Its number, as in `/proc/self/mountinfo`.
    pub id: u64,
    device: (u32, u32),
}

impl MountId {
    /// The mount whose root the descriptor refers to (`O_PATH` suffices); None for anything below a root. Does not
    /// query the file system.
    ///
    /// # Errors
    /// The errors of statx(2); [`io::ErrorKind::Unsupported`] before 5.8.
    pub fn of(root: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let found = statx(root, c"", flags, StatxFlags::MNT_ID)?;
        let known = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        if !known || found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let is_root = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        Ok(is_root.then_some(Self { id: found.stx_mnt_id, device }))
    }
}

/// Creates a FUSE file system with the given `source` and mounts it detached. Returns the connection that serves it,
/// and its root.
///
/// The mount belongs to this process's effective user and group. All users may access it, as far as the file
/// permissions allow. This call replaces `fusermount3`, which would have to be found in `PATH`.
///
/// # Errors
/// The kernel's error: `ENOENT` or `ENODEV` without FUSE, `EPERM` without `CAP_SYS_ADMIN`.
pub fn fuse(source: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    let device = open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let context = fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), c"source", source)?;
    fsconfig_set_string(context.as_fd(), c"fd", device.as_raw_fd().to_string())?;
    // Octal: a directory with mode 0755.
    fsconfig_set_string(context.as_fd(), c"rootmode", c"40755")?;
    fsconfig_set_string(context.as_fd(), c"user_id", rustix::process::geteuid().as_raw().to_string())?;
    fsconfig_set_string(context.as_fd(), c"group_id", rustix::process::getegid().as_raw().to_string())?;
    fsconfig_set_flag(context.as_fd(), c"default_permissions")?;
    fsconfig_set_flag(context.as_fd(), c"allow_other")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok((device, fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
}

/// Whether the file system that a FUSE connection serves exists. The kernel ends the connection when the file system is
/// unmounted everywhere, and only then can another one have its device number.
pub(crate) fn is_connected(connection: BorrowedFd<'_>) -> io::Result<bool> {
    let mut asked = [PollFd::new(&connection, PollFlags::empty())];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!asked[0].revents().contains(PollFlags::ERR))
}

/// Attaches a detached mount to a directory, on top of any existing mount.
///
/// # Errors
/// The kernel's error.
pub fn attach(mount: BorrowedFd<'_>, at: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", at, c"", flags)?)
}

/// Detaches the mount whose root the descriptor refers to (`O_PATH` suffices), and ends the requests to its file system
/// that wait for an answer, also those of threads of this process.
///
/// umount2(2) takes a path. The link in `/proc/self/fd` leads to the mount of the descriptor without a lookup of names,
/// so renamed directories and symlinks cannot lead elsewhere. The kernel then continues to a mount that lies above, so
/// the caller checks that there is none. Only a process that may mount could add one in between.
///
/// # Errors
/// The kernel's error: `EINVAL` if the descriptor refers to no root of a mount, or no longer to an attached one.
pub fn detach(root: BorrowedFd<'_>) -> io::Result<()> {
    // `UMOUNT_NOFOLLOW` would not follow the link to the descriptor. A mount that is in use, as by the descriptor, can
    // only be unmounted with `DETACH`.
    Ok(unmount(format!("/proc/self/fd/{}", root.as_raw_fd()), UnmountFlags::DETACH | UnmountFlags::FORCE)?)
}

/// Mounts a file system of this type (`tracefs`, `bpf`) detached and returns the descriptor of its root, for use with
/// openat(2). Requires Linux 5.2, and for tracefs `CAP_SYS_ADMIN` in the initial user namespace.
///
/// # Errors
/// The kernel's error: `ENODEV` if the type is not built, `EPERM` if mounting is refused.
pub fn detached(fs_type: &str) -> io::Result<OwnedFd> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Moves the calling thread into a mount namespace of its own. Mounts made outside still propagate into it; mounts
/// made inside stay inside. Requires `CAP_SYS_ADMIN`.
pub(crate) fn private_namespace() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only the mount table and the working directory become private to this thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}
