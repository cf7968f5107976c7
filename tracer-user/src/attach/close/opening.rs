//! The order of closing and opening perf events, among all tracers on this kernel.
//!
//! To close a perf tracepoint's descriptors, the kernel waits for all CPUs twice. At the link to a program, many
//! closers can wait together ([`super::links`]). At the event itself, the kernel holds a lock for some 30 ms each, and
//! every enable and disable of an event needs this lock. Without its link an event has no effect. So links are closed
//! at once, and events later, while no tracer opens many.

use std::{fs::File, time::Duration};

use rustix::fs::{FlockOperation, flock};

/// The lock file: every tracer on this kernel can open it, whatever its view of the file system.
pub const LOCK_FILE: &str = "/sys/kernel/btf/vmlinux";
/// Steps that a closer waits for tracers that open events: before one event, and before all events that it closes.
/// The waits are limited because any process can hold the lock indefinitely.
const PATIENCE: u32 = 400;
const PATIENCE_IN_ALL: u32 = 2000;
const STEP: Duration = Duration::from_millis(5);

/// Makes closers of all tracers on this kernel wait until it is dropped, because this process opens many events.
#[derive(Debug)]
pub struct Opening {
    #[cfg_attr(not(test), expect(dead_code, reason = "the lock ends with it"))]
    lock_file: Option<File>,
}

impl Opening {
    /// Makes closers wait. Without the lock, opening takes longer.
    pub fn begin() -> Self {
        Self::waiting(STEP)
    }

    /// As [`Opening::begin`], but does not sleep if a closer holds the lock at this moment.
    pub fn begin_at_once() -> Self {
        Self::waiting(Duration::ZERO)
    }

    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        self.lock_file.is_some()
    }

    fn waiting(wait: Duration) -> Self {
        let lock = |file: &File| {
            (0..10).any(|_| {
                // A closer holds the lock only for a moment while it checks.
                let locked = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
                if !locked && wait.is_zero() {
                    std::thread::yield_now();
                } else if !locked {
                    std::thread::sleep(wait);
                }
                locked
            })
        };
        Self { lock_file: File::open(LOCK_FILE).ok().filter(lock) }
    }
}

/// Closes perf events one by one, by dropping them, and pauses while a tracer opens many. An event is taken from the
/// iterator after the pause.
pub fn close<T>(events: impl IntoIterator<Item = T>) {
    let mut throttle = CloseThrottle::default();
    let mut events = events.into_iter();
    while events.size_hint().1 != Some(0) {
        throttle.wait_for_openers();
        if events.next().is_none() {
            return;
        }
    }
}

/// Waits for tracers that open many events while this process closes events: at most 2 s before an event, and 10 s in
/// all.
#[derive(Debug)]
pub struct CloseThrottle {
    each: u32,
    left: u32,
}

impl Default for CloseThrottle {
    fn default() -> Self {
        Self { each: PATIENCE, left: PATIENCE_IN_ALL }
    }
}

impl CloseThrottle {
    /// Waits until no tracer opens many events, within the limits.
    pub fn wait_for_openers(&mut self) {
        let Ok(file) = File::open(LOCK_FILE) else { return };
        for _ in 0..self.each.min(self.left) {
            // Dropping the file releases the lock.
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return;
            }
            self.left -= 1;
            std::thread::sleep(STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn closers_wait_for_openers() {
        let opening = Opening::begin();
        if opening.lock_file.is_none() {
            return;
        }
        let start = Instant::now();
        let closer = std::thread::spawn(move || {
            CloseThrottle::default().wait_for_openers();
            start.elapsed()
        });
        std::thread::sleep(8 * STEP);
        drop(opening);
        assert!(closer.join().unwrap() >= 8 * STEP);
    }

    #[test]
    fn a_lock_that_stays_held_is_waited_for_within_the_limits() {
        let opening = Opening::begin();
        if opening.lock_file.is_none() {
            return;
        }
        let mut throttle = CloseThrottle { each: 4, left: 10 };
        let lefts: Vec<u32> = (0..5)
            .map(|_| {
                throttle.wait_for_openers();
                throttle.left
            })
            .collect();
        assert_eq!(lefts, [6, 2, 0, 0, 0]);
    }
}
