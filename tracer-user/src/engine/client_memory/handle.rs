//! The daemon's side: sends orders to the process that accesses clients' memory. Sending does not block. One thread
//! receives the reports and calls a closure with each result.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc::channel},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, retry_on_intr},
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::engine::payers::PayerName;

use super::{
    lanes::{Lanes, Then},
    message::{Look, Op, Order, PACKET_MAX, Report, Seen, packet},
};

/// How long a change of events waits for programs.
const CHANGE: Duration = Duration::from_millis(100);
/// How long the process may take to answer a ping.
const PONG: Duration = Duration::from_secs(10);
/// Time to sleep if poll(2) fails. A pause in listening that is longer than this restarts the time to answer a ping.
const APART: Duration = Duration::from_secs(1);

/// Minimum time between two calls because of [`ClientMemory::attend_again`]: it merges requests and leaves time for
/// other work.
const AGAIN: Duration = Duration::from_millis(5);

/// Called with the number of the address space and the result of a look.
pub type LookCallback = Box<dyn FnOnce(u64, Result<Seen, Errno>) + Send>;

struct Looking {
    look: Look,
    deadline: Instant,
    then: LookCallback,
    /// Whether a process that had this order was lost.
    again: bool,
}

struct Opening {
    /// The expected identity.
    identity: Arc<[u8]>,
    lane: u64,
}

#[derive(Default)]
struct State {
    lanes: Lanes,
    looks: HashMap<u64, Looking>,
    opens: HashMap<u64, Opening>,
    socket: Option<Arc<OwnedFd>>,
    outbox: VecDeque<Vec<u8>>,
    /// Address spaces that ended or have another identity.
    failures: Vec<u64>,
    /// Whether a further call was requested.
    again: bool,
    /// The time of the last call for that reason.
    called_again: Option<Instant>,
    shown: Vec<(LookCallback, u64, Result<Seen, Errno>)>,
    /// Number of processes used so far.
    generation: u64,
    /// Processes for later use.
    spare: VecDeque<OwnedFd>,
    /// Whether the process has reported nothing yet: it may still be starting.
    is_new: bool,
    pinged: Option<Instant>,
    /// The time since when answers are listened for without a long pause.
    listening: Option<Instant>,
}

struct Shared {
    state: Mutex<State>,
    wake: OwnedFd,
    /// How long a change of events waits for programs.
    patience: Duration,
    attention: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Access to clients' memory; clones share it.
#[derive(Clone)]
pub struct ClientMemory(Arc<Shared>);

impl std::fmt::Debug for ClientMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientMemory").finish_non_exhaustive()
    }
}

/// The writes of one change of events, which are awaited together.
#[derive(Debug)]
pub struct Ticket {
    memory: ClientMemory,
    change: u64,
}

impl Ticket {
    /// Calls `then` when all writes are done or the change's deadline has passed.
    pub fn then(self, then: impl FnOnce() + Send + 'static) {
        let done = self.memory.0.lock().lanes.then(self.change, Box::new(|_| then()));
        self.memory.0.wake();
        if let Some(then) = done {
            then(Ok(()));
        }
    }

    /// Blocks until all writes are done or the deadline has passed.
    pub fn wait(self) {
        let patience = self.memory.0.patience;
        let (done, is_done) = channel();
        self.then(move || {
            let _ = done.send(());
        });
        // Longer than the deadline, in case the thread that watches the deadline has ended.
        let _ = is_done.recv_timeout(2 * patience);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.memory.0.lock();
        // A change with a closure continues without its ticket.
        state.lanes.abandon_unless_awaited(self.change);
    }
}

