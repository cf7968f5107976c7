//! Closing links of perf events.
//!
//! To close one, the kernel waits for a grace period of RCU Tasks Trace (`perf_event_detach_bpf_prog()`): 20 to 40 ms,
//! or more on a busy machine. Links that are closed at the same time wait together. Kernels with the commit
//! ef1b808e3b7c (6.13, and stable kernels before it) and without ca3c4f646a9f (6.14) hold `bpf_event_mutex` meanwhile.
//! They close one link after the other, and a process that attaches a program to a perf event waits in the same queue.
//! The times at which links end show what an older kernel does.

use std::{
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    thread::Builder,
    time::{Duration, Instant},
};

use crate::kernel::{self, Change};

/// Largest number of threads that close links: enough for all events of a machine within some ten grace periods.
const THREADS: usize = 256;
/// Bytes of such a thread's stack.
const STACK: usize = 128 << 10;
/// Number of links that are closed at a time where others may have to wait for them.
const TRIAL: usize = 16;
/// Number of links by which the pace is found.
const ENOUGH: usize = 8;
/// Number of threads where the kernel closes one link after the other.
const FEW: usize = 4;
/// A close that takes less has not waited.
const NO_WAIT: Duration = Duration::from_millis(1);

/// What links showed that were closed; `None` where the version decides.
static MEASURED: LazyLock<Option<Mutex<Measured>>> =
    LazyLock::new(|| (!Change::LinksCloseTogether.is_in(kernel::version())).then(Mutex::default));

/// When closing a link began and ended.
type Span = (Instant, Instant);

/// How the kernel closes links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Too few were closed to know.
    #[default]
    Unknown,
    /// One after the other. Whoever makes a link waits, too.
    OneByOne,
    /// All that wait for the same grace period.
    Together,
}

impl Pace {
    /// By the kernel's version, or by the links that this process closed last.
    pub fn now() -> Self {
        MEASURED.as_ref().map_or(Self::Together, |measured| lock(measured).pace)
    }

    /// How many links are closed at a time.
    pub fn links_at_a_time(self) -> usize {
        match self {
            Self::Unknown | Self::OneByOne => TRIAL,
            Self::Together => THREADS,
        }
    }

    fn threads(self) -> usize {
        match self {
            Self::Unknown => TRIAL,
            Self::OneByOne => FEW,
            Self::Together => THREADS,
        }
    }
}

/// The pace, by the links that were closed so far.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    pace: Pace,
    /// Whether the last links closed together.
    is_shared: bool,
}

impl Measured {
    /// Adds links that were closed in parallel. A stall can look as if links had waited together, so that takes two
    /// results in a row.
    fn add(&mut self, spans: Vec<Span>) {
        match are_together(spans) {
            Some(true) if self.is_shared => self.pace = Pace::Together,
            Some(true) => self.is_shared = true,
            Some(false) => *self = Self { pace: Pace::OneByOne, is_shared: false },
            None => {}
        }
    }
}

/// Closes links by dropping them, with as many threads as the kernel can close links together. No other process may
/// hold the links.
pub(crate) fn close_links<T: Send>(links: Vec<T>) {
    close_in_parts(links, |spans| {
        if let Some(measured) = &*MEASURED {
            lock(measured).add(spans);
        }
    });
}

/// As [`close_links`], for links that another process may hold. Such a close does not tell how the kernel closes links.
pub(crate) fn close_unmeasured<T: Send>(links: Vec<T>) {
    close_in_parts(links, drop);
}

