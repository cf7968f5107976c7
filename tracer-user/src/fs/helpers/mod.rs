//! The processes that work for a daemon. The daemon starts them before it drops its privileges and cannot start more
//! later.

pub(crate) mod opener;
mod process;
pub(crate) mod reaper;
pub(crate) mod state_writer;

use std::{io, path::Path, process::Stdio};

use self::state_writer::StateLifetime;
use crate::{engine::client_memory, sys::process::worker::Worker};

/// The numbers of processes of each kind. One works; the others replace it if it is killed.
const MEMORY: usize = 3;
const OPENERS: usize = 3;
const STATE_WRITERS: usize = 2;

/// The processes. Each process ends when the socket to it is closed. Requests go to the first of a kind that still
/// runs.
#[derive(Debug, Default)]
pub struct Helpers {
    /// Closes perf tracepoints when the daemon ends or is killed.
    pub(super) closer: Option<Worker>,
    /// Open user files.
    pub(super) openers: Vec<Worker>,
    /// Access clients' memory.
    pub(super) memory: Vec<Worker>,
    /// Write the state file.
    pub(super) state_writers: Vec<Worker>,
}

impl Helpers {
    /// Starts the processes, and those that write a state file if the daemon keeps one, into this directory. If a process
    /// does not start, this is logged and the daemon works without it.
    pub fn start(state: &StateLifetime) -> Self {
        // A thread that is blocked by a file would keep standard error open after the daemon has ended.
        let worker = |command| move || Worker::start(command, None, Stdio::null());
        let dir = state.dir().map(Path::as_os_str);
        let writer = || Worker::start(state_writer::COMMAND, dir, Stdio::null());
        let writers = if dir.is_some() { STATE_WRITERS } else { 0 };
        Self {
            closer: several(1, worker(reaper::COMMAND), "no process closes events later").pop(),
            openers: several(OPENERS, worker(opener::COMMAND), "no process opens files"),
            memory: several(MEMORY, client_memory::start, "clients' memory cannot be reached"),
            state_writers: several(writers, writer, "the state cannot be saved"),
        }
    }
}

/// Starts processes, up to the first that does not start. `without` says what is not done then.
fn several(number: usize, start: impl Fn() -> io::Result<Worker>, without: &str) -> Vec<Worker> {
    let start = |_| start().inspect_err(|error| tracing::warn!("{without}: {error}")).ok();
    (0..number).map_while(start).collect()
}
