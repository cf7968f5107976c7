//! Address spaces of processes that registered bits in their memory, which show whether events are enabled.
//!
//! The registrations of a process apply to all its threads. A child process gets a copy. They end when the process
//! ends or executes another program. A space is the number under which [`ClientMemory`] knows an address space. A
//! task's id is never sufficient: each request shows whether the task still has the known address space, and after
//! events were lost all processes are checked.
//!
//! A client may fork any number of times and register thousands of addresses before. The time for a birth or an end
//! therefore does not depend on the number of addresses. A child shares its parent's list until either registers
//! something. Its memory is opened only if it still exists when all births and ends are processed. Longer work is
//! done in parts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use rustix::io::Errno;
use tracer_abi::{TaskEvent, task_event};

use super::enabler_list::{Enabler, EnablerList, Space, op};
use crate::{
    attach::Tasks,
    buffer::clock::monotonic,
    engine::{
        client_memory::{ClientMemory, Op, Seen, Ticket},
        quota::{Kind, Quotas},
    },
    event::EventId,
};

/// Number of births and ends, and of checked processes, per step.
const AT_ONCE: usize = 256;

/// A process with registrations.
#[derive(Clone, Copy, Debug)]
struct Task {
    space: u64,
    /// The time since when it takes part, which identifies it among processes with the same id.
    mark: u64,
}

/// A task that waits for the answer to its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester<'a> {
    pub(super) task: u32,
    pub(super) payer: u32,
    /// The number of the inspected address space.
    pub(super) look: u64,
    pub(super) seen: &'a Seen,
}

/// A write to a client's memory, and its lane.
#[derive(Debug)]
pub(super) struct BitWrite {
    pub(super) lane: u64,
    pub(super) op: Op,
}

/// A check of all processes, after events about them were lost.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// The next process.
    from: u32,
    /// Whether events were lost since the check began.
    again: bool,
}

/// All address spaces with registrations.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    memory: Option<ClientMemory>,
    quotas: Quotas,
    all: HashMap<u64, Space>,
    /// Lists of registered bits, by number.
    lists: HashMap<u64, EnablerList>,
    tasks: BTreeMap<u32, Task>,
    /// The last thread that sent a request, and its process.
    last_caller: Option<(u32, u32)>,
    /// Lists that contain an event.
    by_event: HashMap<EventId, BTreeSet<u64>>,
    /// Number of bits in all lists that a payer registered for an event.
    uses: HashMap<(EventId, u32), usize>,
    keys: u64,
    /// The number of the process that accesses memory.
    generation: u64,
    /// The source of births and ends, once a process takes part.
    pub(super) follow: Option<Tasks>,
    /// Spaces of children whose memory must be opened.
    unopened: Vec<Born>,
    check: Option<Check>,
    /// Events that lost registrations.
    pub(super) released: Vec<EventId>,
}

/// A child process with a copy of its parent's registrations, and its time of birth.
#[derive(Debug)]
pub(super) struct Born {
    space: u64,
    pub(super) time: u64,
}

impl Spaces {
    /// Sets how memory is accessed.
    pub(super) fn set_memory(&mut self, memory: ClientMemory, quotas: Quotas) {
        (self.memory, self.quotas) = (Some(memory), quotas);
    }

    pub(super) fn memory(&self) -> Option<&ClientMemory> {
        self.memory.as_ref()
    }

    pub(super) fn is_used(&self, event: EventId) -> bool {
        self.by_event.contains_key(&event)
    }

    pub(super) fn is_used_by(&self, event: EventId, payer: u32) -> bool {
        self.uses.contains_key(&(event, payer))
    }

    /// Counts a bit of a list.
    fn count_use(&mut self, enabler: Enabler) {
        *self.uses.entry((enabler.event, enabler.payer)).or_default() += 1;
    }

