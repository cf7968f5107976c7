//! Program chains: all consumers of a tracepoint in this process share one link.
//!
//! A second program at a tracepoint costs as much as the first one: the kernel's own dispatch and two mispredicted returns. Behind
//! one link, a consumer costs a call and a tail call. Consumers are the events of several instances, histograms, relays, and the
//! gates of event probes.
//!
//! The link's gate tail-calls the tracepoint's **entry** of an array. With one consumer the entry is its program, so a single
//! consumer costs what it costs without chains. With more it is a **sequence**, a generated program with a function for each
//! consumer:
//!
//! ```text
//! gate ──> entry ──> sequence ── call f0 ──> tail call place 0 (returns to the sequence)
//!                                call f1 ──> tail call place 1
//!                                ...      tail call the last place
//! ```
//!
//! A tail call in a function ends only that function, so each consumer returns wherever it stops, and the next one runs all the same.
//! The programs of consumers need no change for this, and events with the same code still share one. An empty place is skipped.
//!
//! - A consumer's program is replaced, parked or resumed by one word: its place, or the entry if it is alone.
//! - When consumers come or go, a new sequence is loaded and set at the entry, by one word. A hit runs the old list or the new one.
//! - A place that was left is used again last, because hits on another CPU may still run an old sequence.
//! - Programs of perf tracepoints take slot and kind from the link's attach cookie. So a perf tracepoint has one slot, which is the same
//!   in all sessions. These slots are taken from the top of the sessions' rows, the others from the bottom.
//! - The kernel protects the gate from running inside itself, and with it all consumers. A hit that it does not run is missed for
//!   all of them.
//!
//! Tail calls in functions need Linux 5.10 on x86-64, and 6.0 on arm64. Where the kernel refuses a sequence, and past
//! [`CONSUMERS_MAX`], a consumer gets a link of its own.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    dispatch_table::DispatchTables,
    entry::{Entry, OwnGate},
};
use crate::{
    attach::{
        AttachPoint, Cause,
        close::{
            guard::{self, Guard, Guarded, Kept},
            perf_event::PerfEvent,
            unlink,
        },
        hooks::tracepoint,
        slots::{SlotLease, Slots},
    },
    code::{
        asm::{self, Alu, Assembler, Function, Helper, Insn, MapRef, Reg},
        join,
    },
    sys::bpf::prog::{Prog, ProgKind},
};

/// Largest number of consumers of a link. The kernel follows at most 33 tail calls at a hit; a consumer takes one, and one more
/// if it has a gate of its own.
const CONSUMERS_MAX: usize = 14;
/// Places of consumers in an array of programs.
const PLACES: u32 = 8192;
/// Name of a sequence.
const NAME: &str = "tracer_sequence";

/// The chains of a process. Sessions that share them share links.
#[derive(Clone, Debug)]
pub struct Chains(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The slots of points: their entries, and at perf tracepoints the rows of counters.
    slots: Slots,
    tables: DispatchTables,
    places: Places,
    points: HashMap<PointKey, Vec<Point>>,
    /// Consumers that there were so far.
    joined: u64,
    /// Sessions that there were so far.
    sessions: u64,
}

/// A tracepoint, by which points are found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PointKey {
    Perf(u16),
    Raw(String),
}

