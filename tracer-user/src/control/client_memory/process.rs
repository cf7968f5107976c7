//! The process that reaches clients' memory: takes orders, and does each in a thread of its own.
//!
//! A thread may wait in a client's memory as long as the client pleases, even while it opens it. So nothing but the reading of orders
//! is done by the first thread, and the others are few for each uid: a client keeps itself, and those of its uid, from being served.
//! The process ends when the daemon's side of the socket is closed, whatever its threads wait for.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use super::{
    message::{Look, Op, Order, PACKET_MAX, Report},
    space::Space,
};

/// Threads that may be in memory of one uid's clients, and of all; the last ones are uid 0's alone.
const THREADS_PER_UID: usize = 8;
const THREADS: usize = 128;
const THREADS_OF_ROOT: usize = 16;
/// How long a thread without anything to do stays.
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of a thread's stack.
const STACK: usize = 128 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Job = Box<dyn FnOnce() + Send>;

/// Jobs and who does them.
#[derive(Default)]
struct Jobs {
    /// Jobs of a uid that has as many threads as it may have.
    waiting: HashMap<u32, VecDeque<Job>>,
    /// Uids with such jobs, who is next first.
    turn: VecDeque<u32>,
    running: HashMap<u32, usize>,
    total: usize,
    /// Jobs that threads without anything to do are to take.
    ready: VecDeque<(u32, Job)>,
    idle: usize,
}

impl Jobs {
    fn may_run(&self, uid: u32) -> bool {
        let own = self.running.get(&uid).copied().unwrap_or(0);
        if uid == 0 {
            self.total < THREADS
        } else {
            own < THREADS_PER_UID && self.total < THREADS - THREADS_OF_ROOT
        }
    }

    fn begin(&mut self, uid: u32) {
        *self.running.entry(uid).or_default() += 1;
        self.total += 1;
    }

    /// Ends a job of a uid, and gives what may be done next.
    fn end(&mut self, uid: u32) -> Option<(u32, Job)> {
        if let Some(own) = self.running.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                self.running.remove(&uid);
            }
        }
        self.total -= 1;
        let place = self.turn.iter().position(|uid| self.may_run(*uid))?;
        let next = self.turn.remove(place)?;
        let jobs = self.waiting.get_mut(&next)?;
        let job = jobs.pop_front()?;
        if jobs.is_empty() {
            self.waiting.remove(&next);
        } else {
            self.turn.push_back(next);
        }
        self.begin(next);
        Some((next, job))
    }
}

#[derive(Default)]
struct Pool {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

impl Pool {
    /// Does a job as soon as its uid may have one more thread.
    fn run(self: &Arc<Self>, uid: u32, job: Job) {
        let mut jobs = lock(&self.jobs);
        if !jobs.may_run(uid) {
            let own = jobs.waiting.entry(uid).or_default();
            own.push_back(job);
            if own.len() == 1 {
                jobs.turn.push_back(uid);
            }
            return;
        }
        jobs.begin(uid);
        jobs.ready.push_back((uid, job));
        if jobs.ready.len() <= jobs.idle {
            self.more.notify_one();
            return;
        }
        drop(jobs);
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("client".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || pool.work()) {
            // Some thread takes it once it has done its own.
            tracing::warn!("no thread for a client's memory: {error}");
        }
    }

    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            let Some((mut uid, mut job)) = jobs.ready.pop_front() else {
                jobs.idle += 1;
                let (again, waited) =
                    self.more.wait_timeout(jobs, IDLE).unwrap_or_else(PoisonError::into_inner);
                jobs = again;
                jobs.idle -= 1;
                if waited.timed_out() && jobs.ready.is_empty() {
                    return;
                }
                continue;
            };
            loop {
                drop(jobs);
                job();
                jobs = lock(&self.jobs);
                match jobs.end(uid) {
                    Some(next) => (uid, job) = next,
                    None => break,
                }
            }
        }
    }
}

/// Writes that are being done, each with whether it is not wanted any more.
type Batch = Arc<Vec<(Op, AtomicBool)>>;

struct State {
    socket: OwnedFd,
    spaces: Mutex<HashMap<u64, Arc<Space>>>,
    /// Address spaces that were forgotten before they were open.
    opening: Mutex<HashMap<u64, bool>>,
    batches: Mutex<HashMap<u64, Batch>>,
}

impl State {
    fn report(&self, report: &Report) {
        loop {
            match send(&self.socket, &report.packet(), SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                // The daemon is gone; so is this process, soon.
                _ => return,
            }
        }
    }

