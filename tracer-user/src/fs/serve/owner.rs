//! The thread that owns the tree, and the queue of what it is asked to do.
//!
//! A request of the kernel's becomes a job; the thread that took it goes on at once. Jobs of one uid are done in the order in
//! which they came, those of several in turn, so that nobody waits for more than one job of each. Closing a file comes first:
//! the kernel tells of it behind the back of whoever closed it, who may next ask for something that only works once the file is
//! closed. A long operation lets others have a turn ([`Mirror::share_with`]): jobs that only look, or take records out.
//!
//! Other threads borrow the tree by [`Jobs::lend`] and wait for it; the thread that takes the kernel's requests must not.

use std::{
    collections::{HashMap, VecDeque},
    ops::{Deref, DerefMut},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    engine::instance::Mirror,
    fs::tree::{dispatch::Tree, file_table::FileTable},
};

/// How long others' jobs in one turn may take together.
const TURN: Duration = Duration::from_millis(10);
/// Jobs of a uid that are looked at in a turn for one that can be done.
const LOOKED_AT: usize = 256;
/// The uid under which the daemon's own jobs are queued: nobody's.
pub(in crate::fs) const OWN: u32 = u32::MAX;

/// A tree whose mirror is borrowed.
pub(in crate::fs) type View<'a> = Tree<&'a mut Mirror>;
type Act = Box<dyn FnOnce(&mut View<'_>) + Send>;

/// When a job can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum When {
    /// Between operations: it may change anything.
    Alone,
    /// In turns too: it only looks, or takes records out.
    Any,
    /// The same for one open file, while no other request to it is being served.
    File(u64),
    /// Before anything else that is queued, between operations: everything ends.
    Ending,
    /// It closes this file: before anything else, and in turns if nothing else comes of it.
    Closing(u64),
}

enum Work {
    Act(Act),
    /// The tree is another thread's until that one gives it back.
    Lend(SyncSender<()>, Receiver<()>),
}

struct Job {
    name: &'static str,
    when: When,
    work: Work,
}

impl Job {
    fn can_have_turn(&self, files: &FileTable, learns_events: bool) -> bool {
        match self.when {
            When::Alone | When::Ending => false,
            When::Any => !learns_events,
            When::File(handle) => files.can_have_turn(handle),
            When::Closing(handle) => files.closes_plainly(handle),
        }
    }
}

#[derive(Default)]
struct Queue {
    closing: VecDeque<Job>,
    jobs: HashMap<u32, VecDeque<Job>>,
    /// Uids that have jobs, the next one first.
    uids: VecDeque<u32>,
    ended: bool,
}

impl Queue {
    fn push(&mut self, uid: u32, job: Job) {
        match job.when {
            When::Ending => return self.closing.push_front(job),
            When::Closing(_) => return self.closing.push_back(job),
            _ => {}
        }
        let jobs = self.jobs.entry(uid).or_default();
        if jobs.is_empty() {
            self.uids.push_back(uid);
        }
        jobs.push_back(job);
    }

    /// The next job of those that are wanted.
    fn take(&mut self, wanted: impl Fn(&Job) -> bool) -> Option<Job> {
        if let Some(index) = self.closing.iter().position(&wanted) {
            return self.closing.remove(index);
        }
        for _ in 0..self.uids.len() {
            let uid = self.uids.pop_front()?;
            let jobs = self.jobs.entry(uid).or_default();
            let job = jobs.iter().take(LOOKED_AT).position(&wanted).and_then(|index| jobs.remove(index));
            if jobs.is_empty() {
                self.jobs.remove(&uid);
            } else {
                self.uids.push_back(uid);
            }
            if job.is_some() {
                return job;
            }
        }
        None
    }
}