    /// Ends a [`Spaces::count_use`].
    fn end_use(&mut self, enabler: Enabler) {
        let key = (enabler.event, enabler.payer);
        let Some(uses) = self.uses.get_mut(&key) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&key);
            self.released.push(enabler.event);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The known address space of a process's first thread, and whether it is stuck.
    pub(super) fn known(&self, task: u32) -> Option<(u64, bool)> {
        let number = self.tasks.get(&task)?.space;
        let lane = self.all.get(&number)?.lane;
        let stuck = lane.is_some_and(|lane| self.memory.as_ref().is_some_and(|memory| memory.is_stuck(lane)));
        Some((number, stuck))
    }

    /// Determines the process of a task. If the process has another address space now, its registrations are dropped.
    pub(super) fn identify(&mut self, requester: Requester<'_>) {
        let process = requester.seen.process;
        self.last_caller = Some((requester.task, process));
        // The address spaces of other threads were unknown when they were inspected.
        let first = requester.task == process;
        if !first {
            self.gone(requester.task);
        }
        let known = self.tasks.get(&process).and_then(|task| self.all.get(&task.space));
        let dead = first && !requester.seen.alive;
        if known.is_some_and(|space| dead || *space.identity != *requester.seen.identity) {
            self.gone(process);
        }
    }

    /// The process of a task that was just looked up or is a process's first thread.
    fn process(&self, task: u32) -> u32 {
        self.last_caller.filter(|(caller, _)| *caller == task).map_or(task, |(_, process)| process)
    }

    /// Whether a task has a registered bit at this place.
    pub(super) fn has(&self, task: u32, address: u64, bit: u8) -> bool {
        let space = self.tasks.get(&self.process(task)).and_then(|task| self.all.get(&task.space));
        let enabler_list = space.and_then(|space| self.lists.get(&space.list));
        enabler_list.is_some_and(|enabler_list| enabler_list.enablers.contains_key(&(address, bit)))
    }

