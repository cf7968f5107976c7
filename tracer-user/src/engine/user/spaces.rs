//! Address spaces of processes that asked to be told by a bit in their memory whether an event is on.
//!
//! What a process asked for is all its threads', a child process has a copy, and with the process's end, or its next program, it is gone.
//! A space is a number by which [`ClientMemory`] knows an address space; a task's number alone is never believed: each request shows
//! whether its address space is still the one that is known, and after events were lost all processes are looked for.
//!
//! A client may fork as often as it likes, and ask for thousands of addresses before: a birth and an end take the same time however
//! many those are. A child shares its parent's list until either asks for something, and its memory is opened only if it is still
//! there when all births and ends are known. What takes longer is done in parts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use rustix::io::Errno;
use tracer_abi::{TaskEvent, task_event};

use super::asked::{Asked, Enabler, Space, op};
use crate::{
    attach::Tasks,
    buffer::clock::monotonic,
    engine::{
        client_memory::{ClientMemory, Op, Seen, Ticket},
        quota::{Kind, Quotas},
    },
    event::EventId,
};

/// Births and ends that are taken at a time, and processes that are looked for.
const AT_ONCE: usize = 256;

/// A process that takes part.
#[derive(Clone, Copy, Debug)]
struct Task {
    space: u64,
    /// Since when: no other process of its number takes part since then.
    mark: u64,
}

/// A task that waits for the answer to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    pub(super) task: u32,
    pub(super) uid: u32,
    /// The number of the address space that was looked at.
    pub(super) look: u64,
    pub(super) seen: &'a Seen,
}

/// Something that is to be written, and in which lane.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) lane: u64,
    pub(super) op: Op,
}

/// Processes are looked for, after events about them were lost.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// The next one.
    from: u32,
    /// Events were lost since it began.
    again: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    memory: Option<ClientMemory>,
    quotas: Quotas,
    all: HashMap<u64, Space>,
    /// What spaces asked for, by numbers of their own.
    asked: HashMap<u64, Asked>,
    tasks: BTreeMap<u32, Task>,
    /// The thread that asked last, and its process.
    met: Option<(u32, u32)>,
    /// Lanes of processes, and how many spaces each is for.
    lanes: HashMap<u32, (u64, usize)>,
    /// Lists that have an event.
    by_event: HashMap<EventId, BTreeSet<u64>>,
    keys: u64,
    /// Which process reaches memory.
    generation: u64,
    follow: Option<Tasks>,
    /// Spaces of children whose memory is to be opened.
    unopened: Vec<Born>,
    check: Option<Check>,
    /// Events that fewer ask for than before.
    pub(super) released: Vec<EventId>,
}

/// A child process that has a copy of what its parent asked for, and when it was born.
#[derive(Debug)]
pub(super) struct Born {
    space: u64,
    pub(super) time: u64,
}

impl Spaces {
    /// Reaches memory by this from now on.
    pub(super) fn reach_by(&mut self, memory: ClientMemory, quotas: Quotas) {
        (self.memory, self.quotas) = (Some(memory), quotas);
    }

    /// What reaches memory.
    pub(super) fn memory(&self) -> Option<&ClientMemory> {
        self.memory.as_ref()
    }

    /// What tells of births and ends, once somebody takes part.
    pub(super) fn followed(&self) -> Option<&Tasks> {
        self.follow.as_ref()
    }

    pub(super) fn set_followed(&mut self, tasks: Tasks) {
        self.follow = Some(tasks);
    }

    /// Whether anybody asks for an event.
    pub(super) fn is_used(&self, event: EventId) -> bool {
        self.by_event.contains_key(&event)
    }

    /// Whether nobody takes part.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The address space that a process's first thread is known to have, and whether it does not answer.
    pub(super) fn known(&self, task: u32) -> Option<(u64, bool)> {
        let number = self.tasks.get(&task)?.space;
        let lane = self.all.get(&number)?.lane;
        let stuck = lane.is_some_and(|lane| self.memory.as_ref().is_some_and(|memory| memory.is_stuck(lane)));
        Some((number, stuck))
    }

