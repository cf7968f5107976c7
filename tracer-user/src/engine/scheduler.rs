//! Cooperation of long operations with other requests, and the time that each step of an operation takes.
//!
//! The engine has one owner at a time, and some operations take longer than a client should wait: enabling all events
//! of a machine takes half a second. Between its steps, where the state is consistent, such an operation calls
//! [`Cooperative::yield_to_readers`], or it moves work that does not need the engine to a thread
//! ([`Cooperative::run_off_thread`]). The owner's server ([`Scheduler::serve_with`]) runs other requests at these
//! points: requests that only read the engine or take records out of it. None of them adds, removes or changes events
//! and instances, so the operation's view of these stays valid. A request that is served this way does not yield
//! itself.

use std::{
    panic::Location,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::RecvTimeoutError,
    },
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use crate::{
    attach,
    engine::command::error::{CommandError, ErrorKind},
};

/// How long an operation runs before other requests are served.
const STEP: Duration = Duration::from_millis(5);
/// How long an operation waits for a thread before other requests are served meanwhile.
const QUICK: Duration = Duration::from_millis(1);
/// How often it then checks whether the thread has finished.
const PERIOD: Duration = Duration::from_micros(500);
/// Steps of this length are logged at debug level.
const LONG: Duration = Duration::from_millis(20);

/// Time limit for the kernel's work on files, which may never end.
pub(crate) const FILE_WORK_LIMIT: Duration = Duration::from_secs(2);
/// The permits of threads for such work.
static THREADS: Semaphore = Semaphore::const_new(16);

/// Serves the requests that can run now. If there is none, waits for one, for at most the given time.
type Server<E> = Box<dyn FnMut(&mut E, Duration) + Send>;

/// The longest step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestStep {
    /// Name of the operation.
    pub name: &'static str,
    /// Its duration.
    pub took: Duration,
}

/// A step that is running.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    since: Instant,
    /// Where it began.
    from: &'static Location<'static>,
}

/// Measures steps: the times between two points where other requests are served.
#[derive(Debug, Default)]
struct StepTimer {
    step: Option<Step>,
    longest: LongestStep,
}

impl StepTimer {
    #[track_caller]
    fn begin(&mut self, name: &'static str) {
        self.step = Some(Step { name, since: Instant::now(), from: Location::caller() });
    }

    #[track_caller]
    fn end(&mut self) {
        let Some(Step { name, since, from }) = self.step.take() else { return };
        let took = since.elapsed();
        if took > LONG {
            let to = Location::caller();
            tracing::debug!(name, ms = took.as_millis(), %from, %to, "long step");
        }
        if took > self.longest.took {
            self.longest = LongestStep { name, took };
        }
    }

    /// Whether the running step is long enough to serve others; true outside of steps.
    fn is_due(&self) -> bool {
        self.step.is_none_or(|step| step.since.elapsed() >= STEP)
    }
}

/// Decides when other requests are served during the operations of `E`.
pub struct Scheduler<E> {
    server: Option<Server<E>>,
    stop: Arc<AtomicBool>,
    serving: bool,
    lookups_wait: bool,
    timer: StepTimer,
}

impl<E> Default for Scheduler<E> {
    fn default() -> Self {
        Self {
            server: None,
            stop: Arc::default(),
            serving: false,
            lookups_wait: false,
            timer: StepTimer::default(),
        }
    }
}

impl<E> std::fmt::Debug for Scheduler<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("timer", &self.timer).finish_non_exhaustive()
    }
}

impl<E> Scheduler<E> {
    /// Sets the server of other requests. Once `stop` is set, long operations give up.
    pub fn serve_with(&mut self, server: Server<E>, stop: Arc<AtomicBool>) {
        self.server = Some(server);
        self.stop = stop;
    }

    /// Whether there are other requests to be served.
    pub(crate) fn is_shared(&self) -> bool {
        self.server.is_some() || self.serving
    }

    /// The longest step so far.
    pub fn longest_step(&self) -> LongestStep {
        self.timer.longest
    }