impl PointKey {
    fn of(via: &AttachPoint) -> Option<Self> {
        match via {
            AttachPoint::Tracepoint(id) => Some(Self::Perf(*id)),
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

/// A tracepoint with its link and consumers.
#[derive(Debug)]
struct Point {
    kind: ProgKind,
    link: Option<PointLink>,
    /// The gate, unless it is one that perf tracepoints share.
    gate: Option<OwnGate>,
    entry: Entry,
    consumers: Vec<Consumer>,
    lease: Arc<SlotLease>,
}

#[derive(Debug)]
enum PointLink {
    Perf { link: OwnedFd, event: OwnedFd, kept: Option<Kept> },
    Raw { _link: OwnedFd },
}

#[derive(Debug)]
struct Consumer {
    number: u64,
    rank: Rank,
    place: Entry,
    /// `None` while the consumer is parked.
    program: Option<Arc<Prog>>,
}

/// The order of consumers: by session, in each session events before histograms, and then in the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::attach) struct Rank {
    pub(in crate::attach) session: u64,
    pub(in crate::attach) is_hist: bool,
}

/// A consumer of a tracepoint. It leaves the chain when this is dropped.
#[derive(Debug)]
pub(in crate::attach) struct ChainPlace {
    chains: Chains,
    via: AttachPoint,
    key: PointKey,
    number: u64,
    lease: Arc<SlotLease>,
    /// Missed hits of the gate when the consumer joined.
    missed_before: u64,
    /// Where the missed hits are added when the consumer leaves.
    ended: Arc<AtomicU64>,
}

/// What closes when the last consumer of a tracepoint left. The slot is free last.
#[derive(Debug)]
pub(in crate::attach) struct LeftPoint {
    link: Option<PointLink>,
    _gate: Option<OwnGate>,
    _lease: Arc<SlotLease>,
}

impl LeftPoint {
    /// The link and the perf event, which the caller closes in this order.
    pub(in crate::attach) fn into_perf(mut self) -> Option<[OwnedFd; 2]> {
        match self.link.take() {
            Some(PointLink::Perf { link, event, .. }) => Some([link, event]),
            _ => None,
        }
    }
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

/// The program that runs the programs at these places of an array, in this order.
fn sequence(places: &[u32], array: BorrowedFd<'_>) -> Result<Vec<Insn>, Cause> {
    let tail_call = |asm: &mut Assembler, place: u32| {
        asm.map(Reg::R2, MapRef::Programs);
        asm.alu32(Alu::Mov, Reg::R3, place.cast_signed());
        asm.call(Helper::TailCall);
        asm.mov(Reg::R0, 0);
        asm.exit();
    };
    let Some((last, others)) = places.split_last() else { return Ok(Vec::new()) };
    let name = |place: u32| format!("place {place}");
    let mut asm = Assembler::new();
    asm.mov(Reg::R6, Reg::R1);
    for place in others {
        asm.call_function(name(*place));
        asm.mov(Reg::R1, Reg::R6);
    }
    tail_call(&mut asm, *last);
    let mut functions: Vec<Function> = vec![asm.finish("sequence")];
    for place in others {
        let mut asm = Assembler::new();
        tail_call(&mut asm, *place);
        functions.push(asm.finish(name(*place)));
    }
    for function in &mut functions {
        asm::bind(&mut function.insns, |map| (map == MapRef::Programs).then_some(array.as_raw_fd()))
            .map_err(|map| Cause::NoHook(format!("there is no map {map}")))?;
    }
    Ok(join::join(&functions, &[]))
}

impl Chains {
    /// No tracepoint has consumers yet. `rows` as in [`Options::slots`](crate::attach::Options::slots) of the sessions.
    pub fn new(rows: u32) -> Self {
        Self(Arc::new(Mutex::new(State {
            slots: Slots::from_the_top(rows),
            tables: DispatchTables::new(rows + PLACES),
            places: Places { first: rows, next: rows, left: VecDeque::new() },
            points: HashMap::new(),
            joined: 0,
            sessions: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether consumers at this attach point can share a link.
    pub fn takes(via: &AttachPoint) -> bool {
        PointKey::of(via).is_some()
    }

    /// Whether a tracepoint is linked already, so that a further consumer needs no perf event.
    pub fn is_linked(&self, via: &AttachPoint) -> bool {
        let Some(key) = PointKey::of(via) else { return false };
        self.lock().points.get(&key).is_some_and(|points| {
            points.iter().any(|point| point.link.is_some() && point.consumers.len() < CONSUMERS_MAX)
        })
    }

    /// Adds a consumer without a program, after those of a lower or the same rank. A new point is not linked yet.
    pub(in crate::attach) fn join(
        &self,
        via: &AttachPoint,
        rank: Rank,
        ended: &Arc<AtomicU64>,
    ) -> Result<ChainPlace, Cause> {
        let key = PointKey::of(via).ok_or(Cause::Misplaced("only tracepoints have chains"))?;
        let mut state = self.lock();
        let State { slots, tables, places, points, joined, .. } = &mut *state;
        let table = tables.table(via)?;
        let place = places.take()?;
        *joined += 1;
        let mut consumer =
            Some(Consumer { number: *joined, rank, place: table.entry_at(place), program: None });
        let points = points.entry(key.clone()).or_default();
        let mut found = None;
        for point in points.iter_mut().filter(|point| point.consumers.len() < CONSUMERS_MAX) {
            let Some(new) = consumer.take() else { break };
            match point.add(new, table.array()) {
                Ok(()) => {
                    found = Some((Arc::clone(&point.lease), point.missed()));
                    break;
                }
                Err((cause, new)) => {
                    tracing::debug!("a link of its own at {}: {cause}", via.name());
                    consumer = Some(new);
                }
            }
        }
        if let Some(consumer) = consumer {
            let Some(lease) = slots.take() else {
                places.left.push_back(place);
                return Err(Cause::TooMany(slots.capacity()));
            };
            let entry = table.entry(lease.slot());
            let consumers = vec![consumer];
            points.push(Point {
                kind: via.kind(),
                link: None,
                gate: None,
                entry,
                consumers,
                lease: Arc::clone(&lease),
            });
            found = Some((lease, 0));
        }
        let (lease, missed_before) = found.ok_or(Cause::Misplaced("a consumer that just joined"))?;
        Ok(ChainPlace {
            chains: self.clone(),
            via: via.clone(),
            key,
            number: *joined,
            lease,
            missed_before,
            ended: Arc::clone(ended),
        })
    }

    /// A number for a session, by which its consumers are ordered.
    pub(in crate::attach) fn next_session(&self) -> u64 {
        let mut state = self.lock();
        state.sessions += 1;
        state.sessions
    }

    /// Hits for which the kernel did not run a gate that perf tracepoints share.
    pub(in crate::attach) fn missed(&self) -> u64 {
        self.lock().tables.missed()
    }

    /// Has the guard process hold the perf tracepoints too that it does not hold yet.
    pub(in crate::attach) fn guard(&self, guard: &Arc<Guard>) {
        guard::guard(guard, self.lock().points.values_mut().flatten());
    }
}

impl Point {
    /// Adds a consumer. Gives it back if the kernel refuses the sequence; the point then stays as it was.
    fn add(&mut self, consumer: Consumer, array: BorrowedFd<'_>) -> Result<(), (Cause, Consumer)> {
        let at = self.consumers.partition_point(|other| other.rank <= consumer.rank);
        self.consumers.insert(at, consumer);
        match self.arrange(array) {
            Ok(()) => Ok(()),
            Err(cause) => Err((cause, self.consumers.remove(at))),
        }
    }

    /// Sets what the entry calls: the program of the only consumer, or a sequence.
    fn arrange(&mut self, array: BorrowedFd<'_>) -> Result<(), Cause> {
        if let [only] = &*self.consumers {
            match &only.program {
                Some(program) => self.entry.set(program)?,
                None => self.entry.clear(),
            }
            return Ok(());
        }
        // Until the sequence is at the entry, no hit looks at the places.
        for Consumer { place, program, .. } in &mut self.consumers {
            match program {
                Some(program) => place.set(program)?,
                None => place.clear(),
            }
        }
        let places: Vec<u32> = self.consumers.iter().map(|consumer| consumer.place.index()).collect();
        let insns = sequence(&places, array)?;
        let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
        let kind = self.kind;
        let sequence = Prog::load(kind, &bytes, NAME).map_err(|error| Cause::Load(kind, error))?;
        self.entry.set(&sequence)
    }

    /// Sets or clears the program of a consumer.
    fn set(&mut self, number: u64, program: Option<Arc<Prog>>) -> Result<(), Cause> {
        let is_alone = self.consumers.len() == 1;
        let consumer = self.consumers.iter_mut().find(|consumer| consumer.number == number);
        let consumer = consumer.ok_or(Cause::Misplaced("a consumer that left"))?;
        let place = if is_alone { &mut self.entry } else { &mut consumer.place };
        match &program {
            Some(program) => place.set(program)?,
            None => place.clear(),
        }
        consumer.program = program;
        Ok(())
    }

    fn missed(&self) -> u64 {
        self.gate.as_ref().map_or(0, OwnGate::missed)
    }
}

impl Guarded for Point {
    fn unguarded(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.link {
            Some(PointLink::Perf { link, event, kept: None }) => Some([link.as_fd(), event.as_fd()]),
            _ => None,
        }
    }

    fn set_kept(&mut self, by: Kept) {
        if let Some(PointLink::Perf { kept, .. }) = &mut self.link {
            *kept = Some(by);
        }
    }
}

impl ChainPlace {
    /// The slot of the point. At a perf tracepoint, programs take it from the attach cookie.
    pub(in crate::attach) fn lease(&self) -> &Arc<SlotLease> {
        &self.lease
    }

    /// Sets the program, in place of the old one.
    pub(in crate::attach) fn set(&self, program: Arc<Prog>) -> Result<(), Cause> {
        self.with_point(|point| point.set(self.number, Some(program)))
    }

    /// Removes the program: it does not run at hits from here on.
    pub(in crate::attach) fn clear(&self) {
        // Clearing an entry does not fail.
        let _ = self.with_point(|point| point.set(self.number, None));
    }

    fn with_point<T>(&self, act: impl FnOnce(&mut Point) -> Result<T, Cause>) -> Result<T, Cause> {
        let mut state = self.chains.lock();
        let points = state.points.get_mut(&self.key).map_or(&mut [][..], Vec::as_mut_slice);
        let point = points.iter_mut().find(|point| point.lease.slot() == self.lease.slot());
        act(point.ok_or(Cause::Misplaced("a consumer that left"))?)
    }

    /// Links the point, if it is not linked yet. `opened` is its perf event, if it is open already. With `shares_gate`, perf
    /// tracepoints share a gate: a hit costs 10 ns more, and no gate is loaded for each of many events.
    pub(in crate::attach) fn connect(
        &self,
        opened: Option<Result<PerfEvent, Cause>>,
        shares_gate: bool,
    ) -> Result<(), Cause> {
        let mut state = self.chains.lock();
        let State { tables, points, .. } = &mut *state;
        let points = points.get_mut(&self.key).map_or(&mut [][..], Vec::as_mut_slice);
        let point = points.iter_mut().find(|point| point.lease.slot() == self.lease.slot());
        let point = point.ok_or(Cause::Misplaced("a consumer that left"))?;
        if point.link.is_some() {
            return Ok(());
        }
        let table = tables.table(&self.via)?;
        point.link = Some(match &self.via {
            AttachPoint::Tracepoint(id) => {
                let event = opened.unwrap_or_else(|| tracepoint::open(*id))?;
                let event = event.take().map_err(tracepoint::not_opened)?;
                let cookie = tracer_abi::cookie(self.lease.slot().get(), *id);
                let link = if shares_gate {
                    table.link_perf(cookie, event.as_fd())?
                } else {
                    let gate = table.own_gate(self.lease.slot())?;
                    let link = gate.program().link_perf_event(event.as_fd(), cookie);
                    point.gate = Some(gate);
                    link.map_err(|errno| Cause::Hook("link to the perf event (5.15 and later)", errno))?
                };
                PointLink::Perf { link, event, kept: None }
            }
            AttachPoint::RawTracepoint(name) => {
                let gate = table.own_gate(self.lease.slot())?;
                let link = gate.program().attach_raw_tracepoint(name);
                point.gate = Some(gate);
                PointLink::Raw { _link: link.map_err(|errno| Cause::Hook("raw tracepoint", errno))? }
            }
            _ => return Err(Cause::Misplaced("only tracepoints have chains")),
        });
        Ok(())
    }

    /// Hits that the kernel did not run the gate for, if the point has a gate of its own.
    pub(in crate::attach) fn missed(&self) -> u64 {
        let missed = self.with_point(|point| Ok(point.missed())).unwrap_or(0);
        missed.saturating_sub(self.missed_before)
    }

    /// Leaves the chain. Returns what the caller has to close, if this was the last consumer.
    pub(in crate::attach) fn leave(&self) -> Option<LeftPoint> {
        let mut state = self.chains.lock();
        let State { tables, places, points, .. } = &mut *state;
        let all = points.get_mut(&self.key)?;
        let at = all.iter().position(|point| point.lease.slot() == self.lease.slot())?;
        let point = all.get_mut(at)?;
        let consumer = point.consumers.iter().position(|consumer| consumer.number == self.number)?;
        let mut consumer = point.consumers.remove(consumer);
        let missed = point.missed().saturating_sub(self.missed_before);
        self.ended.fetch_add(missed, Ordering::Relaxed);
        if point.consumers.is_empty() {
            let mut point = all.swap_remove(at);
            if all.is_empty() {
                points.remove(&self.key);
            }
            point.entry.clear();
            consumer.place.clear();
            places.left.push_back(consumer.place.index());
            return Some(LeftPoint { link: point.link, _gate: point.gate, _lease: point.lease });
        }
        consumer.place.clear();
        // If the kernel refuses a sequence, the old one stays, with an empty place that stays unused.
        match tables.table(&self.via).and_then(|table| point.arrange(table.array())) {
            Ok(()) => places.left.push_back(consumer.place.index()),
            Err(cause) => tracing::warn!("a place at {} stays empty: {cause}", self.via.name()),
        }
        None
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
    use crate::code::listing;

    #[test]
    fn a_sequence_calls_each_place_and_ends_with_the_last() {
        let insns = sequence(&[7, 9], rustix::stdio::stdin()).unwrap();
        insta::assert_snapshot!(listing::program(&insns), @r"
         0  r6 = r1
         1  call function 1
         2  r1 = r6
         3  r2 = map 0
         5  w3 = 9
         6  call bpf_tail_call
         7  r0 = 0
         8  exit
           ; function 1
         9  r2 = map 0
        11  w3 = 7
        12  call bpf_tail_call
        13  r0 = 0
        14  exit
        ");
    }

    #[test]
    fn events_come_before_histograms_of_their_session() {
        let rank = |session, is_hist| Rank { session, is_hist };
        assert!(rank(1, false) < rank(1, true) && rank(1, true) < rank(2, false));
    }

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
}
