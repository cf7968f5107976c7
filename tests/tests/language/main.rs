//! The languages of definitions, filters, histograms and synthetic events against the running kernel.

mod define;
mod filter;
mod hist;
mod synth;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the tests that write the same files of the kernel.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A `format` file without the event's id.
fn without_id(format: &str) -> String {
    format.lines().filter(|line| !line.starts_with("ID: ")).map(|line| line.to_owned() + "\n").collect()
}
