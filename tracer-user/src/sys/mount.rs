//! Mounts as descriptors: a file system opened through fsopen(2) and fsmount(2) that no path leads to until it is attached,
//! what tells one mount from another, or a whole namespace of mounts.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// What tells a mount from all others that there are: numbers of mounts are given again, and so are those of devices, but
/// not both while the mount's file system is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId {
    /// Its number, as in /proc/self/mountinfo.
    pub id: u64,
    device: (u32, u32),
}

impl MountId {
    /// The mount whose root a descriptor (`O_PATH` will do) is of; None for anything below a root. Nothing is asked of the file
    /// system.
    ///
    /// # Errors
    /// What statx(2) says; `ENOTSUP` before 5.8.
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

/// Makes a FUSE file system that says it is from `source`, by root, for everybody whom its permissions let in, and mounts it
/// detached: the connection that serves it, and its root. No other program takes part (`fusermount3` would be looked for in
/// `PATH`).
///
/// # Errors
/// What the kernel says: `ENOENT` or `ENODEV` without FUSE, `EPERM` without `CAP_SYS_ADMIN`.
pub fn fuse(source: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    let device = open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let context = fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), c"source", source)?;
    fsconfig_set_string(context.as_fd(), c"fd", device.as_raw_fd().to_string())?;
    // Octal: a directory.
    fsconfig_set_string(context.as_fd(), c"rootmode", c"40755")?;
    fsconfig_set_string(context.as_fd(), c"user_id", rustix::process::geteuid().as_raw().to_string())?;
    fsconfig_set_string(context.as_fd(), c"group_id", rustix::process::getegid().as_raw().to_string())?;
    fsconfig_set_flag(context.as_fd(), c"default_permissions")?;
    fsconfig_set_flag(context.as_fd(), c"allow_other")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok((device, fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
}

/// Attaches a detached mount to a directory, above whatever is mounted there.
///
/// # Errors
/// What the kernel says.
pub fn attach(mount: BorrowedFd<'_>, at: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", at, c"", flags)?)
}

/// Mounts a file system of this type (`tracefs`, `bpf`) detached and gives the descriptor of its root, good for
/// openat(2). Needs `CAP_SYS_ADMIN` in the initial user namespace for tracefs, and Linux 5.2.
///
/// # Errors
/// What the kernel says: `ENODEV` when the type is not built, `EPERM` when mounts are refused.
pub fn detached(fs_type: &str) -> io::Result<OwnedFd> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Gives this process mounts of its own: what is mounted outside still appears here, nothing of ours appears there.
/// Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// What the kernel says.
#[allow(unsafe_code)]
pub fn private_namespace() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only the table of mounts and the working directory become this thread's own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}
