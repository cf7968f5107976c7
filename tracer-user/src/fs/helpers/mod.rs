//! The processes that work for a daemon. The daemon starts them before it drops its privileges and cannot start more
//! later.

pub(crate) mod opener;
pub(crate) mod reaper;
pub(crate) mod state_writer;

use self::reaper::Closer;
use crate::{engine::client_memory, sys::process::worker::Worker};

/// The number of processes that access clients' memory. One works; the others replace it if it is killed.
const MEMORY: usize = 3;
/// The number of processes that open user files. One works; the others replace it if it is killed.
const OPENERS: usize = 3;
/// The number of processes that write the state file. One works; the other replaces it if it is killed.
const STATE_WRITERS: usize = 2;

/// The processes. Each process ends when the socket to it is closed.
#[derive(Debug)]
pub struct Helpers {
    /// Closes perf tracepoints when the daemon ends or is killed.
    pub(super) closer: Option<Closer>,
    /// Open user files. Requests go to the first process that still runs.
    pub(super) openers: Vec<Worker>,
    /// Access clients' memory. Requests go to the first process that still runs.
    pub(super) memory: Vec<Worker>,
    /// Write the state file. Requests go to the first process that still runs.
    pub(super) state_writers: Vec<Worker>,
}

impl Helpers {
    /// Starts the processes, and those that write a state file if the daemon keeps one. If a process does not start, this
    /// is logged and the daemon works without it.
    pub fn start(keeps_state: bool) -> Self {
        let closer = Closer::start()
            .inspect_err(|error| tracing::warn!("no process closes events later: {error}"))
            .ok();
        let opener =
            || opener::start().inspect_err(|error| tracing::warn!("no process opens files: {error}")).ok();
        let start = || {
            client_memory::start()
                .inspect_err(|error| tracing::warn!("clients' memory cannot be reached: {error}"))
                .ok()
        };
        let state_writer = || {
            state_writer::start()
                .inspect_err(|error| tracing::warn!("the state cannot be saved: {error}"))
                .ok()
        };
        let openers = (0..OPENERS).map_while(|_| opener()).collect();
        let memory = (0..MEMORY).map_while(|_| start()).collect();
        let writers = if keeps_state { STATE_WRITERS } else { 0 };
        let state_writers = (0..writers).map_while(|_| state_writer()).collect();
        Self { closer, openers, memory, state_writers }
    }
}
