//! The process that closes perf tracepoints in another's place: once a recording or daemon has ended with many events on, or when
//! a daemon is killed.
//!
//! To close one takes the kernel tens of milliseconds ([`crate::attach::take_off`]): a minute for all events of a machine, for
//! which nobody should have to wait. The descriptors come through a socket that is the process's standard input
//! ([`crate::attach::hold`]).

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
};

use crate::{
    attach,
    engine::confine::{self, Role},
    sys::worker::Worker,
};

/// The hidden command of this program that is the closer.
pub const COMMAND: &str = "close-events";

/// The process, from the side of the one that starts it.
#[derive(Debug)]
pub struct Closer(Worker);

impl Closer {
    /// Starts it.
    ///
    /// # Errors
    /// When there can be no further process.
    pub fn start() -> io::Result<Self> {
        Worker::start(COMMAND, Stdio::null()).map(Self)
    }

    /// Starts it where so many events are to be closed that they are worth a process.
    pub fn start_for(events: usize) -> Option<Self> {
        let worth = events > attach::INLINE_CLOSE_MAX;
        let warn =
            |error: &io::Error| tracing::warn!("no process closes the events, so this one will: {error}");
        worth.then(|| Self::start().inspect_err(warn).ok()).flatten()
    }

    /// Hands events over, which it closes once this process has let go of the socket or ended.
    pub fn close(self, events: Vec<OwnedFd>) {
        if let Err(error) = attach::hand_over(self.0.socket(), &events) {
            tracing::warn!("no process closes the events, so this one does: {error}");
            attach::close(events);
        }
    }

    /// The socket to it ([`Worker::into_socket`]).
    pub(in crate::fs) fn into_socket(self) -> io::Result<OwnedFd> {
        self.0.into_socket()
    }
}

/// Closes the events that are left when a daemon ends: few, or all of them where no process guards them.
pub(in crate::fs) fn close(events: Vec<OwnedFd>) {
    if events.len() <= attach::INLINE_CLOSE_MAX {
        drop(events);
    } else {
        attach::close(events);
    }
}

/// In that process: closes what comes.
///
/// # Errors
/// When standard input is no such socket.
pub fn run() -> io::Result<()> {
    // No terminal's signals, and none of its lines in ps.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"tracer-closer");
    // It holds descriptors, for which nobody asks a capability.
    confine::confine(Role::Closer);
    Ok(attach::hold(io::stdin().as_fd())?)
}
