//! Mounts that only we see: a file system opened through fsopen(2) and fsmount(2) and never attached to the
//! mount tree, which lives as long as its descriptor and no path leads to, or a whole namespace of mounts.

use std::io;
use std::os::fd::OwnedFd;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, fsconfig_create, fsmount, fsopen,
    mount_change,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

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
