//! Histograms: tables of known calls, and the same commands on the kernel's tracefs.

mod cli;
mod counts;
mod differential;
mod mirror;
mod variables;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the tests that make the same calls, count the same events or read the same log.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
