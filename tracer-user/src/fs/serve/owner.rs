//! The thread that owns the tree, and its queue of jobs.
//!
//! Each request of the kernel becomes a job, and the thread that received it continues at once. Jobs of one payer run
//! in the order of their arrival, except that lookups of names have a queue of their own, and so have requests for
//! attributes and lists: the kernel locks a directory, or lets others that look for the same name wait, until a lookup is
//! answered. Jobs of different queues run in turn, so that a job waits for at most three jobs of each other payer. Every
//! second turn is for root and the daemon itself, so that their jobs wait for one job of another payer only. Closing a
//! file comes first: FUSE reports a close asynchronously, and the next request of the same client may require that the
//! file is closed. A long operation gives turns to other jobs ([`Scheduler::serve_with`]), which only look at the engine
//! or take records out.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::texts::TextThreads;
use crate::{
    engine::{Cooperative, Engine},
    fs::{
        threads::{lock, spawn},
        tree::{dispatch::Tree, file_table::FileTable, open::Open},
    },
};

/// How long the jobs of one turn may take together.
const TURN: Duration = Duration::from_millis(10);
/// Maximum number of a payer's jobs that are examined to find one that can run.
const LOOKED_AT: usize = 256;
/// The payer of the daemon's own jobs, which no client has.
pub(crate) const OWN: u32 = u32::MAX;

pub(crate) type BorrowedTree<'a> = Tree<&'a mut Engine>;
/// A tree that cannot change the engine.
pub(crate) type View<'a> = Tree<&'a Engine>;

enum Act {
    Look(Box<dyn FnOnce(&View<'_>) + Send>),
    Change(Box<dyn FnOnce(&mut BorrowedTree<'_>) + Send>),
}

impl Act {
    fn run(self, engine: &mut Engine, files: &FileTable) {
        match self {
            Self::Look(act) => act(&Tree::over(&*engine, files)),
            Self::Change(act) => act(&mut Tree::over(engine, files)),
        }
    }
}

/// When a job can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Between operations. The job may change anything.
    Alone,
    /// Between operations and in turns. The job takes records out, or changes nothing ([`View`]).
    Any,
    /// As [`When::Any`], for a job that looks up a name. It waits only for such jobs of its payer, and sees the events of
    /// loaded modules.
    Lookup,
    /// As [`When::Any`], for a job that reads attributes or lists a directory. It waits only for such jobs of its payer.
    Attributes,
    /// As [`When::Any`], for a request to an open file; in turns only if the file serves no other request and does
    /// not take long.
    File(u64),
    /// Between operations, before all queued jobs. The engine ends.
    Ending,
    /// Before all jobs that do not close files; in turns only if closing the file has no other effect.
    Closing(u64),
}

struct Job {
    name: &'static str,
    when: When,
    act: Act,
}

impl Job {
    /// Whether the job can run between operations.
    fn can_run(&self, files: &FileTable, has_thread: bool) -> bool {
        match self.when {
            When::File(handle) => files.can_serve(handle, has_thread),
            // A text thread uses a busy file, so its close waits.
            When::Closing(handle) => !files.is_busy(handle),
            When::Alone | When::Any | When::Lookup | When::Attributes | When::Ending => true,
        }
    }

    fn can_have_turn(&self, files: &FileTable, has_thread: bool, lookups_wait: bool) -> bool {
        match self.when {
            When::Alone | When::Ending => false,
            When::Any | When::Lookup | When::Attributes => !lookups_wait,
            When::File(handle) => files.can_have_turn(handle, has_thread),
            When::Closing(handle) => files.closes_plainly(handle),
        }
    }
}

/// The jobs that have a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LaneKind {
    Lookups,
    Attributes,
    Others,
}

/// A queue of a payer.
type Lane = (u32, LaneKind);

/// Queued jobs that run in turn.
pub(super) struct Turns<T> {
    jobs: HashMap<Lane, VecDeque<T>>,
    /// The lanes of root and the daemon that have jobs, and those of others; the next one is first.
    roots: VecDeque<Lane>,
    others: VecDeque<Lane>,
    /// Whether the last job was one of root or the daemon.
    was_root: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { jobs: HashMap::new(), roots: VecDeque::new(), others: VecDeque::new(), was_root: false }
    }
}

impl<T> Turns<T> {
    pub(super) fn push(&mut self, lane: Lane, job: T) {
        let jobs = self.jobs.entry(lane).or_default();
        if jobs.is_empty() {
            let lanes = if matches!(lane.0, 0 | OWN) { &mut self.roots } else { &mut self.others };
            lanes.push_back(lane);
        }
        jobs.push_back(job);
    }

