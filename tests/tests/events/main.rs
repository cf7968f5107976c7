//! Events and triggers of a mounted mirror: attach points, records, synthetic events, `inject` and triggers.

mod chains;
mod hooks;
mod inject;
mod preempted;
mod read_variables;
mod records;
mod synth;
mod trigger_differential;
mod trigger_hist;
mod triggers;
mod user_data;

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use tracer_tests::host;

/// Runs a test of triggers. Triggers without a condition act on the hits of all threads, so one test at a time runs.
fn run(test: impl FnOnce() -> Result<()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    host::as_root(test);
}
