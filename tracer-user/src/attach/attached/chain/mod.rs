//! Program chains: all consumers of a tracepoint in this process share one link.
//!
//! A second program at a tracepoint costs as much as the first one: the kernel's own dispatch and two mispredicted
//! returns. Behind one link, a consumer costs a call and a tail call. Consumers are the events of several instances,
//! histograms, relays, and the gates of event probes.
//!
//! Where the kernel preempts programs, a raw tracepoint has two links with a gate each (`gate_pair.rs`).
//!
//! The link's gate tail-calls the tracepoint's **entry** of an array. With one consumer the entry is its program, so
//! a single consumer costs what it costs without chains. With more it is a **sequence**, a generated program with a
//! function for each consumer:
//!
//! ```text
//! gate ──> entry ──> sequence ── call f0 ──> tail call place 0 (returns to the sequence)
//!                                call f1 ──> tail call place 1
//!                                ...      tail call the last place
//! ```
//!
//! A tail call in a function ends only that function. So each consumer returns to the sequence wherever it ends, and
//! the next consumer runs. The programs of consumers need no change for this, and events with the same code still
//! share one. An empty place is skipped.
//!
//! - A consumer's program is replaced, parked or resumed by one word: its place, or the entry if it is alone.
//! - A place or entry without a consumer's program calls an empty program. A gate with a constant entry jumps there
//!   directly. Before the kernel removes such a jump, it waits for all CPUs (`bpf_arch_poke_desc_update()`). It
//!   changes the jump's target without waiting.
//! - When a consumer joins or leaves, a new sequence is loaded and set at the entry, by one word. A hit runs the old
//!   list or the new one.
//! - Free places are reused only after all new ones, because hits on another CPU may still run an old sequence.
//! - Programs of perf tracepoints take slot and kind from the link's attach cookie. So a perf tracepoint has one
//!   slot, which is the same in all sessions. These slots are taken from the top of the sessions' rows, the others
//!   from the bottom.
//! - Consumers run in the kernel's order (`order.rs`).
//! - Programs are loaded and places set under one lock. Before Linux 6.7, one thread must not set an entry while
//!   another loads a program that jumps to entries of the array (`prog_array_map_poke_run()`).
//! - The kernel protects the gate from running inside itself, and with it all consumers. All consumers miss a hit for
//!   which the kernel does not run the gate.
//!
//! Tail calls in functions need Linux 5.10 on x86-64, and 6.0 on arm64. Where the kernel refuses a sequence, and past
//! [`CONSUMERS_MAX`], a consumer gets a link of its own.

mod order;
mod point;
mod sequence;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use self::point::{Consumer, Point};
pub(crate) use self::{
    order::{Rank, Sort},
    point::{LeftPoint, close_together},
};
use super::{
    dispatch_table::{DispatchTable, DispatchTables},
    gate_pair::GatePairs,
};
use crate::{
    attach::{
        AttachPoint, Cause, Context,
        close::{
            guard::{self, Guard},
            perf_event::PerfEvent,
            unlink,
        },
        hooks::{
            call_pages::{self, CallPages},
            syscalls::Hooked,
        },
        slots::{SlotLease, Slots},
    },
    event::irqs_off,
    sys::bpf::prog::Prog,
};

/// Largest number of consumers of a link. The kernel follows at most 33 tail calls at a hit; a consumer takes one,
/// and one more if it has a gate or a dispatcher of its own.
const CONSUMERS_MAX: usize = 14;
/// Places of the consumers of all sessions in an array of programs: enough for all events of twenty instances. A place
/// takes eight bytes in the kernel.
const PLACES: u32 = 32_768;