impl ClientMemory {
    /// Uses the first of the processes at the other ends of these sockets, and the next one when it ends. No process
    /// can be started after privileges are dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(processes: Vec<OwnedFd>) -> io::Result<Self> {
        Self::with_patience(processes, CHANGE)
    }

    /// As [`ClientMemory::start`], with the time that a change of events waits for programs.
    pub(super) fn with_patience(processes: Vec<OwnedFd>, patience: Duration) -> io::Result<Self> {
        let mut state = State { spare: processes.into(), ..State::default() };
        state.next();
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            patience,
            attention: OnceLock::new(),
        });
        let its = Arc::clone(&shared);
        std::thread::Builder::new().name("client-memory".to_owned()).spawn(move || its.run())?;
        Ok(Self(shared))
    }

    /// Sets the function to call when there are [`ClientMemory::failures`], when another process took over, or after
    /// [`attend_again`]. Only the first call has an effect.
    ///
    /// [`attend_again`]: Self::attend_again
    pub fn on_attention(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.attention.set(Box::new(call));
    }

    /// Makes the thread that receives reports call the function of [`ClientMemory::on_attention`] once more.
    pub fn attend_again(&self) {
        self.0.lock().again = true;
        self.0.wake();
    }

    /// The number of the process in use, and the address spaces that were lost or changed identity since the last
    /// call.
    pub fn failures(&self) -> (u64, Vec<u64>) {
        let mut state = self.0.lock();
        (state.generation, std::mem::take(&mut state.failures))
    }

    /// Inspects a waiting thread and passes the result to `then`: `EFAULT` after the deadline. While the inspecting
    /// process is still starting, the deadline is the one by which it must answer a ping. If a process ends
    /// meanwhile, the next one repeats the inspection, once.
    pub fn look(&self, look: Look, deadline: Instant, then: LookCallback) {
        self.0.with(|state| {
            let id = state.lanes.number();
            if state.socket.is_none() {
                state.shown.push((then, id, Err(Errno::NOMEM)));
                return;
            }
            state.lanes.reachable.insert(id);
            state.lanes.orders.push(Order::Look { id, look });
            state.looks.insert(id, Looking { look, deadline, then, again: false });
        });
    }

    /// Closes an address space.
    pub fn forget(&self, id: u64) {
        self.0.with(|state| {
            state.lanes.orders.push(Order::Forget { id });
            state.lanes.reachable.remove(&id);
            // Other writes of its lane continue.
            if let Some(opening) = state.opens.remove(&id) {
                state.lanes.opened(opening.lane);
            }
        });
    }

    /// An unused number for an address space.
    pub fn number(&self) -> u64 {
        self.0.lock().lanes.number()
    }

    /// Opens a thread's address space under a number, before further writes of its lane. Its identity must be
    /// `identity`.
    pub fn open(&self, id: u64, payer: u32, thread: u32, identity: &Arc<[u8]>, lane: u64) {
        let identity = Arc::clone(identity);
        self.0.with(|state| {
            state.opens.insert(id, Opening { identity, lane });
            state.lanes.opens(lane, id);
            state.lanes.orders.push(Order::Open { id, payer, thread });
        });
    }

    /// A new lane (a queue of writes) for a process of a payer.
    pub fn lane(&self, payer: u32) -> u64 {
        self.0.lock().lanes.lane(payer)
    }

    /// Ends a lane; pending writes are dropped.
    pub fn close_lane(&self, lane: u64) {
        self.0.with(|state| state.lanes.close(lane));
    }

    /// Whether a lane missed a deadline and has not answered since.
    pub fn is_stuck(&self, lane: u64) -> bool {
        self.0.lock().lanes.is_stuck(lane)
    }

    /// Begins a change of events.
    pub fn change(&self) -> Ticket {
        let change = self.0.lock().lanes.change(Instant::now() + self.0.patience);
        Ticket { memory: self.clone(), change }
    }

    /// Queues writes, as a part of a change if one is given.
    pub fn write(&self, lane: u64, ops: impl Iterator<Item = Op>, change: Option<&Ticket>) {
        let change = change.map(|ticket| ticket.change);
        self.0.with(|state| {
            let now = Instant::now();
            ops.for_each(|op| state.lanes.write(lane, op, change, now));
        });
    }

    /// Queues a write for a request that waits for it until a deadline.
    pub fn request(&self, lane: u64, op: Op, deadline: Instant, then: Then) {
        self.0.with(|state| state.lanes.request(lane, op, deadline, then));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // If the counter is full, the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Changes the state, then sends the orders.
    fn with(&self, act: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        act(&mut state);
        state.flush();
        let waits = !state.outbox.is_empty()
            || state.deadline().is_some()
            || !state.lanes.calls.is_empty()
            || !state.shown.is_empty();
        drop(state);
        if waits {
            self.wake();
        }
    }

    /// Receives reports until the process ends.
    fn run(&self) {
        let mut packet = vec![0; PACKET_MAX];
        let mut settled = Instant::now();
        loop {
            let now = Instant::now();
            let (socket, waits, deadline) = {
                let mut state = self.lock();
                state.flush();
                if now.duration_since(settled) > APART {
                    state.listening = Some(now);
                }
                (state.socket.clone(), !state.outbox.is_empty(), state.deadline())
            };
            let timeout = deadline.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, waits);
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            fds.extend(socket.as_deref().map(|socket| PollFd::new(socket, flags)));
            if let Err(errno) = poll(&mut fds, timeout.as_ref())
                && errno != Errno::INTR
            {
                tracing::warn!("clients' memory: {errno}");
                std::thread::sleep(APART);
            }
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            let gone = socket.is_some_and(|socket| self.receive(&socket, &mut packet));
            settled = Instant::now();
            self.settle(gone);
        }
    }

    /// Receives all available reports. Returns whether the process has ended.
    fn receive(&self, socket: &OwnedFd, packet: &mut [u8]) -> bool {
        loop {
            let length = match retry_on_intr(|| recv(socket, &mut *packet, RecvFlags::DONTWAIT)) {
                Err(Errno::AGAIN) => return false,
                Err(_) | Ok((0, _)) => return true,
                Ok((length, _)) => length,
            };
            if let Some(report) = packet.get(..length).and_then(Report::read) {
                self.lock().take(report);
            } else {
                tracing::warn!("clients' memory: an invalid report of {length} bytes");
            }
        }
    }

    /// Expires orders, then calls the closures.
    fn settle(&self, gone: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        let silent = state.silent_at().is_some_and(|at| at < now);
        if (gone || silent) && state.socket.is_some() {
            state.lose();
            state.next();
            if state.socket.is_none() {
                tracing::warn!(
                    "no process is left to reach clients' memory: user events cannot be registered"
                );
            } else {
                let left = state.spare.len();
                tracing::warn!("the process that accesses clients' memory has ended; {left} others remain");
            }
        }
        state.expire(now);
        state.flush();
        let calls = std::mem::take(&mut state.lanes.calls);
        let shown = std::mem::take(&mut state.shown);
        let again = state.again && state.called_again.is_none_or(|last| last + AGAIN <= now);
        if again {
            (state.again, state.called_again) = (false, Some(now));
        }
        let attention = !state.failures.is_empty() || gone || silent || again;
        drop(state);
        for (then, result) in calls {
            then(result);
        }
        for (then, id, seen) in shown {
            then(id, seen);
        }
        if attention && let Some(call) = self.attention.get() {
            call();
        }
    }
}

