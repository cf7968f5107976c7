//! Queues of writes into clients' memory, in order: one lane for each process.
//!
//! A lane has one message in progress at a time. Meanwhile it stores the newest write for each address, and sends
//! those next. So a program sees the last state last, and memory that does not answer costs one entry for each
//! address, however often events change.
//!
//! A change of events waits for all lanes until one deadline. A lane that misses it is stuck: later changes do not
//! wait for it until it has answered and some time has passed, which doubles with each miss. A client's request waits
//! until its own deadline. Then its write is cancelled, and the request fails with `ETIMEDOUT`.
//!
//! This module neither reads the clock nor sends anything: it returns the orders to send and the closures to call.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::message::{Done, OPS_MAX, Op, Order};

/// Time during which changes do not wait for a lane that has answered again: after its first miss, and the maximum.
const DISTRUST: Duration = Duration::from_secs(2);
const DISTRUST_MAX: Duration = Duration::from_secs(300);

/// Called with the result of a write.
pub type Then = Box<dyn FnOnce(Result<(), Errno>) + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Change(u64),
    Request(u64),
}

#[derive(Debug)]
struct Write {
    op: Op,
    waiters: Vec<Waiter>,
}

#[derive(Debug, Default)]
struct Lane {
    payer: u32,
    /// Number of address spaces that are being opened.
    opening: usize,
    running: Option<(u64, Vec<Write>)>,
    /// By address space and key.
    pending: BTreeMap<(u64, u64), Write>,
    stuck: bool,
    /// Number of missed deadlines.
    misses: u32,
    distrusted: Option<Instant>,
    closed: bool,
}

impl Lane {
    fn miss(&mut self) {
        if !self.stuck {
            self.stuck = true;
            self.misses = self.misses.saturating_add(1);
        }
    }

    fn writes(&mut self) -> impl Iterator<Item = &mut Write> {
        let running = self.running.iter_mut().flat_map(|(_, writes)| writes);
        running.chain(self.pending.values_mut())
    }
}

struct Change {
    left: usize,
    deadline: Instant,
    expired: bool,
    then: Option<Then>,
}

struct Request {
    deadline: Instant,
    lane: u64,
    space: u64,
    key: u64,
    then: Then,
}

/// All lanes, and the changes and requests that wait for them.
#[derive(Default)]
pub(super) struct Lanes {
    all: HashMap<u64, Lane>,
    batches: HashMap<u64, u64>,
    changes: HashMap<u64, Change>,
    requests: HashMap<u64, Request>,
    next: u64,
    /// Address spaces that the writing process was ordered to open. It reports all others as ended.
    pub(super) reachable: HashSet<u64>,
    /// Orders to send.
    pub(super) orders: Vec<Order>,
    /// Closures to call, with their results.
    pub(super) calls: Vec<(Then, Result<(), Errno>)>,
    /// Address spaces that no process uses any more.
    pub(super) dead: Vec<u64>,
    /// Payers whose lanes became stuck.
    pub(super) missed: BTreeSet<u32>,
}

impl Lanes {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn lane(&mut self, payer: u32) -> u64 {
        let number = self.number();
        self.all.insert(number, Lane { payer, ..Lane::default() });
        number
    }

    /// Ends a lane: writes that were not sent are dropped.
    pub(super) fn close(&mut self, number: u64) {
        let Some(lane) = self.all.get_mut(&number) else { return };
        lane.closed = true;
        let pending = std::mem::take(&mut lane.pending);
        if lane.running.is_none() {
            self.all.remove(&number);
        }
        for write in pending.into_values() {
            self.complete(&write.waiters, Err(Errno::SRCH));
        }
    }