    /// Learns of which process a task is, and forgets what is known of that if its address space is another one by now.
    pub(super) fn meet(&mut self, asking: Asking<'_>) {
        let process = asking.seen.process;
        self.met = Some((asking.task, process));
        // Of others the address space was not known when they were looked at.
        let first = asking.task == process;
        if !first {
            self.gone(asking.task);
        }
        let known = self.tasks.get(&process).and_then(|task| self.all.get(&task.space));
        let dead = first && !asking.seen.alive;
        if known.is_some_and(|space| dead || *space.identity != *asking.seen.identity) {
            self.gone(process);
        }
    }

    /// The process of a task, which was met just now or is a process's first.
    fn process(&self, task: u32) -> u32 {
        self.met.filter(|(met, _)| *met == task).map_or(task, |(_, process)| process)
    }

    /// Whether a task has asked for something at this place.
    pub(super) fn has(&self, task: u32, address: u64, bit: u8) -> bool {
        let space = self.tasks.get(&self.process(task)).and_then(|task| self.all.get(&task.space));
        let asked = space.and_then(|space| self.asked.get(&space.asked));
        asked.is_some_and(|asked| asked.enablers.contains_key(&(address, bit)))
    }

    /// Whether an address space that was looked at is one of these.
    pub(super) fn has_space(&self, number: u64) -> bool {
        self.all.contains_key(&number)
    }

    /// The lane of a process, for one more space.
    fn lane(&mut self, process: u32, uid: u32) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let (lane, spaces) = self.lanes.entry(process).or_insert_with(|| (memory.lane(uid), 0));
        *spaces += 1;
        Some(*lane)
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    /// Lets a task ask for an event, whose state its bit is to show. The task waits for us, and is the one that it was.
    pub(super) fn ask(
        &mut self,
        asking: Asking<'_>,
        event: EventId,
        (address, bit): (u64, u8),
        on: bool,
    ) -> Result<Placed, Errno> {
        let charge = self.quotas.charge(asking.uid, Kind::Enablers, 1).map_err(|_| Errno::NOMEM)?;
        let number = match self.tasks.get(&asking.seen.process) {
            Some(task) => task.space,
            None => self.join(asking)?,
        };
        let key = self.key();
        let list = self.own_list(number).ok_or(Errno::NOMEM)?;
        let space = self.all.get_mut(&number).ok_or(Errno::NOMEM)?;
        let lane = space.lane.ok_or(Errno::NOMEM)?;
        space.count(charge);
        let asked = self.asked.entry(list).or_default();
        asked.enablers.insert((address, bit), Enabler { event, key, uid: asking.uid });
        asked.by_event.insert((event, address, bit));
        self.by_event.entry(event).or_default().insert(list);
        Ok(Placed { lane, op: op(number, key, address, bit, on) })
    }

    fn join(&mut self, asking: Asking<'_>) -> Result<u64, Errno> {
        let charge = self.quotas.charge(asking.uid, Kind::AddressSpaces, 1).map_err(|_| Errno::NOMEM)?;
        let (process, mark) = (asking.seen.process, monotonic());
        if let Some(follow) = &self.follow {
            follow.add(process, mark).map_err(|_| Errno::NOMEM)?;
        }
        let lane = self.lane(process, asking.uid).ok_or(Errno::NOMEM)?;
        let asked = self.key();
        let spaces = BTreeSet::from([asking.look]);
        self.asked.insert(asked, Asked { spaces, ..Asked::default() });
        let space = Space {
            uid: asking.uid,
            process,
            lane: Some(lane),
            identity: Arc::from(&asking.seen.identity[..]),
            tasks: BTreeMap::from([(process, charge)]),
            asked,
            charges: Vec::new(),
        };
        self.all.insert(asking.look, space);
        self.tasks.insert(process, Task { space: asking.look, mark });
        Ok(asking.look)
    }

    /// The list of a space, which no other has from now on.
    fn own_list(&mut self, number: u64) -> Option<u64> {
        let list = self.all.get(&number)?.asked;
        let shared = self.asked.get_mut(&list)?;
        if shared.spaces.len() <= 1 {
            return Some(list);
        }
        let asked = Asked { spaces: BTreeSet::from([number]), ..shared.clone() };
        shared.spaces.remove(&number);
        let own = self.key();
        for event in asked.events() {
            self.by_event.entry(event).or_default().insert(own);
        }
        self.asked.insert(own, asked);
        self.all.get_mut(&number)?.asked = own;
        Some(own)
    }