impl State {
    /// Switches to the next process, and repeats the orders of the last one.
    fn next(&mut self) {
        self.socket = self.spare.pop_front().map(Arc::new);
        self.is_new = self.socket.is_some();
        if self.is_new {
            self.pinged = Some(Instant::now());
            self.lanes.orders.push(Order::Ping);
        }
        for (id, look) in std::mem::take(&mut self.looks) {
            if look.again || !self.is_new {
                self.shown.push((look.then, id, Err(Errno::FAULT)));
                continue;
            }
            self.lanes.reachable.insert(id);
            self.lanes.orders.push(Order::Look { id, look: look.look });
            self.looks.insert(id, Looking { again: true, ..look });
        }
    }

    /// Sends orders until the socket is full.
    fn flush(&mut self) {
        let orders = std::mem::take(&mut self.lanes.orders);
        self.outbox.extend(orders.iter().map(packet));
        let Some(socket) = &self.socket else {
            self.outbox.clear();
            return;
        };
        while let Some(packet) = self.outbox.front() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            if retry_on_intr(|| send(socket, packet, flags)).is_err() {
                // The reading side detects a closed socket.
                return;
            }
            self.outbox.pop_front();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let looks = self.looks.values().filter(|_| !self.is_new).map(|look| look.deadline);
        looks.chain(self.lanes.deadline()).chain(self.silent_at()).chain(self.again_at()).min()
    }

    /// The time of the next requested call.
    fn again_at(&self) -> Option<Instant> {
        self.again.then(|| self.called_again.map_or_else(Instant::now, |last| last + AGAIN))
    }

    /// The time at which the process counts as dead if it has not answered.
    fn silent_at(&self) -> Option<Instant> {
        let since = self.pinged?;
        Some(self.listening.map_or(since, |listening| listening.max(since)) + PONG)
    }

    fn expire(&mut self, now: Instant) {
        let is_new = self.is_new;
        let late = self.looks.extract_if(|_, look| !is_new && look.deadline <= now).collect::<Vec<_>>();
        let mut ping = !late.is_empty();
        for (id, look) in late {
            self.lanes.orders.push(Order::Forget { id });
            self.lanes.reachable.remove(&id);
            self.shown.push((look.then, id, Err(Errno::FAULT)));
        }
        self.lanes.expire(now);
        self.failures.append(&mut self.lanes.dead);
        let missed = std::mem::take(&mut self.lanes.missed);
        ping |= !missed.is_empty();
        for payer in missed {
            let name = PayerName(payer);
            tracing::debug!("memory of a client of {name} does not answer and is not waited for");
        }
        // Threads of the process may block in a client's memory; its first thread may not.
        if ping && self.pinged.is_none() && self.socket.is_some() {
            self.pinged = Some(now);
            self.lanes.orders.push(Order::Ping);
        }
    }

    fn take(&mut self, report: Report) {
        self.is_new = false;
        match report {
            Report::Looked { id, seen } => {
                // An order that expired was forgotten.
                if let Some(look) = self.looks.remove(&id) {
                    self.shown.push((look.then, id, seen));
                }
            }
            Report::Opened { id, identity } => {
                let Some(opening) = self.opens.remove(&id) else { return };
                let same = identity.is_ok_and(|identity| *identity == *opening.identity);
                if !same {
                    self.failures.push(id);
                    self.lanes.orders.push(Order::Forget { id });
                    self.lanes.reachable.remove(&id);
                }
                self.lanes.opened(opening.lane);
            }
            Report::Written { batch, done } => self.lanes.written(batch, &done, Instant::now()),
            Report::Pong => self.pinged = None,
        }
    }

    /// Discards the state of a process that ended.
    fn lose(&mut self) {
        (self.socket, self.pinged) = (None, None);
        self.outbox.clear();
        self.lanes.orders.clear();
        self.generation += 1;
        self.opens.clear();
        self.lanes.reset();
    }
}

#[cfg(test)]
mod tests;
