//! The process that accesses clients' memory: receives orders and runs each in a separate thread.
//!
//! An access to a client's memory, even opening it, can block without a limit. So the first thread only receives
//! orders, and the number of other threads is limited for each payer: a client can block only itself and other clients
//! of its payer. The process ends when the daemon's side of the socket is closed, even if threads are blocked.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{RecvFlags, SendFlags, recv, send},
};

use super::{
    message::{Done, Look, Op, Order, PACKET_MAX, Report, packet},
    space::Space,
};
use crate::engine::quota::Limits;

/// Limits of the threads.
const THREADS: Limits = Limits { per_payer: 8, clients: 112, root: 64 };
/// Maximum number of waiting jobs of one payer. A client within its quotas has some hundreds (requests and address
/// spaces). Root has no limit.
const WAITING_PER_PAYER: usize = 1024;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);
/// Size of a thread's stack in bytes.
const STACK: usize = 128 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Job = Box<dyn FnOnce() + Send>;

struct Waiting {
    /// The address space that the job opens. If it is forgotten first, the job is dropped.
    opens: Option<u64>,
    job: Job,
}

/// Jobs and the threads that run them.
#[derive(Default)]
struct Jobs {
    /// Jobs of payers that have reached their number of threads.
    waiting: HashMap<u32, VecDeque<Waiting>>,
    /// The payer whose job would open an address space.
    openers: HashMap<u64, u32>,
    /// Payers with such jobs, the next one first.
    turn: VecDeque<u32>,
    running: HashMap<u32, usize>,
    /// Threads of all payers but root.
    clients: usize,
    /// Jobs for idle threads.
    ready: VecDeque<(u32, Job)>,
    idle: usize,
}

impl Jobs {
    fn may_run(&self, payer: u32) -> bool {
        let own = self.running.get(&payer).copied().unwrap_or(0);
        THREADS.admit(payer, own + 1, self.clients + 1)
    }

    fn begin(&mut self, payer: u32) {
        *self.running.entry(payer).or_default() += 1;
        self.clients += usize::from(payer != 0);
    }

    /// Ends a job of a payer. Returns the next job to run.
    fn end(&mut self, payer: u32) -> Option<(u32, Job)> {
        if let Some(own) = self.running.get_mut(&payer) {
            *own -= 1;
            if *own == 0 {
                self.running.remove(&payer);
            }
        }
        self.clients -= usize::from(payer != 0);
        // Root's turn comes first.
        let roots = self.turn.iter().position(|payer| *payer == 0 && self.may_run(0));
        let place = roots.or_else(|| self.turn.iter().position(|payer| self.may_run(*payer)))?;
        let next = self.turn.remove(place)?;
        let jobs = self.waiting.get_mut(&next)?;
        let Waiting { opens, job } = jobs.pop_front()?;
        if let Some(id) = opens {
            self.openers.remove(&id);
        }
        if jobs.is_empty() {
            self.waiting.remove(&next);
        } else {
            self.turn.push_back(next);
        }
        self.begin(next);
        Some((next, job))
    }

    /// Queues a job, unless its payer has reached its limit.
    fn wait(&mut self, payer: u32, job: Waiting) -> bool {
        let own = self.waiting.entry(payer).or_default();
        if payer != 0 && own.len() >= WAITING_PER_PAYER {
            return false;
        }
        self.openers.extend(job.opens.map(|id| (id, payer)));
        own.push_back(job);
        if own.len() == 1 {
            self.turn.push_back(payer);
        }
        true
    }

    /// Removes a job that waits to open an address space.
    fn forget(&mut self, id: u64) -> Option<Waiting> {
        let payer = self.openers.remove(&id)?;
        let own = self.waiting.get_mut(&payer)?;
        let place = own.iter().position(|job| job.opens == Some(id))?;
        let job = own.remove(place);
        if own.is_empty() {
            self.waiting.remove(&payer);
            self.turn.retain(|waits| *waits != payer);
        }
        job
    }
}

