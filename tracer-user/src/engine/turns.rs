//! Turns of others during a long operation, and how long each step of an operation takes.
//!
//! The mirror has one owner at a time, and some operations take much longer than anybody should wait: turning all events of
//! a machine on takes half a second. Such an operation calls [`Engine::turn`] between its steps, where everything it has done
//! so far is consistent, or has a thread do what does not need the mirror ([`Engine::aside`]). Whoever owns the mirror says
//! what happens at these points ([`Engine::share_with`]): requests that only look at the mirror or take records out of it.
//! None of them makes, removes or changes events and instances, so that what an operation knew of these still holds after a
//! turn. A request that is served within a turn takes no turns itself.

use std::{
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::RecvTimeoutError,
    },
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{attach, engine::Engine};

/// How long an operation goes on before others have a turn.
const STEP: Duration = Duration::from_millis(5);
/// How long an operation waits for a thread before others have turns meanwhile.
const QUICK: Duration = Duration::from_millis(1);
/// How often it looks then whether the thread is done.
const PERIOD: Duration = Duration::from_micros(500);

/// How long an operation waits for what the kernel does to files, which may take it for ever.
pub(in crate::engine) const ASIDE: Duration = Duration::from_secs(2);
/// Threads that may be at it at once.
const THREADS: usize = 16;

/// A thread that counts among those.
struct Counted;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn begin() -> Option<Self> {
        let more = |running| (running < THREADS).then_some(running + 1);
        RUNNING.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Steps of this length are told of at debug level.
const LONG: Duration = Duration::from_millis(20);

/// Serves what can be served within a turn; waits this long where there is nothing.
pub type Others = Box<dyn FnMut(&mut Engine, Duration) + Send>;

/// The longest step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// Of what.
    pub name: &'static str,
    /// How long.
    pub took: Duration,
}

/// A step that goes on.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    since: Instant,
    /// The turn before it.
    from: &'static Location<'static>,
}

/// Who has turns, and how long steps took.
#[derive(Default)]
pub(in crate::engine) struct Turns {
    others: Option<Others>,
    stop: Arc<AtomicBool>,
    within: bool,
    /// Whether the events are about to change, so that only requests for open files have turns.
    pub(in crate::engine) learns_events: bool,
    step: Option<Step>,
    longest: Longest,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns")
            .field("step", &self.step)
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Says what others do in their turns. Once `stop` is set, long operations give up.
    pub fn share_with(&mut self, others: Others, stop: Arc<AtomicBool>) {
        self.turns.others = Some(others);
        self.turns.stop = stop;
    }

    /// Begins to measure a step.
    #[track_caller]
    pub fn begin_step(&mut self, name: &'static str) {
        self.turns.step = Some(Step { name, since: Instant::now(), from: Location::caller() });
    }

    /// Ends the step that was begun; what others see beside the mirror is as it is from now on.
    #[track_caller]
    pub fn end_step(&mut self) {
        self.publish_marks();
        let Some(Step { name, since, from }) = self.turns.step.take() else { return };
        let took = since.elapsed();
        if took > LONG {
            let to = Location::caller();
            tracing::debug!(name, ms = took.as_millis(), %from, %to, "long step");
        }
        if took > self.turns.longest.took {
            self.turns.longest = Longest { name, took };
        }
    }

    /// The longest step so far.
    pub fn longest_step(&self) -> Longest {
        self.turns.longest
    }

    /// Whether this is a turn within an operation, which may have changed something by half.
    pub fn is_within_turn(&self) -> bool {
        self.turns.within
    }

    /// Whether requests that look for files wait, because the events are about to change.
    pub fn learns_events(&self) -> bool {
        self.turns.learns_events
    }

    /// Whether long operations are to give up, as everything ends.
    pub(in crate::engine) fn is_stopping(&self) -> bool {
        self.turns.stop.load(Ordering::Acquire)
    }