    /// Forgets what a task asked for at a place; what clears the bit.
    pub(super) fn forget(&mut self, task: u32, address: u64, bit: u8) -> Result<Placed, Errno> {
        let number = self.tasks.get(&self.process(task)).ok_or(Errno::NOENT)?.space;
        let space = self.all.get(&number).ok_or(Errno::NOENT)?;
        let asked = self.asked.get(&space.asked).ok_or(Errno::NOENT)?;
        let op = asked.op(number, (address, bit), false).ok_or(Errno::NOENT)?;
        let lane = space.lane.ok_or(Errno::NOENT)?;
        self.withdraw(number, address, bit, op.key);
        Ok(Placed { lane, op })
    }

    /// Forgets what was asked for at a place of a space, if it is still the same.
    pub(super) fn withdraw(&mut self, number: u64, address: u64, bit: u8, key: u64) {
        let known = self.all.get(&number).and_then(|space| self.asked.get(&space.asked));
        if known.and_then(|asked| asked.enablers.get(&(address, bit))).is_none_or(|known| known.key != key) {
            return;
        }
        let Some(list) = self.own_list(number) else { return };
        let Some(asked) = self.asked.get_mut(&list) else { return };
        let Some(enabler) = asked.enablers.remove(&(address, bit)) else { return };
        asked.by_event.remove(&(enabler.event, address, bit));
        if !asked.has_event(enabler.event) {
            self.unuse(enabler.event, list);
        }
        if let Some(space) = self.all.get_mut(&number) {
            space.count_no_more(enabler.uid);
        }
    }

    /// A list has an event no more.
    fn unuse(&mut self, event: EventId, list: u64) {
        if let Some(lists) = self.by_event.get_mut(&event) {
            lists.remove(&list);
            if lists.is_empty() {
                self.by_event.remove(&event);
                self.released.push(event);
            }
        }
    }

    /// Tells all who ask for an event that it is on or off now, as a part of a change that is begun when there is anybody.
    pub(super) fn tell(&self, event: EventId, on: bool, change: &mut Option<Ticket>) {
        let (Some(memory), Some(lists)) = (&self.memory, self.by_event.get(&event)) else { return };
        let change = &*change.get_or_insert_with(|| memory.change());
        for asked in lists.iter().filter_map(|list| self.asked.get(list)) {
            for number in &asked.spaces {
                let Some(lane) = self.all.get(number).and_then(|space| space.lane) else { continue };
                let ops = asked.places(event).filter_map(|place| asked.op(*number, place, on));
                memory.write(lane, ops, Some(change));
            }
        }
    }

    /// What a space is to be told where `state` knows the event.
    fn ops(
        &self,
        number: u64,
        state: impl Fn(EventId) -> Option<bool>,
    ) -> Option<(u64, impl Iterator<Item = Op>)> {
        let space = self.all.get(&number)?;
        let asked = self.asked.get(&space.asked)?;
        let events = asked.events().filter_map(move |event| Some((event, state(event)?)));
        let ops = events.flat_map(move |(event, on)| {
            asked.places(event).filter_map(move |place| asked.op(number, place, on))
        });
        Some((space.lane?, ops))
    }