    /// Whether this request is served within another operation, whose changes may be incomplete.
    pub fn is_serving(&self) -> bool {
        self.serving
    }

    /// Whether requests that look for files wait, because the events are about to change.
    pub fn lookups_wait(&self) -> bool {
        self.lookups_wait
    }

    /// Lets requests that look for files wait, or serves them again.
    pub(crate) fn set_lookups_wait(&mut self, wait: bool) {
        self.lookups_wait = wait;
    }

    /// Whether long operations should give up because the owner ends.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The flag behind [`Scheduler::is_stopping`], for threads.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }
}

/// State with one owner, whose long operations serve other requests.
pub trait Cooperative: Sized {
    /// Its scheduler.
    fn scheduler(&self) -> &Scheduler<Self>;

    /// Its scheduler, to be changed.
    fn scheduler_mut(&mut self) -> &mut Scheduler<Self>;

    /// Publishes the state that other threads see without the owner. Called at the end of each step.
    fn publish_step(&mut self);

    /// Begins to measure a step.
    #[track_caller]
    fn begin_step(&mut self, name: &'static str) {
        self.scheduler_mut().timer.begin(name);
    }

    /// Ends the step.
    #[track_caller]
    fn end_step(&mut self) {
        self.publish_step();
        self.scheduler_mut().timer.end();
    }

    /// Serves other requests for at most `wait`, if there is a server.
    #[track_caller]
    fn serve_others(&mut self, wait: Duration) {
        let Some(mut server) = self.scheduler_mut().server.take() else { return };
        let name = self.scheduler().timer.step.map_or("", |step| step.name);
        self.end_step();
        self.scheduler_mut().serving = true;
        server(self, wait);
        self.scheduler_mut().serving = false;
        self.scheduler_mut().server = Some(server);
        self.begin_step(name);
    }

    /// Serves other requests if the running step has taken some time.
    #[track_caller]
    fn yield_to_readers(&mut self) {
        if self.scheduler().server.is_some() && self.scheduler().timer.is_due() {
            self.serve_others(Duration::ZERO);
        }
    }

    /// Serves other requests while the operation has nothing to do for a moment; false where there is no server.
    #[track_caller]
    fn wait_for_readers(&mut self) -> bool {
        let shared = self.scheduler().server.is_some();
        self.serve_others(PERIOD);
        shared
    }

