//! Events that were disabled a moment ago.
//!
//! An event is often enabled again soon after it was disabled. So it stays parked on its hook for a second, where a hit
//! costs the gate's few instructions. Then a thread detaches it, together with all others that are due. One thread serves
//! all sessions, because many links close in hardly more time than one.
//!
//! Some kernels (6.1, 6.6 and 6.12 among them) close one link after the other, and meanwhile hold a mutex that every new
//! link needs. There the thread detaches few events together, and pauses while a tracer enables many.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    attach::{self, CloseThrottle, Parked},
    event::EventId,
};

/// How long a disabled event stays parked.
const PARKED: Duration = Duration::from_secs(1);
/// How long the end of a session waits for its events that are being detached.
const END: Duration = Duration::from_secs(1);

/// Detaches the parked events of all sessions.
static DETACHER: LazyLock<Detacher<Parked>> =
    LazyLock::new(|| Detacher::new(PARKED, pause, attach::detach_parked));

/// Waits until events can be detached. Returns how many: while they are detached, they cannot be resumed.
fn pause(throttle: &mut CloseThrottle) -> usize {
    let Some(limit) = attach::links_at_a_time() else { return usize::MAX };
    throttle.wait_for_openers();
    limit
}

/// The parked events of sessions. A thread detaches them after some time.
#[derive(Debug)]
struct Detacher<P> {
    state: Mutex<State<P>>,
    /// Signalled after events were detached.
    detached: Condvar,
    /// How long an event stays parked.
    parked: Duration,
    pause: fn(&mut CloseThrottle) -> usize,
    detach: fn(Vec<P>),
}

#[derive(Debug)]
struct State<P> {
    /// By the number of the session and the event, with the time when it was disabled.
    parked: HashMap<(u64, EventId), (Instant, P)>,
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

    /// Removes and returns all parked events. Waits a moment for those that are being detached.
    pub(crate) fn end(&self) -> Vec<P> {
        let Self { session, detacher } = self;
        let mut state = detacher.lock();
        let parked = state.parked.extract_if(|(owner, _), _| owner == session);
        let parked = parked.map(|(_, (_, parked))| parked).collect();
        let is_detaching = |state: &mut State<P>| state.detaching.contains(session);
        // Later it goes on without them.
        let _ = detacher.detached.wait_timeout_while(state, END, is_detaching);
        parked
    }

    /// Parks events.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = (EventId, P)>) {
        let now = Instant::now();
        let parked = events.into_iter().map(|(event, parked)| ((self.session, event), (now, parked)));
        self.detacher.add(parked);
    }
}

impl<P> Detacher<P> {
    fn new(parked: Duration, pause: fn(&mut CloseThrottle) -> usize, detach: fn(Vec<P>)) -> Self {
        let state = State { parked: HashMap::new(), detaching: HashSet::new(), runs: false };
        Self { state: Mutex::new(state), detached: Condvar::new(), parked, pause, detach }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Send> Detacher<P> {
    fn add(&'static self, events: impl Iterator<Item = ((u64, EventId), (Instant, P))>) {
        let mut state = self.lock();
        state.parked.extend(events);
        if state.runs || state.parked.is_empty() {
            return;
        }
        match std::thread::Builder::new().name("detach".to_owned()).spawn(|| self.run()) {
            Ok(_) => state.runs = true,
            Err(error) => tracing::warn!("no thread detaches disabled events yet: {error}"),
        }
    }

    /// Detaches parked events until none is left.
    fn run(&self) {
        let mut throttle = CloseThrottle::default();
        while let Some(first) = self.first() {
            let left = self.parked.saturating_sub(first.elapsed());
            if !left.is_zero() {
                std::thread::sleep(left);
                continue;
            }
            let limit = (self.pause)(&mut throttle);
            let due = self.lock().take_due(self.parked, limit);
            (self.detach)(due);
            self.lock().detaching.clear();
            self.detached.notify_all();
        }
    }

    /// When the first of the parked events was disabled. The thread ends after `None`.
    fn first(&self) -> Option<Instant> {
        let mut state = self.lock();
        let first = state.parked.values().map(|(since, _)| *since).min();
        state.runs = first.is_some();
        first
    }
}

impl<P> State<P> {
    /// Takes up to this many events that were parked long enough.
    fn take_due(&mut self, parked: Duration, limit: usize) -> Vec<P> {
        let due: Vec<_> =
            self.parked.extract_if(|_, (since, _)| since.elapsed() >= parked).take(limit).collect();
        self.detaching = due.iter().map(|((session, _), _)| *session).collect();
        due.into_iter().map(|(_, (_, parked))| parked).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    /// The end of its receiver tells that it was detached; `delay` ends before that.
    #[derive(Debug)]
    struct Event {
        _end: Sender<()>,
        delay: Option<Receiver<()>>,
    }

    impl Drop for Event {
        fn drop(&mut self) {
            let _ = self.delay.as_ref().map(Receiver::recv);
        }
    }

    fn event() -> (Event, Receiver<()>) {
        let (event, end) = channel();
        (Event { _end: event, delay: None }, end)
    }

    fn detacher(parked: Duration) -> &'static Detacher<Event> {
        Box::leak(Box::new(Detacher::new(parked, |_| 2, drop)))
    }

    #[test]
    fn events_of_all_sessions_are_detached_unless_they_are_taken() {
        let detacher = detacher(SHORT);
        let sessions = [DeferredClose::of(detacher), DeferredClose::of(detacher)];
        let ids = [1, 2, 3].map(EventId::new);
        let mut ends = Vec::new();
        let start = Instant::now();
        for session in &sessions {
            let (events, receivers): (Vec<_>, Vec<_>) = ids.iter().map(|_| event()).unzip();
            session.add(ids.into_iter().zip(events));
            ends.push(receivers);
        }
        let taken = sessions[0].take(ids[1]).unwrap();
        assert!(sessions[0].take(ids[1]).is_none());
        for (session, event) in [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)] {
            assert!(ends[session][event].recv_timeout(LONG).is_err());
        }
        assert!(start.elapsed() >= SHORT);
        assert_eq!(ends[0][1].try_recv(), Err(TryRecvError::Empty));
        // The thread has ended, and another begins.
        while detacher.lock().runs {
            std::thread::sleep(Duration::from_millis(1));
        }
        sessions[0].add([(ids[1], taken)]);
        assert!(ends[0][1].recv_timeout(LONG).is_err());
    }

    #[test]
    fn the_end_of_a_session_gets_its_events_and_waits_for_those_that_are_being_detached() {
        let detacher = detacher(Duration::ZERO);
        let (one, other) = (DeferredClose::of(detacher), DeferredClose::of(detacher));
        let (go, delay) = channel();
        let (mut first, ended) = event();
        first.delay = Some(delay);
        one.add([(EventId::new(1), first)]);
        while detacher.lock().detaching.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The thread is busy with the first one.
        let (parked, still) = event();
        one.add([(EventId::new(2), parked)]);
        let (others, others_still) = event();
        other.add([(EventId::new(2), others)]);
        assert_eq!(other.end().len(), 1);
        assert!(others_still.try_recv() == Err(TryRecvError::Disconnected));
        let sender = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            drop(go);
        });
        let parked = one.end();
        assert!(ended.try_recv() == Err(TryRecvError::Disconnected), "it was detached before");
        assert!(parked.len() == 1 && still.try_recv() == Err(TryRecvError::Empty));
        sender.join().unwrap();
    }
}