fn close_in_parts<T: Send>(mut links: Vec<T>, measure: impl Fn(Vec<Span>)) {
    while !links.is_empty() {
        let pace = Pace::now();
        let part = links.split_off(links.len().saturating_sub(pace.links_at_a_time()));
        measure(close_with(pace.threads(), part));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops values with up to this many threads, one of which is this one.
fn close_with<T: Send>(threads: usize, values: Vec<T>) -> Vec<Span> {
    let others = threads.min(values.len()).saturating_sub(1);
    let spans = Mutex::new(Vec::with_capacity(values.len()));
    let values = Mutex::new(values);
    let close = || {
        loop {
            let value = lock(&values).pop();
            let Some(value) = value else { return };
            let start = Instant::now();
            drop(value);
            lock(&spans).push((start, Instant::now()));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..others {
            // Without a further thread, fewer close them.
            if Builder::new().name("close".to_owned()).stack_size(STACK).spawn_scoped(scope, close).is_err() {
                break;
            }
        }
        close();
    });
    spans.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel closed links together; `None` if too few waited to know. Those that waited for the same grace
/// period end at about the same time, on a busy machine as well. Where each link has its own, none ends sooner after the
/// one before than a grace period takes. A quarter of short gaps is enough, because four threads can share two grace
/// periods, and a thread can be late.
fn are_together(mut spans: Vec<Span>) -> Option<bool> {
    let closed = spans.len();
    if closed < ENOUGH {
        return None;
    }
    spans.retain(|(start, end)| *end - *start >= NO_WAIT);
    if 2 * spans.len() < closed {
        return Some(true);
    }
    if spans.len() < ENOUGH {
        return None;
    }
    let shortest = spans.iter().map(|(start, end)| *end - *start).min()?;
    let mut ends: Vec<Instant> = spans.into_iter().map(|(_, end)| end).collect();
    ends.sort_unstable();
    let gaps = ends.iter().zip(ends.iter().skip(1)).map(|(one, next)| *next - *one);
    let short = gaps.filter(|gap| *gap < shortest / 8).count();
    Some(4 * short > ends.len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Closes that begin at once, and end after these milliseconds.
    fn closes(ends: impl IntoIterator<Item = u64>) -> Vec<Span> {
        let begin = Instant::now();
        ends.into_iter().map(|end| (begin, begin + Duration::from_millis(end))).collect()
    }

    #[test]
    fn grace_periods_of_a_busy_machine_are_told_apart() {
        let is_together = |ends: &dyn Fn(u64) -> u64| are_together(closes((1..=16).map(ends)));
        assert_eq!(is_together(&|_| 40), Some(true));
        // Threads wake up one after the other; some wait for the next grace period.
        assert_eq!(is_together(&|n| 300 + 5 * n), Some(true));
        assert_eq!(is_together(&|n| if n % 3 == 0 { 400 + n } else { 200 + n }), Some(true));
        assert_eq!(is_together(&|n| 30 * n.div_ceil(4)), Some(true));
        // Grace periods of 20 to 60 ms, one of which takes long.
        assert_eq!(is_together(&|n| 40 * n), Some(false));
        assert_eq!(is_together(&|n| 40 * n + 20 * (n % 2)), Some(false));
        assert_eq!(is_together(&|n| 40 * n + if n > 7 { 300 } else { 0 }), Some(false));
        assert_eq!(are_together(closes((1..=8).map(|n| 20 * n + if n > 3 { 500 } else { 0 }))), Some(false));
        // Many at once, in several grace periods.
        assert_eq!(are_together(closes((0..256).map(|n| 30 + 30 * (n / 64) + n / 16))), Some(true));
        assert_eq!(are_together(closes((1..=256).map(|n| 30 * n))), Some(false));
    }

    #[test]
    fn links_that_do_not_wait_tell_nothing_about_those_that_do() {
        // One of them or a few.
        assert_eq!(are_together(closes((0..16).map(|n| 40 * n))), Some(false));
        assert_eq!(are_together(closes((0..16).map(|n: u64| 40 * n.saturating_sub(6)))), Some(false));
        assert_eq!(are_together(closes((0..16).map(|n| if n < 6 { 0 } else { 40 }))), Some(true));
        assert_eq!(are_together(closes((0..8).map(|n| 40 * n))), None);
        // No link of this kernel waits.
        assert_eq!(are_together(closes([0; 16])), Some(true));
    }

    #[test]
    fn the_pace_follows_the_kernel() {
        let few = || closes((1..ENOUGH as u64).map(|n| 40 * n));
        let one_by_one = || closes((1..=ENOUGH as u64).map(|n| 40 * n));
        let together = || closes([40; ENOUGH]);
        // The first of them stalls, and all others wait for it.
        let stalled = || closes((1..=ENOUGH as u64).map(|n| 500 + 20 * n));
        let after = |all: &[&dyn Fn() -> Vec<Span>]| {
            let mut measured = Measured::default();
            for spans in all {
                measured.add(spans());
            }
            measured.pace
        };
        assert_eq!(after(&[&few]), Pace::Unknown);
        assert_eq!(after(&[&one_by_one]), Pace::OneByOne);
        assert_eq!(after(&[&one_by_one, &few]), Pace::OneByOne);
        assert_eq!(after(&[&together]), Pace::Unknown);
        assert_eq!(after(&[&together, &few, &together]), Pace::Together);
        assert_eq!(after(&[&one_by_one, &together]), Pace::OneByOne);
        assert_eq!(after(&[&one_by_one, &together, &together]), Pace::Together);
        assert_eq!(after(&[&together, &together, &few]), Pace::Together);
        assert_eq!(after(&[&together, &together, &one_by_one]), Pace::OneByOne);
        assert_eq!(after(&[&together, &together, &one_by_one, &together]), Pace::OneByOne);
        assert_eq!(after(&[&stalled, &one_by_one, &stalled]), Pace::OneByOne);
        assert_eq!(after(&[&stalled]), Pace::Unknown);
        // With the threads and links of each pace there are enough to leave it.
        for pace in [Pace::Unknown, Pace::OneByOne, Pace::Together] {
            assert!(pace.links_at_a_time() >= ENOUGH && pace.threads() <= pace.links_at_a_time());
        }
    }

    #[test]
    fn all_are_closed() {
        let count = Arc::new(());
        assert_eq!(close_with(FEW, (0..100).map(|_| Arc::clone(&count)).collect()).len(), 100);
        close_links((0..100).map(|_| Arc::clone(&count)).collect());
        close_unmeasured((0..100).map(|_| Arc::clone(&count)).collect());
        assert_eq!(Arc::strong_count(&count), 1);
    }
}