#[derive(Default)]
struct Pool {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

impl Pool {
    /// Runs a job as soon as its payer may have one more thread; returns false if too many jobs of the payer wait
    /// already.
    #[must_use]
    fn run(self: &Arc<Self>, payer: u32, opens: Option<u64>, job: Job) -> bool {
        let mut jobs = lock(&self.jobs);
        if !jobs.may_run(payer) {
            return jobs.wait(payer, Waiting { opens, job });
        }
        jobs.begin(payer);
        jobs.ready.push_back((payer, job));
        if jobs.ready.len() <= jobs.idle {
            self.more.notify_one();
            return true;
        }
        drop(jobs);
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("client".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || pool.work()) {
            // Another thread runs the job after its own.
            tracing::warn!("cannot start a thread for a client's memory: {error}");
        }
        true
    }

    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some((payer, job)) = jobs.ready.pop_front() {
                drop(jobs);
                job();
                jobs = lock(&self.jobs);
                if let Some(next) = jobs.end(payer) {
                    jobs.ready.push_front(next);
                }
                continue;
            }
            jobs.idle += 1;
            let waited = self.more.wait_timeout_while(jobs, IDLE, |jobs| jobs.ready.is_empty());
            (jobs, _) = waited.unwrap_or_else(PoisonError::into_inner);
            jobs.idle -= 1;
            if jobs.ready.is_empty() {
                return;
            }
        }
    }
}

/// Writes in progress, each with a flag that cancels it.
type Batch = Arc<Vec<(Op, AtomicBool)>>;

struct State {
    socket: OwnedFd,
    spaces: Mutex<HashMap<u64, Arc<Space>>>,
    /// Address spaces that are to be opened, unless they are forgotten first.
    opening: Mutex<HashSet<u64>>,
    batches: Mutex<HashMap<u64, Batch>>,
}

impl State {
    fn report(&self, report: &Report) {
        // After an error the daemon has ended, and this process ends soon.
        let _ = retry_on_intr(|| send(&self.socket, &packet(report), SendFlags::NOSIGNAL));
    }

    /// Opens a thread's address space and keeps it; `None` if it was forgotten meanwhile.
    fn open(&self, id: u64, thread: u32) -> Result<Option<Arc<Space>>, Errno> {
        if !lock(&self.opening).contains(&id) {
            return Ok(None);
        }
        let opened = Space::open(thread).map(Arc::new);
        let mut opening = lock(&self.opening);
        let forgotten = !opening.remove(&id);
        let space = opened?;
        if forgotten {
            return Ok(None);
        }
        lock(&self.spaces).insert(id, Arc::clone(&space));
        Ok(Some(space))
    }

    fn look(&self, id: u64, look: &Look) {
        let seen = match self.open(id, look.thread) {
            Ok(Some(space)) => {
                let known = lock(&self.spaces).get(&look.known).cloned();
                space.look(look, known.as_deref())
            }
            Ok(None) => return,
            Err(errno) => Err(errno),
        };
        match &seen {
            Ok(seen) => tracing::debug!(
                "a request of task {}: {:?} {:?}",
                look.thread,
                seen.structure.as_ref().err(),
                seen.text.as_ref().err()
            ),
            Err(errno) => tracing::debug!("cannot inspect a request of task {}: {errno}", look.thread),
        }
        self.report(&Report::Looked { id, seen });
    }

    fn write(&self, batch: u64, ops: &Batch) {
        let mut done = Vec::with_capacity(ops.len());
        for (op, cancelled) in ops.iter() {
            let space = lock(&self.spaces).get(&op.space).cloned();
            done.push(Done(match space {
                Some(_) if cancelled.load(Ordering::Acquire) => Err(Errno::CANCELED),
                Some(space) => space.run(op, cancelled),
                None => Err(Errno::SRCH),
            }));
        }
        lock(&self.batches).remove(&batch);
        self.report(&Report::Written { batch, done });
    }

    fn forget(&self, id: u64) {
        lock(&self.opening).remove(&id);
        if let Some(space) = lock(&self.spaces).remove(&id) {
            space.forgotten.store(true, Ordering::Release);
        }
    }
}

