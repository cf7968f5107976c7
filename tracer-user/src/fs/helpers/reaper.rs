//! A process that closes perf tracepoints: after a recording or daemon with many enabled events has ended, or after a
//! daemon was killed.
//!
//! The kernel needs tens of milliseconds to close one ([`crate::attach::detach_all`]), so a minute for all events of
//! a machine. The user should not wait for that. The descriptors arrive through a socket, which is the standard input
//! of the process ([`crate::attach::hold`]).

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
};

use rustix::fs::{Mode, OFlags, open};

use super::process::begin;
use crate::{
    attach,
    engine::confine::{self, Role},
    sys::process::{landlock::FileAccess, worker::Worker},
};

/// The hidden command of this program that runs as the closer.
pub const COMMAND: &str = "close-events";

/// The process, as its parent sees it.
#[derive(Debug)]
pub struct Closer(Worker);

impl Closer {
    /// Starts the process if closing this many events takes longer than the start. Logs errors.
    pub fn start_for(events: usize) -> Option<Self> {
        let worth = events > attach::INLINE_CLOSE_MAX;
        let warn =
            |error: &io::Error| tracing::warn!("no process closes the events, so this one will: {error}");
        worth.then(|| Worker::start(COMMAND, None, Stdio::null()).inspect_err(warn).ok()).flatten().map(Self)
    }

    /// Passes events to the process, which closes them after this process has closed the socket or ended.
    pub fn close(self, events: Vec<OwnedFd>) {
        if let Err(error) = attach::hand_over(self.0.socket(), &events) {
            tracing::warn!("no process closes the events, so this one does: {error}");
            attach::close(events);
        }
    }
}

/// Closes the events that are left when a daemon ends: only few, or all events if no process guards them.
pub(crate) fn close(events: Vec<OwnedFd>) {
    if events.len() <= attach::INLINE_CLOSE_MAX {
        drop(events);
    } else {
        attach::close(events);
    }
}

/// Runs in the process: closes the events that arrive.
///
/// # Errors
/// When reading from standard input fails.
pub fn run() -> io::Result<()> {
    begin(c"tracer-closer");
    // Holding descriptors needs no capability, and only one file.
    let lock_file = open(attach::LOCK_FILE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    let files: Vec<_> = lock_file.iter().map(|file| (file.as_fd(), FileAccess::Read)).collect();
    confine::confine_to(Role::Closer, &files);
    Ok(attach::hold(io::stdin().as_fd())?)
}
