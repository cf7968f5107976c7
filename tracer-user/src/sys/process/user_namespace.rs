//! User namespaces (user_namespaces(7)). The descriptors of nsfs tell their parents and owners (ioctl_nsfs(2)).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, fstat, open, stat},
    io::Result,
};

use crate::sys::check;

/// An open user namespace.
#[derive(Debug)]
pub struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// Opens the user namespace of a thread, by the thread's id in this process's pid namespace. Takes no reference to
    /// the thread's address space.
    ///
    /// # Errors
    /// `ENOENT` if the thread is gone, `EACCES` without `CAP_SYS_PTRACE` in its namespace.
    pub fn of(thread: u32) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        open(format!("/proc/{thread}/ns/user"), flags, Mode::empty()).map(Self)
    }

    /// The namespace in which it was created.
    ///
    /// # Errors
    /// `EPERM` if that is not in this process's user namespace.
    pub fn parent(&self) -> Result<Self> {
        // SAFETY: The request has no argument.
        let parent = check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::NS_GET_PARENT) })?;
        // SAFETY: The kernel made a new descriptor, which nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(parent) }))
    }

    /// The uid of its owner in this process's user namespace: the effective uid of the process that created it.
    pub(crate) fn owner(&self) -> Result<u32> {
        let mut uid: libc::uid_t = 0;
        // SAFETY: The kernel writes a uid to the address of one.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut uid) })?;
        Ok(uid)
    }

    /// Its number, which no other namespace has as long as it exists.
    pub(crate) fn number(&self) -> Result<u64> {
        fstat(&self.0).map(|found| found.st_ino)
    }
}

/// The number of a thread's user namespace, as [`UserNamespace::number`] of [`UserNamespace::of`].
pub(crate) fn number_of(thread: u32) -> Result<u64> {
    stat(format!("/proc/{thread}/ns/user")).map(|found| found.st_ino)
}
