//! Locks and threads of the daemon.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{Builder, JoinHandle},
};

/// Locks a mutex, also after a thread panicked while it held the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a named thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run)
}
