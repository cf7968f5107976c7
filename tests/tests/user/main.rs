//! User events and the events that programs define.

mod actions;
mod differential;
mod events;
mod kernel_suite;
mod programs;

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use tracer_tests::host;

/// Runs a test that hits the events of this program. A probe sees the hits of every process that runs this file, so
/// one test at a time runs.
fn run(test: impl FnOnce() -> Result<()>) {
    static HITTING: Mutex<()> = Mutex::new(());
    let _alone = HITTING.lock().unwrap_or_else(PoisonError::into_inner);
    host::as_root(test);
}