    /// Opens a thread's address space and keeps it; none where it was forgotten meanwhile.
    fn open(&self, id: u64, thread: u32) -> Result<Option<Arc<Space>>, Errno> {
        if lock(&self.opening).get(&id) != Some(&false) {
            lock(&self.opening).remove(&id);
            return Ok(None);
        }
        let opened = Space::open(thread).map(Arc::new);
        let mut opening = lock(&self.opening);
        let forgotten = opening.remove(&id) != Some(false);
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
            Err(errno) => tracing::debug!("a request of task {} cannot be looked at: {errno}", look.thread),
        }
        self.report(&Report::Looked { id, seen });
    }

    fn write(&self, batch: u64, ops: &Batch) {
        let mut done = Vec::with_capacity(ops.len());
        for (op, cancelled) in ops.iter() {
            let space = lock(&self.spaces).get(&op.space).cloned();
            done.push(match space {
                Some(_) if cancelled.load(Ordering::Acquire) => Err(Errno::CANCELED),
                Some(space) => space.run(op, cancelled),
                None => Err(Errno::SRCH),
            });
        }
        lock(&self.batches).remove(&batch);
        self.report(&Report::Written { batch, done });
    }

    fn forget(&self, id: u64) {
        if let Some(opening) = lock(&self.opening).get_mut(&id) {
            *opening = true;
        }
        if let Some(space) = lock(&self.spaces).remove(&id) {
            space.forgotten.store(true, Ordering::Release);
        }
    }
}

/// Takes orders until the other side of the socket is closed.
///
/// # Errors
/// When this is no socket.
pub(super) fn serve(socket: OwnedFd) -> Result<(), Errno> {
    let state = Arc::new(State {
        socket,
        spaces: Mutex::default(),
        opening: Mutex::default(),
        batches: Mutex::default(),
    });
    let pool = Arc::new(Pool::default());
    let mut packet = vec![0; PACKET_MAX];
    loop {
        let length = match recv(&state.socket, &mut packet[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) | Ok((0, _)) => return Ok(()),
            length => length?.0,
        };
        let Some(order) = packet.get(..length).and_then(Order::read) else {
            tracing::warn!("an order of {length} bytes that is none");
            continue;
        };
        let its = Arc::clone(&state);
        match order {
            Order::Look { id, look } => {
                lock(&state.opening).insert(id, false);
                pool.run(look.uid, Box::new(move || its.look(id, &look)));
            }
            Order::Open { id, uid, thread } => {
                lock(&state.opening).insert(id, false);
                let open = move || {
                    let identity = match its.open(id, thread) {
                        Ok(Some(space)) => Ok(space.identity().to_vec()),
                        Ok(None) => Err(Errno::CANCELED),
                        Err(errno) => Err(errno),
                    };
                    its.report(&Report::Opened { id, identity });
                };
                pool.run(uid, Box::new(open));
            }
            Order::Write { batch, uid, ops } => {
                let ops: Batch = Arc::new(ops.into_iter().map(|op| (op, AtomicBool::new(false))).collect());
                lock(&state.batches).insert(batch, Arc::clone(&ops));
                pool.run(uid, Box::new(move || its.write(batch, &ops)));
            }
            Order::Cancel { batch, key } => {
                let ops = lock(&state.batches).get(&batch).cloned();
                for (op, cancelled) in ops.iter().flat_map(|ops| ops.iter()) {
                    if op.key == key {
                        cancelled.store(true, Ordering::Release);
                    }
                }
            }
            Order::Forget { id } => state.forget(id),
            Order::Ping => state.report(&Report::Pong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_has_so_many_threads_and_root_its_own() {
        let pool = Arc::new(Pool::default());
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        let done = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let job = |uid: u32, waits: bool| -> Job {
            let (gone, done) = (Arc::clone(&gone), Arc::clone(&done));
            Box::new(move || {
                if waits {
                    // Held by one of them at a time; all others wait for it.
                    let _ = lock(&gone).recv();
                }
                lock(&done.0).push(uid);
                done.1.notify_all();
            })
        };
        let await_all = |count: usize| {
            let mut all = lock(&done.0);
            while all.len() < count {
                let (again, waited) = done.1.wait_timeout(all, Duration::from_secs(60)).unwrap();
                assert!(!waited.timed_out());
                all = again;
            }
            std::mem::take(&mut *all)
        };
        for _ in 0..THREADS_PER_UID + 3 {
            pool.run(7, job(7, true));
        }
        {
            let jobs = lock(&pool.jobs);
            assert_eq!((jobs.running[&7], jobs.waiting[&7].len()), (THREADS_PER_UID, 3));
        }
        // Others and root go on.
        pool.run(8, job(8, false));
        pool.run(0, job(0, false));
        let mut others = await_all(2);
        others.sort_unstable();
        assert_eq!(others, [0, 8]);
        // All uids together leave root its threads.
        for uid in 100..200 {
            pool.run(uid, job(uid, true));
        }
        for _ in 0..THREADS_OF_ROOT / 2 {
            pool.run(0, job(0, false));
        }
        await_all(THREADS_OF_ROOT / 2);
        assert!(lock(&pool.jobs).total <= THREADS - THREADS_OF_ROOT);
        for _ in 0..THREADS_PER_UID + 3 + 100 {
            go.send(()).unwrap();
        }
        await_all(THREADS_PER_UID + 3 + 100);
        while lock(&pool.jobs).total > 0 {
            std::thread::yield_now();
        }
        let jobs = lock(&pool.jobs);
        assert!(jobs.running.is_empty() && jobs.waiting.is_empty() && jobs.turn.is_empty());
    }
}
