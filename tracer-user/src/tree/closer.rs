//! The process that a daemon leaves behind when it ends with many events on: it closes their perf tracepoints.
//!
//! Nothing hangs on these any more, and to close one takes the kernel tens of milliseconds ([`crate::attach::take_off`]): a
//! minute for all events of a machine, for which nobody should have to wait. The descriptors come through a socket that
//! is the process's standard input.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::attach;

/// The hidden command of this program that is the closer.
pub const COMMAND: &str = "close-events";
/// Descriptors of a message; the kernel takes 253 (`SCM_MAX_FD`).
const BATCH: usize = 128;
/// So few are closed at once.
const FEW: usize = 16;

/// Has perf events closed: few at once, many by a process of their own.
pub(super) fn close(events: Vec<OwnedFd>) {
    if events.len() <= FEW {
        drop(events);
    } else if let Err(error) = hand_over(&events) {
        tracing::warn!("no process closes the events, so this one does: {error}");
        attach::close(events);
    }
}

fn hand_over(events: &[OwnedFd]) -> io::Result<()> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Command::new("/proc/self/exe")
        .arg0("tracer")
        .arg(COMMAND)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()?;
    send(&ours, events)
}

fn send(socket: &OwnedFd, events: &[OwnedFd]) -> io::Result<()> {
    for batch in events.chunks(BATCH) {
        let batch: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        message.push(SendAncillaryMessage::ScmRights(&batch));
        sendmsg(socket, &[IoSlice::new(b"\n")], &mut message, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// In that process: closes what comes.
///
/// # Errors
/// When standard input is no such socket.
pub fn run() -> io::Result<()> {
    // No terminal's signals, and none of its lines in ps.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"tracer-closer");
    let events = receive(io::stdin().as_fd())?;
    attach::close(events);
    Ok(())
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut events = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut message = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let came = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
        if came.bytes == 0 {
            return Ok(events);
        }
        for part in message.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                events.extend(fds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_descriptor_comes_through_the_socket() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let sent: Vec<OwnedFd> = (0..3 * BATCH / 2).map(|_| write.try_clone().unwrap()).collect();
        let receiver = std::thread::spawn(move || receive(theirs.as_fd()).unwrap());
        send(&ours, &sent).unwrap();
        drop((ours, write));
        let count = sent.len();
        drop(sent);
        let came = receiver.join().unwrap();
        assert_eq!(came.len(), count);
        // The pipe's end is seen once all of them are closed, and not before.
        drop(came);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }
}
