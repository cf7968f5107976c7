//! Events that were disabled a moment ago.
//!
//! An event is often enabled again soon after it was disabled. So it stays parked on its hook for a second, where a hit
//! costs the gate's few instructions. Then a thread detaches it, together with others that are due. One thread serves
//! all sessions, because many links close in hardly more time than one.
//!
//! Some kernels (6.1, 6.6 and 6.12 among them) close one link after the other, and meanwhile hold a mutex that every
//! new link needs. There the thread detaches few events together, and pauses while a tracer enables many.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{
        Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    attach::{self, CloseThrottle, Pace, Parked},
    event::EventId,
};

/// Detaches the parked events of all sessions.
static DETACHER: LazyLock<Detacher<Parked>> = LazyLock::new(|| {
    Detacher::new(Policy {
        parked: Duration::from_secs(1),
        end: Duration::from_secs(1),
        pause,
        has_link: Parked::has_perf_link,
        detach: attach::detach_parked,
        spawn: Detacher::spawn,
    })
});

/// Waits until events can be detached. Returns how many links may close: while events are detached, they cannot be
/// resumed.
fn pause(throttle: &mut CloseThrottle) -> usize {
    let pace = Pace::now();
    if pace != Pace::Together {
        throttle.wait_for_openers();
    }
    pace.links_at_a_time()
}

/// When and how events are detached.
#[derive(Debug)]
struct Policy<P: 'static> {
    /// How long a disabled event stays parked.
    parked: Duration,
    /// How long the end of a session waits for its events that are being detached.
    end: Duration,
    pause: fn(&mut CloseThrottle) -> usize,
    /// Whether a link closes with the last event of a hook.
    has_link: fn(&P) -> bool,
    detach: fn(Vec<P>),
    /// Starts the thread, which calls [`Detacher::run`].
    spawn: fn(&'static Detacher<P>) -> io::Result<()>,
}

/// The parked events of sessions. A thread detaches them after some time.
#[derive(Debug)]
struct Detacher<P: 'static> {
    state: Mutex<State<P>>,
    /// Signalled after events were detached.
    detached: Condvar,
    policy: Policy<P>,
}

/// A session's number and an event.
type Key = (u64, EventId);

#[derive(Debug)]
struct State<P> {
    /// With the time when the event was disabled.
    parked: HashMap<Key, (Instant, P)>,
    /// Events that cannot be resumed.
    discarded: Vec<(Key, P)>,
    /// The sessions of the events that are being detached.
    detaching: HashSet<u64>,
    /// Whether the thread runs.
    runs: bool,
}

/// The parked events of one session.
#[derive(Debug)]
pub(crate) struct DeferredClose<P: 'static = Parked> {
    session: u64,
    detacher: &'static Detacher<P>,
}

impl Default for DeferredClose {
    fn default() -> Self {
        Self::of(&DETACHER)
    }
}

impl<P: Send> DeferredClose<P> {
    fn of(detacher: &'static Detacher<P>) -> Self {
        static SESSIONS: AtomicU64 = AtomicU64::new(0);
        Self { session: SESSIONS.fetch_add(1, Ordering::Relaxed), detacher }
    }

    /// Takes an event that is still parked.
    pub(crate) fn take(&self, event: EventId) -> Option<P> {
        self.detacher.lock().parked.remove(&(self.session, event)).map(|(_, parked)| parked)
    }

    /// Removes and returns all parked and discarded events. Waits a moment for those that are being detached.
    pub(crate) fn end(&self) -> Vec<P> {
        let Self { session, detacher } = self;
        let mut state = detacher.lock();
        let parked = state.parked.extract_if(|(owner, _), _| owner == session);
        let mut parked: Vec<P> = parked.map(|(_, (_, parked))| parked).collect();
        let discarded = state.discarded.extract_if(.., |((owner, _), _)| owner == session);
        parked.extend(discarded.map(|(_, parked)| parked));
        let is_detaching = |state: &mut State<P>| state.detaching.contains(session);
        // Later it goes on without them.
        let _ = detacher.detached.wait_timeout_while(state, detacher.policy.end, is_detaching);
        parked
    }