    /// Removes and returns the next job for which `wanted` is true. Every second one is root's or the daemon's.
    pub(super) fn take(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let Self { jobs, roots, others, was_root } = self;
        let order =
            if *was_root { [(others, false), (roots, true)] } else { [(roots, true), (others, false)] };
        for (lanes, is_root) in order {
            if let Some(job) = take_of(lanes, jobs, &wanted) {
                *was_root = is_root;
                return Some(job);
            }
        }
        None
    }
}

#[derive(Default)]
struct Queue {
    closing: VecDeque<Job>,
    turns: Turns<Job>,
    ended: bool,
}

impl Queue {
    fn push(&mut self, payer: u32, job: Job) {
        let kind = match job.when {
            When::Ending => return self.closing.push_front(job),
            When::Closing(_) => return self.closing.push_back(job),
            When::Lookup => LaneKind::Lookups,
            When::Attributes => LaneKind::Attributes,
            When::Alone | When::Any | When::File(_) => LaneKind::Others,
        };
        self.turns.push((payer, kind), job);
    }

    fn take(&mut self, wanted: impl Fn(&Job) -> bool) -> Option<Job> {
        if let Some(index) = self.closing.iter().position(&wanted) {
            return self.closing.remove(index);
        }
        self.turns.take(wanted)
    }
}

/// Removes and returns the next job of these lanes for which `wanted` is true.
fn take_of<T>(
    lanes: &mut VecDeque<Lane>,
    all: &mut HashMap<Lane, VecDeque<T>>,
    wanted: impl Fn(&T) -> bool,
) -> Option<T> {
    for _ in 0..lanes.len() {
        let lane = lanes.pop_front()?;
        let jobs = all.entry(lane).or_default();
        let job = jobs.iter().take(LOOKED_AT).position(&wanted).and_then(|index| jobs.remove(index));
        if jobs.is_empty() {
            all.remove(&lane);
        } else {
            lanes.push_back(lane);
        }
        if job.is_some() {
            return job;
        }
    }
    None
}

/// The tree and the queue of jobs.
pub(crate) struct Jobs {
    queued: Mutex<Queue>,
    wakes: Condvar,
    tree: Mutex<Tree>,
    files: FileTable,
    texts: TextThreads,
    stop: Arc<AtomicBool>,
}

impl Jobs {
    /// Creates the queue of a tree. No job runs before [`Jobs::start`].
    pub(crate) fn new(tree: Tree) -> Arc<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let jobs = Arc::new(Self {
            queued: Mutex::default(),
            wakes: Condvar::new(),
            files: tree.files().clone(),
            texts: TextThreads::default(),
            tree: Mutex::new(tree),
            stop: Arc::clone(&stop),
        });
        let weak = Arc::downgrade(&jobs);
        let others = move |engine: &mut Engine, wait: Duration| {
            if let Some(jobs) = weak.upgrade() {
                jobs.take_turns(engine, wait);
            }
        };
        lock(&jobs.tree).engine().scheduler_mut().serve_with(Box::new(others), stop);
        jobs
    }

    pub(crate) fn files(&self) -> &FileTable {
        &self.files
    }

    /// Lets a thread make text of an open file that was taken out of the table. `make` gets the file and returns the
    /// function that answers.
    pub(crate) fn make_text<A: FnOnce()>(
        self: &Arc<Self>,
        handle: u64,
        mut open: Open,
        make: impl FnOnce(&mut Open) -> A + Send + 'static,
    ) {
        let jobs = Arc::clone(self);
        self.texts.run(move || {
            let answer = make(&mut open);
            jobs.files.put_back(handle, open);
            jobs.texts.done();
            // The owner holds this lock while it looks for a job that can run, so it does not miss the wake-up.
            drop(lock(&jobs.queued));
            jobs.wakes.notify_all();
            answer();
        });
    }