    /// Whether an inspected address space is known.
    pub(super) fn has_space(&self, number: u64) -> bool {
        self.all.contains_key(&number)
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    /// Registers a bit of a task for an event. The task waits for the answer and is known to have this address space.
    pub(super) fn register_bit(
        &mut self,
        requester: Requester<'_>,
        event: EventId,
        (address, bit): (u64, u8),
        on: bool,
    ) -> Result<BitWrite, Errno> {
        let charge = self.quotas.charge(requester.payer, Kind::Enablers, 1).map_err(|_| Errno::NOMEM)?;
        let number = match self.tasks.get(&requester.seen.process) {
            Some(task) => task.space,
            None => self.join(requester)?,
        };
        let key = self.key();
        let list = self.own_list(number).ok_or(Errno::NOMEM)?;
        let space = self.all.get_mut(&number).ok_or(Errno::NOMEM)?;
        let lane = space.lane.ok_or(Errno::NOMEM)?;
        space.count(charge);
        let enabler_list = self.lists.entry(list).or_default();
        let enabler = Enabler { event, key, payer: requester.payer };
        let before = enabler_list.enablers.insert((address, bit), enabler);
        enabler_list.by_event.insert((event, address, bit));
        self.by_event.entry(event).or_default().insert(list);
        self.count_use(enabler);
        if let Some(before) = before {
            self.end_use(before);
        }
        Ok(BitWrite { lane, op: op(number, key, address, bit, on) })
    }

    fn join(&mut self, requester: Requester<'_>) -> Result<u64, Errno> {
        let charge = self.quotas.charge(requester.payer, Kind::AddressSpaces, 1).map_err(|_| Errno::NOMEM)?;
        let (process, mark) = (requester.seen.process, monotonic());
        if let Some(follow) = &self.follow {
            follow.add(process, mark).map_err(|_| Errno::NOMEM)?;
        }
        // Each address space has a lane of its own. The process's id may also be that of an ended process whose
        // address space others still use.
        let lane = self.memory.as_ref().ok_or(Errno::NOMEM)?.lane(requester.payer);
        let list = self.key();
        let spaces = BTreeSet::from([requester.look]);
        self.lists.insert(list, EnablerList { spaces, ..EnablerList::default() });
        let space = Space {
            payer: requester.payer,
            process,
            lane: Some(lane),
            identity: Arc::from(&requester.seen.identity[..]),
            tasks: BTreeMap::from([(process, charge)]),
            list,
            charges: Vec::new(),
        };
        self.all.insert(requester.look, space);
        self.tasks.insert(process, Task { space: requester.look, mark });
        Ok(requester.look)
    }

    /// The number of a space's list, which is copied first if other spaces share it.
    fn own_list(&mut self, number: u64) -> Option<u64> {
        let list = self.all.get(&number)?.list;
        let shared = self.lists.get_mut(&list)?;
        if shared.spaces.len() <= 1 {
            return Some(list);
        }
        let enabler_list = EnablerList { spaces: BTreeSet::from([number]), ..shared.clone() };
        shared.spaces.remove(&number);
        let own = self.key();
        for event in enabler_list.events() {
            self.by_event.entry(event).or_default().insert(own);
        }
        enabler_list.enablers.values().for_each(|enabler| self.count_use(*enabler));
        self.lists.insert(own, enabler_list);
        self.all.get_mut(&number)?.list = own;
        Some(own)
    }

    /// Unregisters a bit of a task. Returns the write that clears it.
    pub(super) fn forget(&mut self, task: u32, address: u64, bit: u8) -> Result<BitWrite, Errno> {
        let number = self.tasks.get(&self.process(task)).ok_or(Errno::NOENT)?.space;
        let space = self.all.get(&number).ok_or(Errno::NOENT)?;
        let enabler_list = self.lists.get(&space.list).ok_or(Errno::NOENT)?;
        let op = enabler_list.op(number, (address, bit), false).ok_or(Errno::NOENT)?;
        let lane = space.lane.ok_or(Errno::NOENT)?;
        self.withdraw(number, address, bit, op.key);
        Ok(BitWrite { lane, op })
    }

    /// Removes the bit at a place of a space, if it is still the same registration.
    pub(super) fn withdraw(&mut self, number: u64, address: u64, bit: u8, key: u64) {
        let known = self.all.get(&number).and_then(|space| self.lists.get(&space.list));
        let known = known.and_then(|enabler_list| enabler_list.enablers.get(&(address, bit)));
        if known.is_none_or(|known| known.key != key) {
            return;
        }
        let Some(list) = self.own_list(number) else { return };
        let Some(enabler_list) = self.lists.get_mut(&list) else { return };
        let Some(enabler) = enabler_list.enablers.remove(&(address, bit)) else { return };
        enabler_list.by_event.remove(&(enabler.event, address, bit));
        if !enabler_list.has_event(enabler.event) {
            self.unuse(enabler.event, list);
        }
        self.end_use(enabler);
        if let Some(space) = self.all.get_mut(&number) {
            space.release_charge(enabler.payer);
        }
    }

    /// Removes a list from the lists of an event.
    fn unuse(&mut self, event: EventId, list: u64) {
        if let Some(lists) = self.by_event.get_mut(&event) {
            lists.remove(&list);
            if lists.is_empty() {
                self.by_event.remove(&event);
            }
        }
    }

    /// Queues the update of all bits of an event. Starts a change (`change`) if there are any.
    pub(super) fn report(&self, event: EventId, on: bool, change: &mut Option<Ticket>) {
        let (Some(memory), Some(lists)) = (&self.memory, self.by_event.get(&event)) else { return };
        let change = &*change.get_or_insert_with(|| memory.change());
        for enabler_list in lists.iter().filter_map(|list| self.lists.get(list)) {
            for number in &enabler_list.spaces {
                let Some(lane) = self.all.get(number).and_then(|space| space.lane) else { continue };
                let ops = enabler_list.places(event).filter_map(|place| enabler_list.op(*number, place, on));
                memory.write(lane, ops, Some(change));
            }
        }
    }

    /// The updates of a space's bits, for events that `state` knows.
    fn ops(
        &self,
        number: u64,
        state: impl Fn(EventId) -> Option<bool>,
    ) -> Option<(u64, impl Iterator<Item = Op>)> {
        let space = self.all.get(&number)?;
        let enabler_list = self.lists.get(&space.list)?;
        let events = enabler_list.events().filter_map(move |event| Some((event, state(event)?)));
        let ops = events.flat_map(move |(event, on)| {
            enabler_list.places(event).filter_map(move |place| enabler_list.op(number, place, on))
        });
        Some((space.lane?, ops))
    }

    /// Updates the bits of a new process to `state`.
    pub(super) fn report_to_child(
        &self,
        born: &Born,
        state: impl Fn(EventId) -> Option<bool>,
        change: &mut Option<Ticket>,
    ) {
        let (Some(memory), Some((lane, ops))) = (&self.memory, self.ops(born.space, state)) else { return };
        let mut ops = ops.peekable();
        if ops.peek().is_some() {
            memory.write(lane, ops, Some(&*change.get_or_insert_with(|| memory.change())));
        }
    }

    /// Processes reports about opened memory. If another process accesses memory now, all spaces are reopened and
    /// updated to `state`.
    pub(super) fn attend(&mut self, state: impl Fn(EventId) -> Option<bool>) {
        let Some(memory) = self.memory.clone() else { return };
        let (generation, dead) = memory.failures();
        for number in dead {
            let tasks = self.all.get(&number).map(|space| space.tasks.keys().copied().collect::<Vec<_>>());
            for task in tasks.into_iter().flatten() {
                if let Some(Task { mark, .. }) = self.tasks.get(&task).copied() {
                    self.gone(task);
                    self.unfollow(task, mark);
                }
            }
        }
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        for (number, space) in &self.all {
            let (Some((task, _)), Some(lane)) = (space.tasks.first_key_value(), space.lane) else { continue };
            memory.open(*number, space.payer, *task, &space.identity, lane);
            if let Some((lane, ops)) = self.ops(*number, &state) {
                memory.write(lane, ops, None);
            }
        }
    }

    /// Processes births and ends until a time. Returns the children with memory of their own, and whether more
    /// remains.
    pub(super) fn learn(&mut self, until: Instant) -> (Vec<Born>, bool) {
        let mut more = true;
        while more {
            let Some(follow) = &mut self.follow else { return (Vec::new(), false) };
            let (news, lost) = follow.news(AT_ONCE);
            more = news.len() == AT_ONCE;
            if lost {
                let next = Check { from: 0, again: false };
                self.check = Some(self.check.map_or(next, |check| Check { again: true, ..check }));
            }
            for event in news {
                self.take(event);
            }
            if Instant::now() >= until {
                break;
            }
        }
        // At least one step of the check is made in any case: otherwise a client that causes many events could delay
        // the ends of others.
        while self.look_for_some() && Instant::now() < until {}
        (self.open_born(), more || self.check.is_some())
    }

    fn take(&mut self, event: TaskEvent) {
        match event.kind {
            task_event::FORK => self.born(event),
            // An event of an earlier process with the same id.
            _ if self.tasks.get(&event.task).is_some_and(|task| task.mark != event.time) => {}
            _ => self.gone(event.task),
        }
    }

    /// Checks some processes for their end. Returns whether more remain.
    fn look_for_some(&mut self) -> bool {
        let (Some(follow), Some(check)) = (&self.follow, self.check) else { return false };
        let some = self.tasks.range(check.from..).take(AT_ONCE);
        let some: Vec<(u32, bool)> =
            some.map(|(number, task)| (*number, follow.mark(*number) == Some(task.mark))).collect();
        for (number, _) in some.iter().filter(|(_, lives)| !lives) {
            self.gone(*number);
        }
        let next = some.last().filter(|_| some.len() == AT_ONCE).and_then(|(last, _)| last.checked_add(1));
        self.check = match next {
            Some(from) => Some(Check { from, ..check }),
            None => check.again.then_some(Check { from: 0, again: false }),
        };
        self.check.is_some()
    }

    /// Stops following a process without registrations.
    fn unfollow(&self, process: u32, mark: u64) {
        if let Some(follow) = &self.follow {
            follow.remove(process, mark);
        }
    }

    fn born(&mut self, event: TaskEvent) {
        // The child registered something before its birth was processed.
        if self.tasks.get(&event.other).is_some_and(|task| task.mark > event.time) {
            return;
        }
        // A reused id belongs to a new process.
        self.gone(event.other);
        if self.inherit(event).is_none() {
            self.unfollow(event.other, event.time);
        }
    }

    /// Gives a child its parent's registrations; `None` if the child's payer has reached its limit.
    fn inherit(&mut self, event: TaskEvent) -> Option<()> {
        let (child, time) = (event.other, event.time);
        // Not a later process with the parent's id.
        let number = self.tasks.get(&event.task).filter(|task| task.mark <= time)?.space;
        let parent = self.all.get_mut(&number)?;
        let charge = self.quotas.charge(parent.payer, Kind::AddressSpaces, 1).ok()?;
        if event.shares != 0 {
            parent.tasks.insert(child, charge);
            self.tasks.insert(child, Task { space: number, mark: time });
            return Some(());
        }
        let list = self.lists.get_mut(&parent.list).filter(|list| !list.enablers.is_empty())?;
        let for_enablers = self.quotas.charge(parent.payer, Kind::Enablers, list.enablers.len()).ok()?;
        let own = self.memory.as_ref()?.number();
        list.spaces.insert(own);
        let space = Space {
            payer: parent.payer,
            process: child,
            lane: None,
            identity: Arc::clone(&parent.identity),
            tasks: BTreeMap::from([(child, charge)]),
            list: parent.list,
            charges: vec![for_enablers],
        };
        self.all.insert(own, space);
        self.tasks.insert(child, Task { space: own, mark: time });
        self.unopened.push(Born { space: own, time });
        Some(())
    }

    /// Opens the memory of children that still exist.
    fn open_born(&mut self) -> Vec<Born> {
        let mut born = std::mem::take(&mut self.unopened);
        born.retain(|born| self.all.contains_key(&born.space));
        for Born { space: number, .. } in &born {
            let (Some(memory), Some(space)) = (&self.memory, self.all.get_mut(number)) else { continue };
            let lane = memory.lane(space.payer);
            space.lane = Some(lane);
            // The id of a process is that of its first thread. If the child executes another program by now, its
            // memory has another identity than its parent's.
            memory.open(*number, space.payer, space.process, &space.identity, lane);
        }
        born
    }

    fn gone(&mut self, process: u32) {
        let Some(Task { space: number, .. }) = self.tasks.remove(&process) else { return };
        let Some(space) = self.all.get_mut(&number) else { return };
        space.tasks.remove(&process);
        if !space.tasks.is_empty() {
            return;
        }
        let Some(space) = self.all.remove(&number) else { return };
        if let Some(enabler_list) = self.lists.get_mut(&space.list) {
            enabler_list.spaces.remove(&number);
            if enabler_list.spaces.is_empty()
                && let Some(enabler_list) = self.lists.remove(&space.list)
            {
                enabler_list.events().for_each(|event| self.unuse(event, space.list));
                enabler_list.enablers.values().for_each(|enabler| self.end_use(*enabler));
            }
        }
        let (Some(memory), Some(lane)) = (&self.memory, space.lane) else { return };
        memory.forget(number);
        memory.close_lane(lane);
    }

    /// Number of processes and of address spaces, to check that none remains.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tasks.len(), self.all.len())
    }
}

#[cfg(test)]
mod tests;