/// The tree and what is to be done with it.
pub(in crate::fs) struct Jobs {
    queue: Mutex<Queue>,
    wakes: Condvar,
    tree: Mutex<Tree>,
    files: FileTable,
    stop: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// A queue for a tree; nothing is done before [`Jobs::start`].
    pub(in crate::fs) fn new(tree: Tree) -> Arc<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let jobs = Arc::new(Self {
            queue: Mutex::default(),
            wakes: Condvar::new(),
            files: tree.files().clone(),
            tree: Mutex::new(tree),
            stop: Arc::clone(&stop),
        });
        let weak = Arc::downgrade(&jobs);
        let others = move |mirror: &mut Mirror, wait: Duration| {
            if let Some(jobs) = weak.upgrade() {
                jobs.take_turns(mirror, wait);
            }
        };
        lock(&jobs.tree).mirror().share_with(Box::new(others), stop);
        jobs
    }

    /// The tree's open files.
    pub(in crate::fs) fn files(&self) -> &FileTable {
        &self.files
    }

    /// Starts the thread that owns the tree.
    pub(in crate::fs) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let jobs = Arc::clone(self);
        std::thread::Builder::new().name("owner".to_owned()).spawn(move || jobs.run())
    }

    /// Has something done for a uid.
    pub(in crate::fs) fn post(
        &self,
        uid: u32,
        name: &'static str,
        when: When,
        act: impl FnOnce(&mut View<'_>) + Send + 'static,
    ) {
        self.push(uid, Job { name, when, work: Work::Act(Box::new(act)) });
    }

    fn push(&self, uid: u32, job: Job) {
        let mut queue = lock(&self.queue);
        // What is asked for after the end is dropped, and so answered with an error.
        if !queue.ended {
            queue.push(uid, job);
            drop(queue);
            self.wakes.notify_all();
        }
    }

    /// Borrows the tree, between operations. Not for the thread that takes requests, and not within a job.
    pub(in crate::fs) fn lend(&self) -> Lent<'_> {
        let (grant, granted) = sync_channel(1);
        let (back, is_back) = sync_channel(1);
        self.push(OWN, Job { name: "lent", when: When::Alone, work: Work::Lend(grant, is_back) });
        // An error means that the owner ended, and nobody else has the tree.
        let _ = granted.recv();
        Lent { tree: lock(&self.tree), _back: GivesBack(back) }
    }

    /// Ends long operations, and whatever is still queued.
    pub(in crate::fs) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Drops what is queued; the thread ends with the job that it is at.
    pub(in crate::fs) fn end(&self) {
        self.stop();
        let dropped = {
            let mut queue = lock(&self.queue);
            queue.ended = true;
            (std::mem::take(&mut queue.closing), std::mem::take(&mut queue.jobs))
        };
        self.wakes.notify_all();
        // Outside of the lock: what is dropped answers its callers.
        drop(dropped);
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            match job.work {
                Work::Act(act) => {
                    let mut tree = lock(&self.tree);
                    tree.mirror().begin_step(job.name);
                    act(&mut tree.view());
                    if job.when == When::Alone {
                        tree.mirror().stale_marks();
                    }
                    tree.mirror().end_step();
                }
                Work::Lend(grant, is_back) => {
                    if grant.send(()).is_ok() {
                        let _ = is_back.recv();
                    }
                    let mut tree = lock(&self.tree);
                    tree.mirror().stale_marks();
                    tree.mirror().begin_step("marks");
                    tree.mirror().end_step();
                }
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.take(|_| true) {
                return Some(job);
            }
            queue = self.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does what can be done while an operation has the mirror borrowed.
    fn take_turns(&self, mirror: &mut Mirror, wait: Duration) {
        let since = Instant::now();
        let learns_events = mirror.learns_events();
        let mut waited = wait.is_zero();
        while since.elapsed() < TURN {
            let mut queue = lock(&self.queue);
            let mut job = queue.take(|job| job.can_have_turn(&self.files, learns_events));
            if job.is_none() && !waited {
                waited = true;
                queue = self.wakes.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                job = queue.take(|job| job.can_have_turn(&self.files, learns_events));
            }
            drop(queue);
            let Some(Job { name, work: Work::Act(act), .. }) = job else { return };
            mirror.begin_step(name);
            act(&mut View::over(mirror, &self.files));
            mirror.end_step();
        }
    }
}

/// The tree in another thread's hands. It is unlocked before it is given back.
pub(in crate::fs) struct Lent<'a> {
    tree: MutexGuard<'a, Tree>,
    _back: GivesBack,
}

struct GivesBack(SyncSender<()>);

impl Drop for GivesBack {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Deref for Lent<'_> {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(jobs: &[(u32, &'static str, When)]) -> Queue {
        let mut queue = Queue::default();
        for (uid, name, when) in jobs {
            queue.push(*uid, Job { name, when: *when, work: Work::Act(Box::new(|_| {})) });
        }
        queue
    }

    fn names(queue: &mut Queue, wanted: impl Fn(&Job) -> bool) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.take(&wanted).map(|job| job.name)).collect()
    }

    #[test]
    fn uids_take_turns_and_closing_comes_first() {
        let mut queue = queue(&[
            (7, "a", When::Any),
            (7, "b", When::Alone),
            (7, "c", When::Any),
            (0, "root", When::Alone),
            (9, "other", When::Any),
            (7, "closing", When::Closing(3)),
        ]);
        assert_eq!(names(&mut queue, |_| true), ["closing", "a", "root", "other", "b", "c"]);
        assert!(queue.uids.is_empty() && queue.jobs.is_empty());
    }

    #[test]
    fn in_a_turn_only_what_looks_is_done() {
        let mut queue = queue(&[(7, "set", When::Alone), (7, "look", When::Any), (0, "read", When::File(1))]);
        let looks = |job: &Job| job.when != When::Alone;
        assert_eq!(names(&mut queue, looks), ["look", "read"]);
        assert_eq!(names(&mut queue, |_| true), ["set"]);
    }
}
