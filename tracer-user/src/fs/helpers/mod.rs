//! The processes that work for a daemon. It starts them before it drops its privileges, as it can start none later.

pub(in crate::fs) mod opener;
pub(in crate::fs) mod reaper;

use self::reaper::Closer;
use crate::{engine::client_memory, sys::worker::Worker};

/// Processes that reach clients' memory: one, and others for the case that it is killed.
const MEMORY: usize = 3;
/// Processes that open users' files, likewise.
const OPENERS: usize = 3;

/// The processes, each of which ends with the socket to it.
#[derive(Debug)]
pub struct Helpers {
    /// Closes perf tracepoints when the daemon ends or is killed.
    pub(super) closer: Option<Closer>,
    /// Open users' files, one after the other.
    pub(super) openers: Vec<Worker>,
    /// Reach clients' memory, one after the other.
    pub(super) memory: Vec<Worker>,
}

impl Helpers {
    /// Starts them. One that does not start is told of; the daemon then does without.
    pub fn start() -> Self {
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
        let openers = (0..OPENERS).map_while(|_| opener()).collect();
        Self { closer, openers, memory: (0..MEMORY).map_while(|_| start()).collect() }
    }
}