/// Executes orders until the other side of the socket is closed.
///
/// # Errors
/// `socket` is not a socket.
pub(super) fn serve(socket: OwnedFd) -> Result<(), Errno> {
    serve_with(socket, &Arc::new(Pool::default()))
}

fn serve_with(socket: OwnedFd, pool: &Arc<Pool>) -> Result<(), Errno> {
    let state = Arc::new(State {
        socket,
        spaces: Mutex::default(),
        opening: Mutex::default(),
        batches: Mutex::default(),
    });
    let mut packet = vec![0; PACKET_MAX];
    loop {
        let length = match retry_on_intr(|| recv(&state.socket, &mut packet[..], RecvFlags::empty())) {
            Err(Errno::CONNRESET) | Ok((0, _)) => return Ok(()),
            length => length?.0,
        };
        let Some(order) = packet.get(..length).and_then(Order::read) else {
            tracing::warn!("an invalid order of {length} bytes");
            continue;
        };
        let its = Arc::clone(&state);
        match order {
            Order::Look { id, look } => {
                lock(&state.opening).insert(id);
                if !pool.run(look.payer, Some(id), Box::new(move || its.look(id, &look))) {
                    lock(&state.opening).remove(&id);
                    state.report(&Report::Looked { id, seen: Err(Errno::NOMEM) });
                }
            }
            Order::Open { id, payer, thread } => {
                lock(&state.opening).insert(id);
                let open = move || {
                    let identity = match its.open(id, thread) {
                        Ok(Some(space)) => Ok(space.identity().to_vec()),
                        Ok(None) => Err(Errno::CANCELED),
                        Err(errno) => Err(errno),
                    };
                    its.report(&Report::Opened { id, identity });
                };
                if !pool.run(payer, Some(id), Box::new(open)) {
                    lock(&state.opening).remove(&id);
                    state.report(&Report::Opened { id, identity: Err(Errno::NOMEM) });
                }
            }
            Order::Write { batch, payer, ops } => {
                let ops: Batch = Arc::new(ops.into_iter().map(|op| (op, AtomicBool::new(false))).collect());
                lock(&state.batches).insert(batch, Arc::clone(&ops));
                let count = ops.len();
                if !pool.run(payer, None, Box::new(move || its.write(batch, &ops))) {
                    lock(&state.batches).remove(&batch);
                    state.report(&Report::Written { batch, done: vec![Done(Err(Errno::NOMEM)); count] });
                }
            }
            Order::Cancel { batch, key } => {
                let ops = lock(&state.batches).get(&batch).cloned();
                for (op, cancelled) in ops.iter().flat_map(|ops| ops.iter()) {
                    if op.key == key {
                        cancelled.store(true, Ordering::Release);
                    }
                }
            }
            Order::Forget { id } => {
                let job = lock(&pool.jobs).forget(id);
                drop(job);
                state.forget(id);
            }
            Order::Ping => state.report(&Report::Pong),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::{super::tests::sockets, *};

    #[test]
    fn the_threads_of_a_payer_are_limited_and_some_are_reserved_for_root() {
        let pool = Arc::new(Pool::default());
        let (go, gone) = channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        let (end, ended) = channel();
        let job = |payer: u32, waits: bool| -> Job {
            let (gone, end) = (Arc::clone(&gone), end.clone());
            Box::new(move || {
                if waits {
                    // One job holds it; all others wait.
                    let _ = lock(&gone).recv();
                }
                end.send(payer).unwrap();
            })
        };
        let await_all = |count: usize| -> Vec<u32> {
            (0..count).map(|_| ended.recv_timeout(Duration::from_secs(60)).unwrap()).collect()
        };
        for _ in 0..THREADS.per_payer + 3 {
            assert!(pool.run(7, None, job(7, true)));
        }
        {
            let jobs = lock(&pool.jobs);
            assert_eq!((jobs.running[&7], jobs.waiting[&7].len()), (THREADS.per_payer, 3));
        }
        // Other payers and root continue.
        assert!(pool.run(8, None, job(8, false)));
        assert!(pool.run(0, None, job(0, false)));
        let mut others = await_all(2);
        others.sort_unstable();
        assert_eq!(others, [0, 8]);
        // All payers together leave root its reserved threads.
        for payer in 100..200 {
            assert!(pool.run(payer, None, job(payer, true)));
        }
        for _ in 0..THREADS.per_payer {
            assert!(pool.run(0, None, job(0, false)));
        }
        await_all(THREADS.per_payer);
        assert!(lock(&pool.jobs).clients < THREADS.clients);
        for _ in 0..THREADS.per_payer + 3 + 100 {
            go.send(()).unwrap();
        }
        await_all(THREADS.per_payer + 3 + 100);
        while !lock(&pool.jobs).running.is_empty() {
            std::thread::yield_now();
        }
        let jobs = lock(&pool.jobs);
        assert!(jobs.running.is_empty() && jobs.waiting.is_empty() && jobs.turn.is_empty());
    }

    #[test]
    fn clients_that_hold_their_threads_leave_some_to_others_and_root_is_first() {
        let mut jobs = Jobs::default();
        for payer in 1..=14 {
            for _ in 0..8 {
                if jobs.may_run(payer) {
                    jobs.begin(payer);
                }
            }
        }
        assert_eq!((jobs.running[&1], jobs.running[&13]), (8, 8));
        assert!(jobs.may_run(100), "{:?}", jobs.running);
        for payer in [7, 100, 0] {
            assert!(jobs.wait(payer, Waiting { opens: None, job: Box::new(|| ()) }));
        }
        assert_eq!(jobs.end(1).map(|(payer, _)| payer), Some(0));
        assert_eq!(jobs.end(0).map(|(payer, _)| payer), Some(100));
        assert!(jobs.end(3).is_none(), "payer 7 has all that it may have");
    }

    #[test]
    fn forgotten_jobs_are_dropped_and_waiting_jobs_are_limited() {
        let (ours, theirs) = sockets();
        let pool = Arc::new(Pool::default());
        let its = Arc::clone(&pool);
        std::thread::spawn(move || serve_with(theirs, &its));
        // The payer's threads are all in use, until the test ends.
        let (go, gone) = channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        for _ in 0..THREADS.per_payer {
            let gone = Arc::clone(&gone);
            let held: Job = Box::new(move || assert!(lock(&gone).recv().is_err()));
            assert!(pool.run(7, None, held));
        }
        let thread = std::process::id();
        let order = |order: Order| assert!(send(&ours, &packet(&order), SendFlags::NOSIGNAL).is_ok());
        let look = |id: u64| {
            let text = super::super::Text::None;
            order(Order::Look {
                id,
                look: Look { thread, payer: 7, number: 0, known: 0, structure: 0, text },
            });
        };
        // The reports so far.
        let reports = || {
            order(Order::Ping);
            let (mut packet, mut all) = (vec![0; PACKET_MAX], Vec::new());
            loop {
                let (length, _) = recv(&ours, &mut packet[..], RecvFlags::empty()).unwrap();
                match Report::read(&packet[..length]).unwrap() {
                    Report::Pong => return all,
                    report => all.push(report),
                }
            }
        };
        for id in 1000..5000 {
            look(id);
            order(Order::Forget { id });
        }
        assert_eq!(reports(), [], "nothing waits");
        let most = 10_000 + WAITING_PER_PAYER as u64;
        (10_000..most).for_each(look);
        assert_eq!(reports(), []);
        (most..most + 10).for_each(look);
        let refused: Vec<_> =
            (most..most + 10).map(|id| Report::Looked { id, seen: Err(Errno::NOMEM) }).collect();
        assert_eq!(reports(), refused);
        for id in 10_000..most {
            order(Order::Forget { id });
        }
        assert_eq!(reports(), []);
        assert!(lock(&pool.jobs).waiting.is_empty());
        drop(go);
    }
}