    /// What says so, for threads.
    pub(in crate::engine) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.turns.stop)
    }

    /// Lets others have their turn, if this has gone on for some time.
    #[track_caller]
    pub(in crate::engine) fn turn(&mut self) {
        if self.turns.others.is_some() && self.turns.step.is_none_or(|step| step.since.elapsed() >= STEP) {
            self.turn_for(Duration::ZERO);
        }
    }

    /// The same where there is nothing to do for a moment; false where nobody else has turns.
    #[track_caller]
    pub(in crate::engine) fn wait_a_turn(&mut self) -> bool {
        let shared = self.turns.others.is_some();
        self.turn_for(PERIOD);
        shared
    }

    #[track_caller]
    fn turn_for(&mut self, wait: Duration) {
        let Some(mut others) = self.turns.others.take() else { return };
        let name = self.turns.step.map_or("", |step| step.name);
        self.end_step();
        self.turns.within = true;
        others(self, wait);
        self.turns.within = false;
        self.turns.others = Some(others);
        self.begin_step(name);
    }

    /// Has a thread do something that may take for ever, while others have turns. What takes too long, or is under way when everything
    /// ends, is left to the thread, which drops what comes of it.
    ///
    /// # Errors
    /// `ETIMEDOUT`, `EINTR`, and `EAGAIN` where so many threads were left that there is to be no other.
    #[track_caller]
    pub(in crate::engine) fn aside_for<T: Send + 'static>(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Errno> {
        let thread = Counted::begin().ok_or(Errno::AGAIN)?;
        let (give, given) = std::sync::mpsc::channel();
        let started = std::thread::Builder::new().name("aside".to_owned()).spawn(move || {
            let _ = give.send(work());
            drop(thread);
        });
        if let Err(error) = started {
            tracing::warn!("no thread: {error}");
            return Err(Errno::AGAIN);
        }
        let since = Instant::now();
        loop {
            match given.recv_timeout(PERIOD) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::IO),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_stopping() {
                return Err(Errno::INTR);
            }
            if since.elapsed() > limit {
                return Err(Errno::TIMEDOUT);
            }
            self.turn_for(Duration::ZERO);
        }
    }

    /// Lets others have turns until background threads closed what they got since then, for a while.
    #[track_caller]
    pub fn await_unlinked(&mut self, moment: attach::Moment) {
        let since = Instant::now();
        while !self.turns.within && !attach::closed_since(moment, PERIOD) && !self.is_stopping() {
            if since.elapsed() > ASIDE {
                tracing::warn!("probes do nothing and are not taken off yet");
                return;
            }
            self.turn_for(Duration::ZERO);
        }
    }

    /// Has a thread do something that does not need the mirror, while others have turns; where nobody has, does it at once.
    #[expect(
        clippy::unreachable,
        reason = "a scoped thread that took the work gave its result or ended this thread"
    )]
    #[track_caller]
    pub(in crate::engine) fn aside<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        if self.turns.others.is_none() {
            return work();
        }
        // Either a thread takes it, or, where none can be started, this one.
        let work = std::sync::Mutex::new(Some(work));
        let take = || work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let done = std::thread::scope(|scope| {
            let (ends, ended) = std::sync::mpsc::channel::<()>();
            let started = std::thread::Builder::new().name("aside".to_owned()).spawn_scoped(scope, || {
                let work = take();
                let done = work.map(|work| work());
                drop(ends);
                done
            });
            let worker = started.inspect_err(|error| tracing::warn!("no thread: {error}")).ok()?;
            let quick = ended.recv_timeout(QUICK) == Err(RecvTimeoutError::Disconnected);
            while !quick && !worker.is_finished() {
                self.turn_for(PERIOD);
            }
            match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        match (done, take()) {
            (Some(done), _) => done,
            (None, Some(work)) => work(),
            (None, None) => unreachable!("a thread that took the work gave its result or ended this one"),
        }
    }
}