    pub(super) fn is_stuck(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|lane| lane.stuck)
    }

    /// Begins a change, which waits until a deadline.
    pub(super) fn change(&mut self, deadline: Instant) -> u64 {
        let number = self.number();
        self.changes.insert(number, Change { left: 0, deadline, expired: false, then: None });
        number
    }

    /// Sets the closure to call after a change; returns it if the change is already done.
    pub(super) fn then(&mut self, change: u64, then: Then) -> Option<Then> {
        match self.changes.get_mut(&change) {
            Some(change) if change.left > 0 && !change.expired => {
                change.then = Some(then);
                None
            }
            _ => {
                self.changes.remove(&change);
                Some(then)
            }
        }
    }

    /// Forgets a change without a closure.
    pub(super) fn abandon_unless_awaited(&mut self, change: u64) {
        if self.changes.get(&change).is_some_and(|change| change.then.is_none()) {
            self.changes.remove(&change);
        }
    }

    /// Queues a write. A change waits for it only if the lane is neither stuck nor distrusted.
    pub(super) fn write(&mut self, lane: u64, op: Op, change: Option<u64>, now: Instant) {
        let Some(known) = self.all.get(&lane) else { return };
        let trusted = !known.stuck && known.distrusted.is_none_or(|until| until <= now);
        let change = change.filter(|_| trusted);
        let waits = change.and_then(|number| self.changes.get_mut(&number)).filter(|change| !change.expired);
        let waiter = waits.map(|change| change.left += 1).and(change).map(Waiter::Change);
        self.add(lane, op, waiter);
    }

    /// Queues a write for a request, which waits until a deadline.
    pub(super) fn request(&mut self, lane: u64, op: Op, deadline: Instant, then: Then) {
        if !self.all.contains_key(&lane) {
            self.calls.push((then, Err(Errno::SRCH)));
            return;
        }
        let number = self.number();
        self.requests.insert(number, Request { deadline, lane, space: op.space, key: op.key, then });
        self.add(lane, op, Some(Waiter::Request(number)));
    }

    fn add(&mut self, number: u64, op: Op, waiter: Option<Waiter>) {
        let Some(lane) = self.all.get_mut(&number) else { return };
        let place = (op.space, op.key);
        let mut write = Write { op, waiters: Vec::new() };
        if let Some(replaced) = lane.pending.remove(&place) {
            // The words after the bit must still be written.
            if write.op.words.is_empty() {
                write.op.words = replaced.op.words;
            }
            write.waiters = replaced.waiters;
        }
        write.waiters.extend(waiter);
        lane.pending.insert(place, write);
        self.pump(number);
    }

    fn pump(&mut self, number: u64) {
        let Some(lane) = self.all.get_mut(&number) else { return };
        if lane.running.is_some() || lane.opening > 0 || lane.pending.is_empty() {
            return;
        }
        let (mut writes, mut lost) = (Vec::new(), Vec::new());
        while writes.len() < OPS_MAX
            && let Some(((space, _), write)) = lane.pending.pop_first()
        {
            if self.reachable.contains(&space) { writes.push(write) } else { lost.push(write) }
        }
        // These bits are written again, with the state at that time, when their address space is reopened.
        for write in lost {
            self.complete(&write.waiters, Err(Errno::FAULT));
        }
        let batch = self.number();
        let Some(lane) = self.all.get_mut(&number).filter(|_| !writes.is_empty()) else { return };
        let ops = writes.iter().map(|write| write.op.clone()).collect();
        lane.running = Some((batch, writes));
        self.batches.insert(batch, number);
        self.orders.push(Order::Write { batch, payer: lane.payer, ops });
    }

    /// Holds back the writes of a lane while one of its address spaces is being opened.
    pub(super) fn opens(&mut self, lane: u64, space: u64) {
        self.reachable.insert(space);
        if let Some(lane) = self.all.get_mut(&lane) {
            lane.opening += 1;
        }
    }

    /// An address space of a lane was opened, or could not be.
    pub(super) fn opened(&mut self, number: u64) {
        if let Some(lane) = self.all.get_mut(&number) {
            lane.opening = lane.opening.saturating_sub(1);
            self.pump(number);
        }
    }

    pub(super) fn written(&mut self, batch: u64, done: &[Done], now: Instant) {
        let Some(number) = self.batches.remove(&batch) else { return };
        let Some(lane) = self.all.get_mut(&number) else { return };
        if lane.stuck {
            lane.stuck = false;
            let doubled = DISTRUST.saturating_mul(1 << lane.misses.saturating_sub(1).min(10));
            lane.distrusted = Some(now + doubled.min(DISTRUST_MAX));
        }
        let writes = lane.running.take().map_or_else(Vec::new, |(_, writes)| writes);
        if lane.closed {
            self.all.remove(&number);
        }
        for (write, index) in writes.into_iter().zip(0..) {
            let result = done.get(index).map_or(Err(Errno::IO), |Done(result)| *result);
            // A forgotten address space, or one that only a previous process had open, is not known to have ended.
            if result == Err(Errno::SRCH) && self.reachable.contains(&write.op.space) {
                self.dead.push(write.op.space);
            }
            self.complete(&write.waiters, result);
        }
        self.pump(number);
    }

    fn complete(&mut self, waiters: &[Waiter], result: Result<(), Errno>) {
        for waiter in waiters {
            match waiter {
                Waiter::Request(number) => {
                    let request = self.requests.remove(number);
                    self.calls.extend(request.map(|request| (request.then, result)));
                }
                Waiter::Change(number) => {
                    let Some(change) = self.changes.get_mut(number) else { continue };
                    change.left = change.left.saturating_sub(1);
                    if change.left == 0
                        && let Some(then) = change.then.take()
                    {
                        self.changes.remove(number);
                        self.calls.push((then, Ok(())));
                    }
                }
            }
        }
    }

    /// The next deadline of a change or request.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let changes = self.changes.values().filter(|change| !change.expired && change.left > 0);
        let changes = changes.map(|change| change.deadline);
        changes.chain(self.requests.values().map(|request| request.deadline)).min()
    }

    /// Expires changes and requests whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        let mut expired = Vec::new();
        let called = self.changes.extract_if(|number, change| {
            let expires = change.left > 0 && !change.expired && change.deadline <= now;
            if expires {
                change.expired = true;
                expired.push(*number);
            }
            // A change without a closure yet completes when its closure is set.
            expires && change.then.is_some()
        });
        self.calls.extend(called.filter_map(|(_, change)| Some((change.then?, Ok(())))));
        if !expired.is_empty() {
            for lane in self.all.values_mut() {
                let mut missed = false;
                for write in lane.writes() {
                    let before = write.waiters.len();
                    write.waiters.retain(
                        |waiter| !matches!(waiter, Waiter::Change(change) if expired.contains(change)),
                    );
                    missed |= write.waiters.len() < before;
                }
                if missed {
                    lane.miss();
                    self.missed.insert(lane.payer);
                }
            }
        }
        let requests = self.requests.iter().filter(|(_, request)| request.deadline <= now);
        for number in requests.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.give_up(number);
        }
    }

    /// Expires a request. If its write was not performed yet, it is cancelled.
    fn give_up(&mut self, number: u64) {
        let Some(Request { lane, space, key, then, .. }) = self.requests.remove(&number) else { return };
        self.calls.push((then, Err(Errno::TIMEDOUT)));
        let Some(lane) = self.all.get_mut(&lane) else { return };
        lane.miss();
        self.missed.insert(lane.payer);
        let own = |write: &Write| write.op.key == key && write.waiters.contains(&Waiter::Request(number));
        if let Some((batch, writes)) = &lane.running
            && writes.iter().any(own)
        {
            self.orders.push(Order::Cancel { batch: *batch, key });
        }
        if lane.pending.get(&(space, key)).is_some_and(own)
            && let Some(write) = lane.pending.remove(&(space, key))
        {
            self.complete(&write.waiters, Err(Errno::FAULT));
        }
    }

    /// Resets all lanes after the writing process is gone: no write in progress can be relied on.
    pub(super) fn reset(&mut self) {
        self.batches.clear();
        self.reachable.clear();
        let mut lost = Vec::new();
        self.all.retain(|_, lane| {
            let running = lane.running.take().into_iter().flat_map(|(_, writes)| writes);
            lost.extend(running.chain(std::mem::take(&mut lane.pending).into_values()));
            (lane.stuck, lane.opening) = (false, 0);
            !lane.closed
        });
        for write in lost {
            self.complete(&write.waiters, Err(Errno::FAULT));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::message::Bit;
    use super::*;

    fn op(key: u64, on: bool) -> Op {
        Op { space: 1, key, bit: Some(Bit { at: 64, mask: 1, on }), words: Vec::new() }
    }

    /// Lanes with one address space that is open, a lane, and the time.
    fn lanes_of_one() -> (Lanes, u64, Instant) {
        let mut lanes = Lanes { reachable: HashSet::from([1]), ..Lanes::default() };
        let lane = lanes.lane(7);
        (lanes, lane, Instant::now())
    }

    /// The sent batches, each with the state of each key.
    fn sent(lanes: &mut Lanes) -> Vec<(u64, Vec<(u64, bool)>)> {
        let orders = std::mem::take(&mut lanes.orders).into_iter();
        let states = |ops: Vec<Op>| ops.iter().map(|op| (op.key, op.bit.unwrap().on)).collect();
        orders
            .filter_map(|order| match order {
                Order::Write { batch, ops, .. } => Some((batch, states(ops))),
                _ => None,
            })
            .collect()
    }

    fn called(lanes: &mut Lanes) -> usize {
        let calls = std::mem::take(&mut lanes.calls);
        let count = calls.len();
        for (then, result) in calls {
            then(result);
        }
        count
    }

    #[test]
    fn the_newest_state_is_written_last_and_writes_are_merged() {
        let (mut lanes, lane, now) = lanes_of_one();
        lanes.write(lane, op(1, true), None, now);
        let (first, states) = sent(&mut lanes).remove(0);
        assert_eq!(states, [(1, true)]);
        for round in 0..1001 {
            lanes.write(lane, op(1, round % 2 == 1), None, now);
            lanes.write(lane, op(2, round % 2 == 0), None, now);
        }
        assert!(sent(&mut lanes).is_empty(), "one message is under way");
        lanes.written(first, &[Done(Ok(()))], now);
        let (second, states) = sent(&mut lanes).remove(0);
        assert_eq!(states, [(1, false), (2, true)]);
        lanes.written(second, &[Done(Ok(())), Done(Err(Errno::SRCH))], now);
        assert!(sent(&mut lanes).is_empty());
        assert_eq!(lanes.dead, [1]);
        // A later change must not discard the words of a registration.
        lanes.write(lane, op(9, false), None, now);
        let (third, _) = sent(&mut lanes).remove(0);
        lanes.request(lane, Op { words: vec![(8, 5)], ..op(3, false) }, now, Box::new(|_| {}));
        lanes.write(lane, op(3, true), None, now);
        lanes.written(third, &[Done(Ok(()))], now);
        assert!(lanes.orders.iter().any(|order| matches!(order,
            Order::Write { ops, .. } if ops[0].words == [(8, 5)] && ops[0].bit.unwrap().on)));
    }

    #[test]
    fn a_change_waits_only_once_for_a_stuck_lane() {
        let (mut lanes, good, start) = lanes_of_one();
        let (patience, bad) = (Duration::from_millis(100), lanes.lane(8));
        let change = lanes.change(start + patience);
        lanes.write(good, op(1, true), Some(change), start);
        lanes.write(bad, op(2, true), Some(change), start);
        assert!(lanes.then(change, Box::new(|done| assert_eq!(done, Ok(())))).is_none());
        let batches = sent(&mut lanes);
        lanes.written(batches[0].0, &[Done(Ok(()))], start);
        assert_eq!((lanes.calls.len(), lanes.deadline()), (0, Some(start + patience)));
        lanes.expire(start + patience);
        assert_eq!((called(&mut lanes), lanes.is_stuck(bad), lanes.is_stuck(good)), (1, true, false));
        assert_eq!((lanes.deadline(), std::mem::take(&mut lanes.missed)), (None, BTreeSet::from([8])));
        // The next change does not wait for it.
        let next = |lanes: &mut Lanes, now: Instant| {
            let change = lanes.change(now + patience);
            lanes.write(bad, op(2, false), Some(change), now);
            lanes.then(change, Box::new(|_| {})).is_some()
        };
        assert!(next(&mut lanes, start + patience));
        // It answers, and changes wait for it again only after a while.
        let back = start + Duration::from_secs(1);
        lanes.written(batches[1].0, &[Done(Ok(()))], back);
        let (batch, states) = sent(&mut lanes).remove(0);
        assert_eq!((states, lanes.is_stuck(bad)), (vec![(2, false)], false));
        assert!(next(&mut lanes, back));
        lanes.written(batch, &[Done(Ok(()))], back);
        let later = back + DISTRUST;
        assert!(!next(&mut lanes, later));
        // The second time it takes longer.
        lanes.expire(later + patience);
        assert!(lanes.is_stuck(bad));
        let (batch, _) = sent(&mut lanes).remove(0);
        lanes.written(batch, &[Done(Ok(()))], later);
        assert!(next(&mut lanes, later + DISTRUST));
        assert!(!next(&mut lanes, later + 2 * DISTRUST));
    }

    #[test]
    fn an_expired_request_writes_nothing() {
        let (mut lanes, lane, start) = lanes_of_one();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let then = || -> Then {
            let answers = Arc::clone(&answers);
            Box::new(move |answer| answers.lock().unwrap().push(answer))
        };
        let until = start + Duration::from_secs(2);
        lanes.request(lane, op(1, true), until, then());
        lanes.request(lane, op(2, true), until, then());
        let (batch, states) = sent(&mut lanes).remove(0);
        assert_eq!(states, [(1, true)]);
        lanes.expire(until);
        assert_eq!(lanes.orders, [Order::Cancel { batch, key: 1 }]);
        assert_eq!(called(&mut lanes), 2);
        assert_eq!(*answers.lock().unwrap(), [Err(Errno::TIMEDOUT); 2]);
        assert!(lanes.is_stuck(lane));
        lanes.orders.clear();
        lanes.written(batch, &[Done(Err(Errno::CANCELED))], until);
        assert!(sent(&mut lanes).is_empty() && called(&mut lanes) == 0);
        // Requests of a lane that is closed, or whose process ended, are answered.
        lanes.request(lane, op(1, true), until, then());
        lanes.request(lane, op(2, true), until, then());
        lanes.close(lane);
        lanes.reset();
        assert_eq!((called(&mut lanes), lanes.all.len(), lanes.requests.len()), (2, 0, 0));
        lanes.request(lane, op(1, true), until, then());
        assert_eq!(called(&mut lanes), 1);
    }

    #[test]
    fn writes_to_address_spaces_that_are_not_open_are_dropped() {
        let (mut lanes, lane, now) = lanes_of_one();
        lanes.write(lane, op(1, true), None, now);
        // Another process is in use: address spaces that it was not ordered to open are not dead.
        lanes.reset();
        lanes.orders.clear();
        let change = lanes.change(now + Duration::from_secs(1));
        lanes.write(lane, op(1, false), Some(change), now);
        assert!(sent(&mut lanes).is_empty());
        assert!(lanes.then(change, Box::new(|_| {})).is_some(), "nobody is waited for");
        lanes.opens(lane, 1);
        lanes.write(lane, op(1, false), None, now);
        lanes.opened(lane);
        let (batch, states) = sent(&mut lanes).remove(0);
        assert_eq!(states, [(1, false)]);
        lanes.written(batch, &[Done(Err(Errno::SRCH))], now);
        assert_eq!(lanes.dead, [1]);
        // Two address spaces may share a lane, and a child's writes have the keys of its parent's.
        lanes.opens(lane, 2);
        lanes.write(lane, op(1, true), None, now);
        lanes.write(lane, Op { space: 2, ..op(1, true) }, None, now);
        lanes.opened(lane);
        assert_eq!(sent(&mut lanes)[0].1.len(), 2);
    }

    #[test]
    fn nothing_is_written_before_an_address_space_is_open() {
        let (mut lanes, lane, now) = lanes_of_one();
        lanes.opens(lane, 1);
        lanes.write(lane, op(1, true), None, now);
        assert!(sent(&mut lanes).is_empty());
        lanes.opened(lane);
        assert_eq!(sent(&mut lanes).len(), 1);
    }
}