    /// Tells a new process what `state` says of its events.
    pub(super) fn tell_child(
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

    /// Learns what memory turned out to be. After another process reaches it, all is opened again, and told what `state` says.
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
            memory.open(*number, space.uid, *task, &space.identity, lane);
            if let Some((lane, ops)) = self.ops(*number, &state) {
                memory.write(lane, ops, None);
            }
        }
    }

    /// Learns what became of processes, until a time: the child processes among it that have memory of their own, and whether there
    /// is more to learn.
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
        // Some are looked for however much there is to learn: otherwise who makes many events keeps others' ends from being known.
        while self.look_for_some() && Instant::now() < until {}
        (self.open_born(), more || self.check.is_some())
    }

    fn take(&mut self, event: TaskEvent) {
        match event.kind {
            task_event::FORK => self.born(event),
            // Of another process that had the number before.
            _ if self.tasks.get(&event.task).is_some_and(|task| task.mark != event.time) => {}
            _ => self.gone(event.task),
        }
    }

    /// Looks for some processes that may have ended; whether there are more.
    fn look_for_some(&mut self) -> bool {
        let (Some(follow), Some(check)) = (&self.follow, self.check) else { return false };
        let some: Vec<(u32, u64)> =
            self.tasks.range(check.from..).take(AT_ONCE).map(|(number, task)| (*number, task.mark)).collect();
        let gone: Vec<u32> = some
            .iter()
            .filter(|(number, mark)| follow.mark(*number) != Some(*mark))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.gone(number);
        }
        let next = some.last().filter(|_| some.len() == AT_ONCE).and_then(|(last, _)| last.checked_add(1));
        self.check = match next {
            Some(from) => Some(Check { from, ..check }),
            None => check.again.then_some(Check { from: 0, again: false }),
        };
        self.check.is_some()
    }

    /// A process is not to be followed any more, as nothing is known of it here.
    fn unfollow(&self, process: u32, mark: u64) {
        if let Some(follow) = &self.follow {
            follow.remove(process, mark);
        }
    }

    fn born(&mut self, event: TaskEvent) {
        // It asked by itself before this was known.
        if self.tasks.get(&event.other).is_some_and(|task| task.mark > event.time) {
            return;
        }
        // A number that comes again is another process's.
        self.gone(event.other);
        if self.inherit(event).is_none() {
            self.unfollow(event.other, event.time);
        }
    }

    /// Gives a child what its parent asked for; nothing where its uid has what it may have.
    fn inherit(&mut self, event: TaskEvent) -> Option<()> {
        let (child, time) = (event.other, event.time);
        // Not one that has its number by now.
        let number = self.tasks.get(&event.task).filter(|task| task.mark <= time)?.space;
        let parent = self.all.get_mut(&number)?;
        let charge = self.quotas.charge(parent.uid, Kind::AddressSpaces, 1).ok()?;
        if event.shares != 0 {
            parent.tasks.insert(child, charge);
            self.tasks.insert(child, Task { space: number, mark: time });
            return Some(());
        }
        let asked = self.asked.get_mut(&parent.asked).filter(|asked| !asked.enablers.is_empty())?;
        let for_asked = self.quotas.charge(parent.uid, Kind::Enablers, asked.enablers.len()).ok()?;
        let own = self.memory.as_ref()?.number();
        asked.spaces.insert(own);
        let space = Space {
            uid: parent.uid,
            process: child,
            lane: None,
            identity: Arc::clone(&parent.identity),
            tasks: BTreeMap::from([(child, charge)]),
            asked: parent.asked,
            charges: vec![for_asked],
        };
        self.all.insert(own, space);
        self.tasks.insert(child, Task { space: own, mark: time });
        self.unopened.push(Born { space: own, time });
        Some(())
    }

    /// Opens the memory of those that were born and are still there.
    fn open_born(&mut self) -> Vec<Born> {
        let mut born = std::mem::take(&mut self.unopened);
        born.retain(|born| self.all.contains_key(&born.space));
        for Born { space: number, .. } in &born {
            let Some((process, uid)) = self.all.get(number).map(|space| (space.process, space.uid)) else {
                continue;
            };
            let lane = self.lane(process, uid);
            let Some(space) = self.all.get_mut(number) else { continue };
            space.lane = lane;
            // A process of its own has its first thread's number. Where it is another program by now, its memory is not as its
            // parent's.
            if let (Some(memory), Some(lane)) = (&self.memory, lane) {
                memory.open(*number, uid, process, &space.identity, lane);
            }
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
        if let Some(asked) = self.asked.get_mut(&space.asked) {
            asked.spaces.remove(&number);
            if asked.spaces.is_empty()
                && let Some(asked) = self.asked.remove(&space.asked)
            {
                asked.events().for_each(|event| self.unuse(event, space.asked));
            }
        }
        let (Some(memory), Some(lane)) = (&self.memory, space.lane) else { return };
        memory.forget(number);
        if let Some((_, spaces)) = self.lanes.get_mut(&space.process) {
            *spaces -= 1;
            if *spaces == 0 {
                memory.close_lane(lane);
                self.lanes.remove(&space.process);
            }
        }
    }

    /// Processes and address spaces that take part, for who asks whether any is left.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tasks.len(), self.all.len())
    }
}

#[cfg(test)]
mod tests;