    /// Starts the thread that owns the tree, and those that make texts.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        self.texts.start()?;
        let jobs = Arc::clone(self);
        spawn("owner", move || jobs.run())
    }

    /// Queues a job for a payer. `name` appears in the log of long steps.
    pub(crate) fn post(
        &self,
        payer: u32,
        name: &'static str,
        when: When,
        act: impl FnOnce(&mut BorrowedTree<'_>) + Send + 'static,
    ) {
        self.queue(payer, Job { name, when, act: Act::Change(Box::new(act)) });
    }

    /// Queues a job for a payer that changes nothing.
    pub(crate) fn look(
        &self,
        payer: u32,
        name: &'static str,
        when: When,
        act: impl FnOnce(&View<'_>) + Send + 'static,
    ) {
        self.queue(payer, Job { name, when, act: Act::Look(Box::new(act)) });
    }

    fn queue(&self, payer: u32, job: Job) {
        let mut queue = lock(&self.queued);
        // After the end, a job is dropped. Its reply is dropped too and returns an error.
        if !queue.ended {
            queue.push(payer, job);
            drop(queue);
            self.wakes.notify_all();
        }
    }

    /// Makes long operations give up, the running one and those of queued jobs.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Drops all queued jobs. The thread ends after its current job.
    pub(crate) fn end(&self) {
        self.stop();
        let dropped = {
            let mut queue = lock(&self.queued);
            queue.ended = true;
            (std::mem::take(&mut queue.closing), std::mem::take(&mut queue.turns))
        };
        self.wakes.notify_all();
        self.texts.end();
        // The queue is not locked here: a dropped reply answers its caller.
        drop(dropped);
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let mut tree = lock(&self.tree);
            tree.engine().begin_step(job.name);
            if job.when == When::Lookup {
                // A lookup that has a turn within another operation finds the events that are known.
                tree.engine().learn_modules();
            }
            job.act.run(tree.engine(), &self.files);
            if job.when == When::Alone {
                tree.engine().effects.stale_marks();
            }
            tree.engine().end_step();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queued);
        while !queue.ended {
            let has_thread = self.texts.is_free();
            if let Some(job) = queue.take(|job| job.can_run(&self.files, has_thread)) {
                return Some(job);
            }
            queue = self.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Runs jobs while an operation has the engine borrowed. Waits for a job at most for `wait`.
    fn take_turns(&self, engine: &mut Engine, wait: Duration) {
        let since = Instant::now();
        let lookups_wait = engine.scheduler().lookups_wait();
        let mut waited = wait.is_zero();
        while since.elapsed() < TURN {
            let mut queue = lock(&self.queued);
            let can_run = |job: &Job| job.can_have_turn(&self.files, self.texts.is_free(), lookups_wait);
            let mut job = queue.take(can_run);
            if job.is_none() && !waited {
                waited = true;
                queue = self.wakes.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                job = queue.take(can_run);
            }
            drop(queue);
            let Some(Job { name, act, .. }) = job else { return };
            engine.begin_step(name);
            act.run(engine, &self.files);
            engine.end_step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(jobs: &[(u32, &'static str, When)]) -> Queue {
        let mut queue = Queue::default();
        for (payer, name, when) in jobs {
            queue.push(*payer, Job { name, when: *when, act: Act::Look(Box::new(|_| {})) });
        }
        queue
    }

    fn names(queue: &mut Queue, wanted: impl Fn(&Job) -> bool) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.take(&wanted).map(|job| job.name)).collect()
    }

    #[test]
    fn payers_take_turns_and_closing_comes_first() {
        let mut queue = queue(&[
            (7, "a", When::Any),
            (7, "b", When::Alone),
            (7, "c", When::Any),
            (0, "root", When::Alone),
            (9, "other", When::Any),
            (7, "closing", When::Closing(3)),
        ]);
        assert_eq!(names(&mut queue, |_| true), ["closing", "root", "a", "other", "b", "c"]);
        let Turns { jobs, roots, others, .. } = queue.turns;
        assert!(roots.is_empty() && others.is_empty() && jobs.is_empty());
    }

    #[test]
    fn root_waits_for_one_job_of_others_and_so_do_others() {
        let mut jobs: Vec<_> = (1..=100).map(|payer| (payer, "read", When::File(1))).collect();
        jobs.extend([(0, "root", When::Any); 4]);
        jobs.push((OWN, "own", When::Any));
        let order = names(&mut queue(&jobs), |_| true);
        let first = ["root", "read", "own", "read", "root", "read", "root", "read", "root", "read"];
        assert_eq!((&order[..10], order.len()), (&first[..], 105));
    }

    #[test]
    fn a_lookup_does_not_wait_for_reads() {
        let mut jobs = vec![(7, "read", When::File(1)); 300];
        jobs.extend([(7, "list", When::Attributes); 300]);
        jobs.extend([(7, "lookup", When::Lookup), (7, "next", When::Lookup), (0, "root", When::Lookup)]);
        let order = names(&mut queue(&jobs), |_| true);
        assert_eq!(order[..8], ["root", "read", "list", "lookup", "read", "list", "next", "read"]);
    }

    #[test]
    fn in_a_turn_only_jobs_that_look_run() {
        let mut queue = queue(&[(7, "set", When::Alone), (7, "look", When::Any), (0, "read", When::File(1))]);
        let looks = |job: &Job| job.when != When::Alone;
        assert_eq!(names(&mut queue, looks), ["read", "look"]);
        assert_eq!(names(&mut queue, |_| true), ["set"]);
    }
}