/// The chains of a process. Sessions that share them share links.
#[derive(Clone, Debug)]
pub struct Chains(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The entries of perf tracepoints, which are also rows of counters.
    perf_slots: Slots,
    /// The entries of raw tracepoints.
    raw_slots: Slots,
    tables: DispatchTables,
    places: Places,
    points: HashMap<PointKey, Vec<Point>>,
    /// Number of consumers created so far.
    joined: u64,
    /// Number of sessions created so far.
    sessions: u64,
    /// As in [`Context`](crate::attach::Context).
    pages: Option<Arc<CallPages>>,
    /// What the pairs of gates share. `None` where raw tracepoints have one gate.
    pairs: Option<GatePairs>,
    /// The slots of the entries of system calls. Only those use them, because a thread that waits in `pages` may run a
    /// gate long after it was closed.
    call_leases: Vec<Arc<SlotLease>>,
}

/// The key of a tracepoint's points.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PointKey {
    Perf(u16),
    Raw(String),
}

impl PointKey {
    fn of(attach_point: &AttachPoint) -> Option<Self> {
        match attach_point {
            AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id) => Some(Self::Perf(*id)),
            AttachPoint::RawTracepoint(name) => Some(Self::Raw(name.clone())),
            _ => None,
        }
    }
}

/// The places of consumers that are not in use.
#[derive(Debug)]
struct Places {
    first: u32,
    next: u32,
    /// In the order in which they were left.
    left: VecDeque<u32>,
}

impl Places {
    fn take(&mut self) -> Result<u32, Cause> {
        if self.next < self.first + PLACES {
            self.next += 1;
            return Ok(self.next - 1);
        }
        self.left.pop_front().ok_or(Cause::TooMany(PLACES))
    }
}

/// A consumer of a tracepoint. It leaves the chain when this is dropped.
#[derive(Debug)]
pub(crate) struct ChainPlace {
    chains: Chains,
    attach_point: AttachPoint,
    key: PointKey,
    number: u64,
    lease: Arc<SlotLease>,
    /// The fewest missed hits of the gate that were seen since the consumer joined. A hit between two gates may have
    /// counted then.
    missed_before: AtomicU64,
    /// Where the missed hits are added when the consumer leaves.
    ended: Arc<AtomicU64>,
}

