//! Closing links of perf events.
//!
//! To close one, the kernel waits for a grace period of RCU Tasks Trace (`perf_event_detach_bpf_prog()`): 20 to 40 ms, or
//! more on a busy machine. Links that are closed at the same time wait together. Kernels between the commits
//! ef1b808e3b7c and ca3c4f646a9f (6.13, and stable kernels before it) hold `bpf_event_mutex` meanwhile. They close one
//! link after the other, and a process that attaches a program to a perf event waits in the same queue.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::Builder,
    time::{Duration, Instant},
};

/// Largest number of threads that close links: enough for all events of a machine within some ten grace periods.
const THREADS: usize = 256;
/// Bytes of such a thread's stack.
const STACK: usize = 128 << 10;
/// Number of links by which the pace is found, and of threads that close them.
const TRIAL: usize = 16;
/// Number of threads where the kernel closes one link after the other.
const FEW: usize = 4;
/// A close that takes less has not waited.
const NO_WAIT: Duration = Duration::from_millis(1);

/// The number of threads, by what the kernel did last.
static PACE: AtomicUsize = AtomicUsize::new(TRIAL);

/// When closing a link began and ended.
type Span = (Instant, Instant);

/// How many links a caller closes at a time that must not hold up others: `None` for any number, where the kernel closes
/// links together.
pub fn links_at_a_time() -> Option<usize> {
    (PACE.load(Ordering::Relaxed) < THREADS).then_some(TRIAL)
}

/// Closes links by dropping them, with as many threads as the kernel can close links together.
pub(crate) fn close_links<T: Send>(mut links: Vec<T>) {
    while !links.is_empty() {
        let count = links_at_a_time().unwrap_or(links.len());
        let part = links.split_off(links.len().saturating_sub(count));
        match are_together(close_with(PACE.load(Ordering::Relaxed), part)) {
            Some(true) => PACE.store(THREADS, Ordering::Relaxed),
            Some(false) => PACE.store(FEW, Ordering::Relaxed),
            None => {}
        }
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

/// Whether the kernel closed links together; `None` if there are too few to know. Those that waited for the same grace
/// period end at about the same time, on a busy machine as well. Where each link has its own, none ends sooner after
/// the one before than a grace period takes.
fn are_together(spans: Vec<Span>) -> Option<bool> {
    if spans.len() < TRIAL {
        return None;
    }
    let shortest = spans.iter().map(|(start, end)| *end - *start).min()?;
    let mut ends: Vec<Instant> = spans.into_iter().map(|(_, end)| end).collect();
    ends.sort_unstable();
    let gaps = ends.iter().zip(ends.iter().skip(1)).map(|(one, next)| *next - *one);
    let short = gaps.filter(|gap| *gap < shortest / 4).count();
    Some(shortest < NO_WAIT || 2 * short > ends.len())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread::sleep};

    use super::*;

    /// Waits in its drop as the kernel does, for a lock if there is one.
    struct Link(Duration, Option<Arc<Mutex<()>>>);

    impl Drop for Link {
        fn drop(&mut self) {
            let _held = self.1.as_deref().map(lock);
            sleep(self.0);
        }
    }

    #[test]
    fn links_that_the_kernel_closes_together_are_told_from_others() {
        let wait = Duration::from_millis(40);
        let mutex = Arc::new(Mutex::new(()));
        let together = |links| are_together(close_with(TRIAL, links));
        assert_eq!(together((0..2 * TRIAL).map(|_| Link(wait, None)).collect()), Some(true));
        assert_eq!(together((0..TRIAL).map(|_| Link(wait, Some(Arc::clone(&mutex)))).collect()), Some(false));
        assert_eq!(together((0..TRIAL).map(|_| Link(Duration::ZERO, None)).collect()), Some(true));
        assert_eq!(together((1..TRIAL).map(|_| Link(Duration::ZERO, None)).collect()), None);
    }

    #[test]
    fn grace_periods_of_a_busy_machine_are_told_apart() {
        let begin = Instant::now();
        let spans = |end: &dyn Fn(u64) -> u64| {
            let at = |ms| begin + Duration::from_millis(ms);
            (0..16).map(|n| (at(n), at(end(n)))).collect::<Vec<Span>>()
        };
        // Threads wake up one after the other; some wait for the next grace period.
        assert_eq!(are_together(spans(&|n| 300 + 5 * n)), Some(true));
        assert_eq!(are_together(spans(&|n| if n % 3 == 0 { 400 + n } else { 200 + n })), Some(true));
        // Grace periods of 20 to 60 ms.
        assert_eq!(are_together(spans(&|n| 20 + 40 * n + 20 * (n % 2))), Some(false));
    }

    #[test]
    fn all_are_closed() {
        let count = Arc::new(());
        close_with(FEW, (0..100).map(|_| Arc::clone(&count)).collect());
        close_links((0..100).map(|_| Arc::clone(&count)).collect());
        assert_eq!(Arc::strong_count(&count), 1);
    }
}
