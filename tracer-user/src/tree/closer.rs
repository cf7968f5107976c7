//! The process that closes perf tracepoints in another's place: once a recording or daemon has ended with many events on, or when
//! a daemon is killed.
//!
//! To close one takes the kernel tens of milliseconds ([`crate::attach::take_off`]): a minute for all events of a machine, for
//! which nobody should have to wait. The descriptors come through a socket that is the process's standard input
//! ([`crate::attach::hold`]).

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::attach;

/// The hidden command of this program that is the closer.
pub const COMMAND: &str = "close-events";
/// So few are closed at once.
const FEW: usize = 16;

/// Has perf events closed: few at once, many by a process of their own.
pub fn close(events: Vec<OwnedFd>) {
    if events.len() <= FEW {
        drop(events);
    } else if let Err(error) = hand_over(&events) {
        tracing::warn!("no process closes the events, so this one does: {error}");
        attach::close(events);
    }
}

fn hand_over(events: &[OwnedFd]) -> io::Result<()> {
    Ok(attach::hand_over(&start()?, events)?)
}

/// Starts the process; the socket to it.
pub(super) fn start() -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("tracer")
        .arg(COMMAND)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()?;
    // It may end before this process does.
    std::thread::Builder::new().stack_size(1 << 16).spawn(move || child.wait())?;
    Ok(ours)
}

/// In that process: closes what comes.
///
/// # Errors
/// When standard input is no such socket.
pub fn run() -> io::Result<()> {
    // No terminal's signals, and none of its lines in ps.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"tracer-closer");
    Ok(attach::hold(io::stdin().as_fd())?)
}