    /// Runs work that may never end in a thread, and serves other requests meanwhile. If the work takes longer than
    /// `limit`, or the owner ends first, the thread continues alone and drops its result.
    ///
    /// # Errors
    /// `ETIMEDOUT`, `EINTR`, and `EAGAIN` if too many such threads exist.
    #[track_caller]
    fn run_off_thread_within<T: Send + 'static>(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        let permit = THREADS.try_acquire().map_err(|_| ErrorKind::Again)?;
        let (give, given) = std::sync::mpsc::channel();
        let started = std::thread::Builder::new().name("off-thread".to_owned()).spawn(move || {
            let _ = give.send(work());
            drop(permit);
        });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread: {error}");
            return Err(ErrorKind::Again.into());
        }
        let since = Instant::now();
        loop {
            match given.recv_timeout(PERIOD) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::Io.into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.scheduler().is_stopping() {
                return Err(ErrorKind::Interrupted.into());
            }
            if since.elapsed() > limit {
                return Err(ErrorKind::TimedOut.into());
            }
            self.serve_others(Duration::ZERO);
        }
    }

    /// Serves other requests until background threads have closed everything that they got since `moment`, for a
    /// limited time.
    #[track_caller]
    fn await_closed(&mut self, moment: attach::Moment) {
        let since = Instant::now();
        while !self.scheduler().serving
            && !attach::closed_since(moment, PERIOD)
            && !self.scheduler().is_stopping()
        {
            if since.elapsed() > FILE_WORK_LIMIT {
                tracing::warn!("disabled probes are still being detached");
                return;
            }
            self.serve_others(Duration::ZERO);
        }
    }

    /// Runs work that does not need the owner's state on a thread, and serves other requests meanwhile. Without a
    /// server it runs at once.
    #[expect(
        clippy::unreachable,
        reason = "a scoped thread that took the work gave its result or ended this thread"
    )]
    #[track_caller]
    fn run_off_thread<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        if self.scheduler().server.is_none() {
            return work();
        }
        // A thread takes the work. If no thread can be started, this thread runs it.
        let work = Mutex::new(Some(work));
        let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = std::thread::scope(|scope| {
            let (ends, ended) = std::sync::mpsc::channel::<()>();
            let started =
                std::thread::Builder::new().name("off-thread".to_owned()).spawn_scoped(scope, || {
                    let work = take();
                    let done = work.map(|work| work());
                    drop(ends);
                    done
                });
            let worker =
                started.inspect_err(|error| tracing::warn!("cannot start a thread: {error}")).ok()?;
            let quick = ended.recv_timeout(QUICK) == Err(RecvTimeoutError::Disconnected);
            while !quick && !worker.is_finished() {
                self.serve_others(PERIOD);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit for what takes milliseconds.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[derive(Debug, Default)]
    struct Owner {
        scheduler: Scheduler<Self>,
        served: usize,
        published: usize,
    }

    impl Cooperative for Owner {
        fn scheduler(&self) -> &Scheduler<Self> {
            &self.scheduler
        }

        fn scheduler_mut(&mut self) -> &mut Scheduler<Self> {
            &mut self.scheduler
        }

        fn publish_step(&mut self) {
            self.published += 1;
        }
    }

    fn shared() -> Owner {
        let mut owner = Owner::default();
        let server = |owner: &mut Owner, _: Duration| {
            assert!(owner.scheduler.is_serving());
            owner.served += 1;
            // A served request does not yield.
            owner.yield_to_readers();
        };
        owner.scheduler.serve_with(Box::new(server), Arc::default());
        owner
    }

    #[test]
    fn short_steps_do_not_yield() {
        let mut owner = shared();
        owner.begin_step("test");
        let begin = |owner: &mut Owner, at: Option<Instant>| {
            owner.scheduler.timer.step.as_mut().unwrap().since = at.unwrap();
        };
        // A step that begins later is not due, however long this thread is stopped here.
        begin(&mut owner, Instant::now().checked_add(PATIENCE));
        owner.yield_to_readers();
        assert_eq!((owner.served, owner.published), (0, 0));
        begin(&mut owner, Instant::now().checked_sub(STEP));
        owner.yield_to_readers();
        assert_eq!((owner.served, owner.published), (1, 1));
        assert!(!owner.scheduler.is_serving() && owner.scheduler.longest_step().name == "test");
        owner.end_step();
        assert_eq!(owner.published, 2);
    }

    #[test]
    fn others_are_served_while_a_thread_works() {
        let mut alone = Owner::default();
        let caller = std::thread::current().id();
        assert!(alone.run_off_thread(|| std::thread::current().id() == caller), "nobody else to serve");
        // The work ends once others were served, however slow this machine is.
        let (tell, told) = std::sync::mpsc::channel();
        let mut owner = Owner::default();
        let server = move |_: &mut Owner, _: Duration| {
            let _ = tell.send(());
        };
        owner.scheduler.serve_with(Box::new(server), Arc::default());
        owner.begin_step("test");
        let others = owner.run_off_thread(move || {
            let is_served = told.recv_timeout(PATIENCE).is_ok();
            is_served && std::thread::current().id() != caller
        });
        assert!(others);
        // This work ends with the test.
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let endless = || {
            let held = Arc::clone(&held);
            move || drop(held.lock().map(|held| held.recv()))
        };
        let late = owner.run_off_thread_within(QUICK, endless());
        assert_eq!(late, Err(ErrorKind::TimedOut.into()));
        owner.scheduler.stop.store(true, Ordering::Release);
        let ends = owner.run_off_thread_within(PATIENCE, endless());
        assert_eq!(ends, Err(ErrorKind::Interrupted.into()));
        drop(hold);
    }
}
