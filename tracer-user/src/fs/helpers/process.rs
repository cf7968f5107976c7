//! What the processes and the daemon share: the start of a process, packets with descriptors, and files in memory.

use std::{
    ffi::CStr,
    fs::File,
    io::{IoSlice, IoSliceMut, Seek, Write},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use crate::sys::process::worker::ignore_hangup;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

/// Names this process. Its new session receives no signals of the terminal and is not listed there, and SIGHUP, which
/// makes a daemon read its configuration, does not end it.
pub(super) fn begin(name: &CStr) {
    let _ = rustix::process::setsid();
    let _ = ignore_hangup();
    let _ = rustix::thread::set_name(name);
}

/// Sends a message and at most two descriptors.
pub(super) fn send_with(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

/// A message and its descriptors.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// Receives the next message, cut to `max` bytes; `None` if the other end is closed.
pub(super) fn receive(socket: BorrowedFd<'_>, max: usize) -> Result<Option<Message>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; max];
    let came = loop {
        let into = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            came => break came?.bytes,
        }
    };
    if came == 0 {
        return Ok(None);
    }
    bytes.truncate(came);
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    Ok(Some((bytes, fds)))
}

/// A file in memory with this content. A host may refuse those that could be executed (`vm.memfd_noexec`), and kernels
/// before 6.3 do not know the flag for others.
pub(super) fn in_memory(content: &[u8]) -> Result<OwnedFd, Errno> {
    let made = match memfd_create("content", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("content", MemfdFlags::CLOEXEC),
        made => made,
    };
    let mut file = File::from(made?);
    file.write_all(content).and_then(|()| file.rewind()).map_err(|_| Errno::NOMEM)?;
    Ok(file.into())
}