impl Chains {
    /// No tracepoint has consumers yet. `rows` and `cpus` as in [`Options`](crate::attach::Options) of
    /// the sessions, `rows` for the slots.
    pub fn new(rows: u32, cpus: u32, context: &Context) -> Self {
        Self(Arc::new(Mutex::new(State {
            perf_slots: Slots::from_the_top(rows),
            raw_slots: Slots::longest_unused(rows),
            tables: DispatchTables::new(rows + PLACES),
            places: Places { first: rows, next: rows, left: VecDeque::new() },
            points: HashMap::new(),
            joined: 0,
            sessions: 0,
            pages: context.pages.clone(),
            pairs: context.second_gates(cpus).map(GatePairs::new),
            call_leases: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether consumers at this attach point can share a link.
    pub fn takes(attach_point: &AttachPoint) -> bool {
        PointKey::of(attach_point).is_some()
    }

    /// Whether the raw tracepoint of a hook has two gates, because the kernel preempts programs there.
    pub(crate) fn has_two_gates(&self, attach_point: &AttachPoint) -> bool {
        (attach_point.is_call() || is_preempted(attach_point)) && self.lock().pairs.is_some()
    }

    /// Whether a tracepoint is linked already, so that a further consumer needs no perf event.
    pub fn is_linked(&self, attach_point: &AttachPoint) -> bool {
        let Some(key) = PointKey::of(attach_point) else { return false };
        self.lock().points.get(&key).is_some_and(|points| {
            points.iter().any(|point| point.is_linked() && point.consumers() < CONSUMERS_MAX)
        })
    }

    /// Adds a consumer without a program. A new point is not linked yet.
    pub(crate) fn join(
        &self,
        attach_point: &AttachPoint,
        rank: Rank,
        ended: &Arc<AtomicU64>,
    ) -> Result<ChainPlace, Cause> {
        let key = PointKey::of(attach_point).ok_or(Cause::Misplaced("only tracepoints have chains"))?;
        let mut state = self.lock();
        let State { perf_slots, raw_slots, tables, places, points, joined, call_leases, .. } = &mut *state;
        let table = tables.table(attach_point)?;
        let place = places.take()?;
        *joined += 1;
        let mut consumer = Consumer::new(*joined, rank, table.entry_at(place));
        let chain_place = |lease: &Arc<SlotLease>, missed_before, number| ChainPlace {
            chains: self.clone(),
            attach_point: attach_point.clone(),
            key: key.clone(),
            number,
            lease: Arc::clone(lease),
            missed_before: AtomicU64::new(missed_before),
            ended: Arc::clone(ended),
        };
        let points = points.entry(key.clone()).or_default();
        for point in points.iter_mut().filter(|point| point.consumers() < CONSUMERS_MAX) {
            match point.add(consumer, table.array()) {
                Ok(()) => return Ok(chain_place(point.lease(), point.missed(), *joined)),
                Err((cause, refused)) => {
                    tracing::debug!("a link of its own at {}: {cause}", attach_point.name());
                    consumer = refused;
                }
            }
        }
        let slots = if attach_point.is_tracepoint() { perf_slots } else { raw_slots };
        let is_call = key == PointKey::Raw(call_pages::TRACEPOINT.to_owned());
        let lease = if is_call { call_lease(slots, call_leases) } else { slots.take() };
        let lease = lease.ok_or_else(|| Cause::TooMany(slots.capacity()));
        match lease.and_then(|lease| Point::new(table, lease, consumer)) {
            Ok(point) => {
                let place = chain_place(point.lease(), 0, *joined);
                points.push(point);
                Ok(place)
            }
            Err(cause) => {
                places.left.push_back(place);
                Err(cause)
            }
        }
    }

    /// A new number for a session, which identifies its consumers.
    pub(crate) fn next_session(&self) -> u64 {
        let mut state = self.lock();
        state.sessions += 1;
        state.sessions
    }

    /// Hits for which the kernel did not run a gate that perf tracepoints share.
    pub(crate) fn missed(&self) -> u64 {
        self.lock().tables.missed()
    }

    /// Passes to the guard process the perf tracepoints that it does not hold yet.
    pub(crate) fn guard(&self, guard: &Arc<Guard>) {
        guard::guard(guard, self.lock().points.values_mut().flatten().filter_map(Point::unguarded));
    }
}

/// Whether programs at a raw tracepoint may be preempted, on a kernel that does so.
fn is_preempted(attach_point: &AttachPoint) -> bool {
    matches!(attach_point, AttachPoint::RawTracepoint(name) if !irqs_off::holds_at_tracepoint(name))
}

/// A slot for the entries of system calls: one of `known` that is not in use, or a new one, which joins them.
fn call_lease(slots: &Slots, known: &mut Vec<Arc<SlotLease>>) -> Option<Arc<SlotLease>> {
    // Otherwise a point has the lease too.
    if let Some(unused) = known.iter().find(|lease| Arc::strong_count(lease) == 1) {
        return Some(Arc::clone(unused));
    }
    let new = slots.take()?;
    known.push(Arc::clone(&new));
    Some(new)
}

impl ChainPlace {
    /// The slot of the point. At a perf tracepoint, programs take it from the attach cookie.
    pub(crate) fn lease(&self) -> &Arc<SlotLease> {
        &self.lease
    }

    /// Sets the program, in place of the old one.
    pub(crate) fn set(&self, program: Arc<Prog>) -> Result<(), Cause> {
        self.with_point(|point, table| point.set(self.number, Some(program), table.array()))
    }

    /// Removes the program: it does not run at hits from here on.
    pub(crate) fn clear(&self) {
        // The empty program is set in its place, or the entry is cleared, which does not fail.
        let _ = self.with_point(|point, table| point.set(self.number, None, table.array()));
    }

    fn with_point<T>(
        &self,
        act: impl FnOnce(&mut Point, &mut DispatchTable) -> Result<T, Cause>,
    ) -> Result<T, Cause> {
        let mut state = self.chains.lock();
        let State { tables, points, .. } = &mut *state;
        let points = points.get_mut(&self.key).map_or(&mut [][..], Vec::as_mut_slice);
        let point = points.iter_mut().find(|point| point.slot() == self.lease.slot());
        act(point.ok_or(Cause::Misplaced("a consumer that left"))?, tables.table(&self.attach_point)?)
    }

    /// Links the point, if it is not linked yet. `opened` is its perf event, if it is open already. With
    /// `shares_gate`, perf tracepoints share a gate: a hit costs 10 ns more, and no gate is loaded for each of many
    /// events.
    pub(crate) fn connect(
        &self,
        opened: Option<Result<PerfEvent, Cause>>,
        shares_gate: bool,
    ) -> Result<(), Cause> {
        let (pages, pairs) = {
            let state = self.chains.lock();
            (state.pages.clone(), state.pairs.clone().filter(|_| is_preempted(&self.attach_point)))
        };
        self.with_point(|point, table| {
            if point.is_linked() {
                return Ok(());
            }
            match &self.attach_point {
                AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id) => {
                    point.connect_perf(*id, table, opened, shares_gate)
                }
                AttachPoint::RawTracepoint(name) => {
                    point.connect_raw(name, table, pairs.as_ref(), pages.as_deref())
                }
                _ => Err(Cause::Misplaced("only tracepoints have chains")),
            }
        })
    }

    /// Hits for which the kernel did not run the gate since this consumer joined. 0 if the point shares its gate.
    pub(crate) fn missed(&self) -> u64 {
        self.with_point(|point, _| Ok(self.missed_of(point))).unwrap_or(0)
    }

    fn missed_of(&self, point: &Point) -> u64 {
        let missed = point.missed();
        missed - self.missed_before.fetch_min(missed, Ordering::Relaxed).min(missed)
    }

    /// Leaves the chain. If this was the last consumer, returns the link for the caller to close.
    pub(crate) fn leave(&self) -> Option<LeftPoint> {
        let mut state = self.chains.lock();
        let State { tables, places, points, .. } = &mut *state;
        let table = tables.table(&self.attach_point).ok()?;
        let all = points.get_mut(&self.key)?;
        let at = all.iter().position(|point| point.slot() == self.lease.slot())?;
        let point = all.get_mut(at)?;
        let missed = self.missed_of(point);
        let (free, was_last) = point.remove(self.number, table.array())?;
        places.left.extend(free);
        self.ended.fetch_add(missed, Ordering::Relaxed);
        if !was_last {
            return None;
        }
        let point = all.swap_remove(at);
        if all.is_empty() {
            points.remove(&self.key);
        }
        Some(point.into_left())
    }
}

impl Hooked for ChainPlace {
    fn missed(&self) -> u64 {
        Self::missed(self)
    }
}

impl Drop for ChainPlace {
    fn drop(&mut self) {
        if let Some(left) = self.leave() {
            unlink::close_later(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_were_left_are_used_last() {
        let mut places = Places { first: 10, next: 10, left: VecDeque::new() };
        assert_eq!(places.take().unwrap(), 10);
        places.left.push_back(10);
        assert_eq!(places.take().unwrap(), 11);
        places.next = places.first + PLACES;
        assert_eq!(places.take().unwrap(), 10);
        assert!(places.take().is_err());
    }

    #[test]
    fn slots_of_system_calls_are_used_for_nothing_else() {
        let (slots, mut known) = (Slots::new(8), Vec::new());
        let first = call_lease(&slots, &mut known).unwrap();
        let second = call_lease(&slots, &mut known).unwrap();
        let of_calls = [first.slot(), second.slot()];
        assert_ne!(of_calls[0], of_calls[1]);
        drop(first);
        let others: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(others.len(), 6);
        assert!(others.iter().all(|other| !of_calls.contains(&other.slot())));
        assert_eq!(call_lease(&slots, &mut known).unwrap().slot(), of_calls[0]);
    }
}
