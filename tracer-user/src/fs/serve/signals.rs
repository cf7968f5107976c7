//! Looks for pending signals of the threads with waiting reads.
//!
//! The kernel reports a signal by FUSE_INTERRUPT. fuser 0.18 refuses this request, and the kernel does not repeat it. So
//! the pending signals of these threads are looked up in `/proc/TID/status`, the only file that has those of a process.
//! Reading it can take the last reference to the address space of a process that ends, and then the reader waits for
//! file systems that this process may serve ([`crate::kernel::proc`]). A thread ends during a look if its read is
//! answered meanwhile, or if its read fills a page ahead and it waits for nothing. So neither the main loop nor the
//! owner of the tree reads the file. Another thread does. If a look takes longer than [`LATE`], a further thread
//! continues with the other reads. [`Kind::SignalLooks`] limits the looks of each payer.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use crate::{
    engine::quota::{Kind, Quotas},
    fs::threads::{lock, spawn},
    kernel::ThreadStatus,
};

/// How long a look may take before another thread continues with the other reads.
const LATE: Duration = Duration::from_millis(100);

/// The thread of a waiting read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) payer: u32,
    pub(crate) pid: u32,
    /// The start of its wait, which distinguishes its reads.
    pub(crate) since: Instant,
}

type Batch = (Vec<Reader>, Box<dyn Fn(&Reader) + Send>);

struct Looker {
    to: Sender<Batch>,
    /// The start of its present look; `None` while it waits for readers.
    since: Arc<Mutex<Option<Instant>>>,
}

/// Looks for signals in a separate thread.
pub(crate) struct Signals {
    looker: Mutex<Option<Looker>>,
    /// The threads that are being looked at.
    held: Arc<Mutex<HashSet<u32>>>,
    quotas: Quotas,
    is_interrupted: fn(u32) -> bool,
}

impl Signals {
    pub(crate) fn new(quotas: Quotas) -> Self {
        let (looker, held) = (Mutex::default(), Arc::default());
        Self { looker, held, quotas, is_interrupted }
    }

    /// Looks at threads, unless the last look is still in progress. Calls `interrupt` from another thread for each of
    /// them that has a pending signal. Never blocks.
    pub(crate) fn look(
        &self,
        readers: impl FnOnce() -> Vec<Reader>,
        interrupt: impl Fn(&Reader) + Send + 'static,
    ) {
        let mut looker = lock(&self.looker);
        let since = looker.as_ref().and_then(|looker| *lock(&looker.since));
        if since.is_some_and(|since| since.elapsed() < LATE) {
            return;
        }
        // A thread that takes longer ends after its batch, because its channel is closed here.
        if since.is_some() || looker.is_none() {
            *looker = self.start();
        }
        let Some(looker) = &*looker else { return };
        *lock(&looker.since) = Some(Instant::now());
        let _ = looker.to.send((readers(), Box::new(interrupt)));
    }

    fn start(&self) -> Option<Looker> {
        let (to, from) = channel();
        let since = Arc::<Mutex<Option<Instant>>>::default();
        let (its, held) = (Arc::clone(&since), Arc::clone(&self.held));
        let (quotas, is_interrupted) = (self.quotas.clone(), self.is_interrupted);
        let run = move || run(&from, &its, &held, &quotas, is_interrupted);
        let started = spawn("signals", run);
        let started = started.inspect_err(|error| tracing::debug!("no thread looks for signals: {error}"));
        started.ok().map(|_| Looker { to, since })
    }
}

/// Looks at threads until the channel is closed.
fn run(
    from: &Receiver<Batch>,
    since: &Mutex<Option<Instant>>,
    held: &Mutex<HashSet<u32>>,
    quotas: &Quotas,
    is_interrupted: fn(u32) -> bool,
) {
    while let Ok((readers, interrupt)) = from.recv() {
        for reader in &readers {
            *lock(since) = Some(Instant::now());
            let Ok(_charge) = quotas.charge(reader.payer, Kind::SignalLooks, 1) else { continue };
            if !lock(held).insert(reader.pid) {
                continue;
            }
            let interrupted = is_interrupted(reader.pid);
            lock(held).remove(&reader.pid);
            if interrupted {
                interrupt(reader);
            }
        }
        *lock(since) = None;
    }
}

/// Whether a thread has a pending signal that it does not block, or is gone (proc(5)).
fn is_interrupted(pid: u32) -> bool {
    ThreadStatus::read(pid).map_or(true, |status| status.is_interrupted())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn reads_of_threads_with_signals_and_of_ended_threads_end() {
        assert!(!is_interrupted(std::process::id()));
        assert!(is_interrupted(u32::MAX >> 1));
    }

    #[test]
    fn looks_that_hang_delay_no_other_reads() {
        static HANGS: AtomicBool = AtomicBool::new(true);
        /// Threads from this id on hang.
        const HANGING: u32 = 1000;
        let is_interrupted = |pid| {
            let begun = Instant::now();
            while pid >= HANGING && HANGS.load(Ordering::Acquire) && begun.elapsed() < Duration::from_secs(60)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        };
        let signals = Signals { is_interrupted, ..Signals::new(Quotas::default()) };
        let reader = |payer, pid| Reader { payer, pid, since: Instant::now() };
        // Payer 7 has more threads that hang than looks. Those of payer 8 are behind them.
        let hanging = (0..10).map(|index| reader(7, HANGING + index));
        let all: Vec<Reader> = hanging.chain([reader(8, 1), reader(0, 2)]).collect();
        let (to, ended) = channel();
        let mut left: HashSet<u32> = [1, 2].into();
        let start = Instant::now();
        let mut turn = 0;
        // A caller that waits for a look that hangs comes back too late.
        while !left.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "{left:?} hang");
            let mut batch = all.clone();
            batch.rotate_left(turn % all.len());
            turn += 1;
            let to = to.clone();
            signals.look(|| batch, move |reader| to.send(reader.pid).unwrap());
            std::thread::sleep(Duration::from_millis(5));
            for pid in ended.try_iter() {
                left.remove(&pid);
            }
        }
        assert!(signals.quotas.used(7, Kind::SignalLooks) <= Kind::SignalLooks.limits().per_payer);
        // After they answer, their reads end too, and each of them once.
        HANGS.store(false, Ordering::Release);
        drop(to);
        let rest: Vec<u32> = ended.iter().filter(|pid| *pid >= HANGING).collect();
        assert!(!rest.is_empty());
    }
}