    /// Parks events. Without a thread that would detach them, detaches them.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = (EventId, P)>) {
        let now = Instant::now();
        let parked = events.into_iter().map(|(event, parked)| ((self.session, event), (now, parked)));
        let parked: Vec<_> = parked.collect();
        self.detacher.add(|state| {
            let replaced = parked.into_iter().filter_map(|(key, parked)| state.parked.insert(key, parked));
            replaced.map(|(_, parked)| parked).collect()
        });
    }

    /// Lets a parked event that was taken be detached, at the latest when other events are due. The caller does not wait
    /// for that.
    pub(crate) fn discard(&self, event: EventId, parked: P) {
        self.detacher.add(|state| {
            state.discarded.push(((self.session, event), parked));
            Vec::new()
        });
    }
}

impl<P> Detacher<P> {
    fn new(policy: Policy<P>) -> Self {
        let state =
            State { parked: HashMap::new(), discarded: Vec::new(), detaching: HashSet::new(), runs: false };
        Self { state: Mutex::new(state), detached: Condvar::new(), policy }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Send> Detacher<P> {
    /// Adds events by `add`, which returns those that it replaced. Without a thread no event stays.
    fn add(&'static self, add: impl FnOnce(&mut State<P>) -> Vec<P>) {
        let mut state = self.lock();
        let mut dropped = add(&mut state);
        if !state.runs && state.due_in(self.policy.parked).is_some() {
            match (self.policy.spawn)(self) {
                Ok(()) => state.runs = true,
                Err(error) => {
                    tracing::warn!("disabled events do not stay parked: {error}");
                    // Without a thread there were none before.
                    dropped.extend(state.parked.drain().map(|(_, (_, parked))| parked));
                    dropped.extend(state.discarded.drain(..).map(|(_, parked)| parked));
                }
            }
        }
        drop(state);
        // Dropping one can take long.
        drop(dropped);
    }

    fn spawn(&'static self) -> io::Result<()> {
        std::thread::Builder::new().name("detach".to_owned()).spawn(|| self.run()).map(drop)
    }

    /// Detaches parked events until none is left.
    fn run(&self) {
        let Policy { parked, pause, has_link, detach, .. } = self.policy;
        let mut throttle = CloseThrottle::default();
        while let Some(left) = self.due_in() {
            if !left.is_zero() {
                std::thread::sleep(left);
                throttle = CloseThrottle::default();
                continue;
            }
            let links = pause(&mut throttle);
            let due = self.lock().take_due(parked, links, has_link);
            detach(due);
            self.lock().detaching.clear();
            self.detached.notify_all();
        }
    }

    /// How long no event is due. The thread ends after `None`.
    fn due_in(&self) -> Option<Duration> {
        let mut state = self.lock();
        let due_in = state.due_in(self.policy.parked);
        state.runs = due_in.is_some();
        due_in
    }
}

impl<P> State<P> {
    /// How long no event is due. `None` without an event.
    fn due_in(&self, parked: Duration) -> Option<Duration> {
        if !self.discarded.is_empty() {
            return Some(Duration::ZERO);
        }
        self.parked.values().map(|(since, _)| parked.saturating_sub(since.elapsed())).min()
    }

    /// Takes events that were discarded or parked long enough: those of up to `links` hooks with a link, and all
    /// others.
    fn take_due(&mut self, parked: Duration, links: usize, has_link: fn(&P) -> bool) -> Vec<P> {
        let now = Instant::now();
        let mut hooks = HashSet::new();
        // An event has the same number in all sessions, which share its link. A discarded one can have another link, so
        // that a few more are closed.
        let mut is_taken = |event: EventId, one: &P| {
            !has_link(one) || hooks.contains(&event) || (hooks.len() < links && hooks.insert(event))
        };
        let discarded = self.discarded.extract_if(.., |((_, event), one)| is_taken(*event, one));
        let mut due: Vec<(Key, P)> = discarded.collect();
        let parked = self.parked.extract_if(|(_, event), (since, one)| {
            now.saturating_duration_since(*since) >= parked && is_taken(*event, one)
        });
        due.extend(parked.map(|(key, (_, one))| (key, one)));
        self.detaching = due.iter().map(|((session, _), _)| *session).collect();
        due.into_iter().map(|(_, one)| one).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    /// Longer than a test takes.
    const LONG: Duration = Duration::from_secs(600);
    /// For what happens soon.
    const LIMIT: Duration = Duration::from_secs(60);

    /// The end of its receiver tells that it was detached; `delay` ends before that.
    #[derive(Debug)]
    struct Event {
        _end: Sender<()>,
        delay: Option<Receiver<()>>,
        /// Is not locked when the event is dropped.
        unlocked: Option<&'static Detacher<Event>>,
    }

    impl Drop for Event {
        fn drop(&mut self) {
            assert!(self.unlocked.is_none_or(|detacher| detacher.state.try_lock().is_ok()));
            let _ = self.delay.as_ref().map(Receiver::recv);
        }
    }

    fn event() -> (Event, Receiver<()>) {
        let (event, end) = channel();
        (Event { _end: event, delay: None, unlocked: None }, end)
    }

    /// Parks an event that was changed. The receiver tells when it is detached.
    fn park(session: &DeferredClose<Event>, number: u32, change: impl FnOnce(&mut Event)) -> Receiver<()> {
        let (mut event, end) = event();
        change(&mut event);
        session.add([(EventId::new(number), event)]);
        end
    }

    fn policy(parked: Duration) -> Policy<Event> {
        Policy { parked, end: LONG, pause: |_| 2, has_link: |_| true, detach: drop, spawn: Detacher::spawn }
    }

    fn leak(policy: Policy<Event>) -> &'static Detacher<Event> {
        Box::leak(Box::new(Detacher::new(policy)))
    }

    fn until(is: impl Fn() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_detached(end: &Receiver<()>) -> bool {
        end.try_recv() == Err(TryRecvError::Disconnected)
    }

    #[test]
    fn events_of_all_sessions_are_detached() {
        let detacher = leak(policy(SHORT));
        let sessions = [DeferredClose::of(detacher), DeferredClose::of(detacher)];
        let ids = [1, 2, 3].map(EventId::new);
        let start = Instant::now();
        let mut ends = Vec::new();
        for session in &sessions {
            let (events, receivers): (Vec<_>, Vec<_>) = ids.iter().map(|_| event()).unzip();
            session.add(ids.into_iter().zip(events));
            ends.extend(receivers);
        }
        assert!(ends.iter().all(|end| end.recv_timeout(LIMIT).is_err()));
        assert!(ends.iter().all(is_detached) && start.elapsed() >= SHORT);
        // The thread has ended, and another begins.
        until(|| !detacher.lock().runs);
        let end = park(&sessions[0], 2, |_| ());
        until(|| is_detached(&end));
    }

    #[test]
    fn a_parked_event_can_be_taken() {
        let detacher = leak(policy(LONG));
        let sessions = [DeferredClose::of(detacher), DeferredClose::of(detacher)];
        let end = park(&sessions[0], 1, |_| ());
        assert!(sessions[1].take(EventId::new(1)).is_none());
        let taken = sessions[0].take(EventId::new(1)).unwrap();
        assert!(sessions[0].take(EventId::new(1)).is_none());
        assert!(!is_detached(&end));
        drop(taken);
        assert!(is_detached(&end));
    }

    #[test]
    fn discarded_events_are_detached_soon() {
        let session = DeferredClose::of(leak(policy(LONG)));
        let ends: Vec<Receiver<()>> = (0..3)
            .map(|number| {
                let (discarded, end) = event();
                session.discard(EventId::new(number), discarded);
                end
            })
            .collect();
        assert!(ends.iter().all(|end| end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Disconnected)));
    }

    #[test]
    fn the_end_of_a_session_gets_its_events_and_waits_for_those_that_are_being_detached() {
        let detacher = leak(policy(Duration::ZERO));
        let (one, other) = (DeferredClose::of(detacher), DeferredClose::of(detacher));
        let (go, delay) = channel();
        let ended = park(&one, 1, |event| event.delay = Some(delay));
        until(|| !detacher.lock().detaching.is_empty());
        // The thread is busy with the first one.
        let still = park(&one, 2, |_| ());
        let others_end = park(&other, 2, |_| ());
        assert_eq!(other.end().len(), 1);
        assert!(is_detached(&others_end) && !is_detached(&ended));
        let sender = std::thread::spawn(move || {
            // The end has taken the event, and waits once the lock is free.
            until(|| detacher.lock().parked.is_empty());
            drop(go);
        });
        let parked = one.end();
        assert!(is_detached(&ended), "it was detached before");
        assert!(parked.len() == 1 && !is_detached(&still));
        sender.join().unwrap();
    }

    #[test]
    fn the_end_of_a_session_does_not_wait_without_a_limit() {
        let detacher = leak(Policy { end: Duration::ZERO, ..policy(Duration::ZERO) });
        let session = DeferredClose::of(detacher);
        let (_go, delay) = channel();
        let ended = park(&session, 1, |event| event.delay = Some(delay));
        until(|| !detacher.lock().detaching.is_empty());
        assert!(session.end().is_empty() && !is_detached(&ended));
    }

    #[test]
    fn as_many_links_close_as_the_limit_says_with_all_events_of_their_hooks() {
        let now = Instant::now();
        let event = |session, number, since, has_link| ((session, EventId::new(number)), (since, has_link));
        let numbers = 0..8;
        let linked =
            numbers.clone().flat_map(|number| [0, 1].map(|session| event(session, number, now, true)));
        let others = numbers.map(|number| event(2, 100 + number, now, false));
        let later = event(3, 200, now + LONG, true);
        let parked = linked.chain(others).chain([later]).collect();
        let mut state = State { parked, discarded: Vec::new(), detaching: HashSet::new(), runs: false };
        let parked = Duration::from_millis(1);
        std::thread::sleep(parked);
        let mut take = |links| {
            let due = state.take_due(parked, links, |has_link| *has_link);
            let linked = due.iter().filter(|has_link| **has_link).count();
            let sessions = [0, 1, 2, 3].map(|session| state.detaching.contains(&session));
            (linked, due.len() - linked, sessions)
        };
        assert_eq!(take(3), (6, 8, [true, true, true, false]));
        assert_eq!(take(4), (8, 0, [true, true, false, false]));
        // Fewer than the limit.
        assert_eq!(take(4), (2, 0, [true, true, false, false]));
        assert_eq!(take(4), (0, 0, [false; 4]));
    }

    #[test]
    fn events_that_no_thread_would_detach_do_not_stay_parked() {
        let detacher = leak(Policy { spawn: |_| Err(io::ErrorKind::WouldBlock.into()), ..policy(LONG) });
        let session = DeferredClose::of(detacher);
        let add: [fn(&DeferredClose<Event>, Event); 2] = [
            |session, parked| session.add([(EventId::new(1), parked)]),
            |session, parked| session.discard(EventId::new(1), parked),
        ];
        for add in add {
            let (mut parked, end) = event();
            parked.unlocked = Some(detacher);
            add(&session, parked);
            assert!(is_detached(&end) && detacher.lock().due_in(LONG).is_none());
        }
    }

    #[test]
    fn an_event_that_is_parked_twice_is_detached_once() {
        let detacher = leak(Policy { spawn: |_| Ok(()), ..policy(LONG) });
        let session = DeferredClose::of(detacher);
        let ends = [(); 2].map(|()| park(&session, 1, |event| event.unlocked = Some(detacher)));
        assert!(is_detached(&ends[0]) && !is_detached(&ends[1]));
        session.discard(EventId::new(1), event().0);
        assert_eq!(session.end().len(), 2);
    }
}
