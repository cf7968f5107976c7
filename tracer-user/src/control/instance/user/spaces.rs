//! Address spaces of processes that asked to be told by a bit in their memory whether an event is on.
//!
//! The kernel has what a task asked for at the task: threads born to it have it too, a child process has a copy, and with
//! the last task, or its next program, it is gone. So it is here. A space is a number by which [`ClientMemory`] knows an address space;
//! a task's number alone is never believed: each request shows whether its address space is still the one that is known, and after
//! events were lost all tasks are asked for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use rustix::io::Errno;
use tracer_abi::{TaskEvent, task_event};

use crate::{
    attach::Tasks,
    control::{
        client_memory::{Bit, ClientMemory, Failure, Op, Seen, Ticket},
        quota::{Charge, Kind, Quotas},
    },
};

/// The byte of a word in which a bit is, and the bit in that.
pub(super) fn place(address: u64, bit: u8) -> (u64, u8) {
    let at = if cfg!(target_endian = "little") { bit / 8 } else { 7 - bit / 8 };
    (address.wrapping_add(u64::from(at)), 1 << (bit % 8))
}

/// Who wants to know of which event.
#[derive(Debug)]
struct Enabler {
    event: u32,
    /// A number of its own, by which writes for it follow each other.
    key: u64,
    _charge: Charge,
}

#[derive(Debug)]
struct Space {
    uid: u32,
    process: u32,
    lane: u64,
    identity: Arc<[u8]>,
    tasks: BTreeSet<u32>,
    /// By address and bit.
    enablers: BTreeMap<(u64, u8), Enabler>,
    _charge: Charge,
}

impl Space {
    fn op(&self, space: u64, address: u64, bit: u8, on: bool) -> Option<Op> {
        let key = self.enablers.get(&(address, bit))?.key;
        Some(op(space, key, address, bit, on))
    }
}

fn op(space: u64, key: u64, address: u64, bit: u8, on: bool) -> Op {
    let (at, mask) = place(address, bit);
    Op { space, key, bit: Some(Bit { at, mask, on }), words: Vec::new() }
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

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    memory: Option<ClientMemory>,
    quotas: Quotas,
    all: HashMap<u64, Space>,
    tasks: HashMap<u32, u64>,
    /// Lanes of processes, and how many spaces each is for.
    lanes: HashMap<u32, (u64, usize)>,
    /// By event: space, address, bit.
    by_event: HashMap<u32, BTreeSet<(u64, u64, u8)>>,
    keys: u64,
    /// Which process reaches memory.
    generation: u64,
    follow: Option<Tasks>,
    /// Events that fewer ask for than before.
    pub(super) released: Vec<u32>,
}

/// A child process that has a copy of what its parent asked for, and when it was born.
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

    /// How many addresses there are for an event.
    pub(super) fn uses(&self, event: u32) -> usize {
        self.by_event.get(&event).map_or(0, BTreeSet::len)
    }

    /// Whether nobody takes part.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The address space that a task is known to have, and whether it does not answer.
    pub(super) fn known(&self, task: u32) -> Option<(u64, bool)> {
        let number = *self.tasks.get(&task)?;
        let stuck = self.memory.as_ref()?.is_stuck(self.all.get(&number)?.lane);
        Some((number, stuck))
    }

    /// Forgets what is known of a task whose address space is another one by now.
    pub(super) fn meet(&mut self, asking: Asking<'_>) {
        let known = self.tasks.get(&asking.task).and_then(|number| self.all.get(number));
        if known.is_some_and(|space| !asking.seen.alive || *space.identity != *asking.seen.identity) {
            self.gone(asking.task);
        }
    }

    /// Whether a task has asked for something at this place.
    pub(super) fn has(&self, task: u32, address: u64, bit: u8) -> bool {
        let space = self.tasks.get(&task).and_then(|number| self.all.get(number));
        space.is_some_and(|space| space.enablers.contains_key(&(address, bit)))
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
        event: u32,
        (address, bit): (u64, u8),
        on: bool,
    ) -> Result<Placed, Errno> {
        let charge = self.quotas.charge(asking.uid, Kind::Enablers, 1).map_err(|_| Errno::NOMEM)?;
        let number = match self.tasks.get(&asking.task) {
            Some(number) => *number,
            None => self.join(asking)?,
        };
        let key = self.key();
        let space = self.all.get_mut(&number).ok_or(Errno::NOMEM)?;
        space.enablers.insert((address, bit), Enabler { event, key, _charge: charge });
        self.by_event.entry(event).or_default().insert((number, address, bit));
        Ok(Placed { lane: space.lane, op: op(number, key, address, bit, on) })
    }

    fn join(&mut self, asking: Asking<'_>) -> Result<u64, Errno> {
        let charge = self.quotas.charge(asking.uid, Kind::AddressSpaces, 1).map_err(|_| Errno::NOMEM)?;
        if let Some(follow) = &self.follow {
            follow.add(asking.task).map_err(|_| Errno::NOMEM)?;
        }
        let process = asking.seen.process;
        let lane = self.lane(process, asking.uid).ok_or(Errno::NOMEM)?;
        let space = Space {
            uid: asking.uid,
            process,
            lane,
            identity: Arc::from(&asking.seen.identity[..]),
            tasks: BTreeSet::from([asking.task]),
            enablers: BTreeMap::new(),
            _charge: charge,
        };
        self.all.insert(asking.look, space);
        self.tasks.insert(asking.task, asking.look);
        Ok(asking.look)
    }

    /// Forgets what a task asked for at a place; what clears the bit.
    pub(super) fn forget(&mut self, task: u32, address: u64, bit: u8) -> Result<Placed, Errno> {
        let number = *self.tasks.get(&task).ok_or(Errno::NOENT)?;
        let space = self.all.get(&number).ok_or(Errno::NOENT)?;
        let op = space.op(number, address, bit, false).ok_or(Errno::NOENT)?;
        let lane = space.lane;
        self.withdraw(number, address, bit, op.key);
        Ok(Placed { lane, op })
    }

    /// Forgets what was asked for at a place of a space, if it is still the same.
    pub(super) fn withdraw(&mut self, number: u64, address: u64, bit: u8, key: u64) {
        let Some(space) = self.all.get_mut(&number) else { return };
        if space.enablers.get(&(address, bit)).is_some_and(|enabler| enabler.key == key)
            && let Some(enabler) = space.enablers.remove(&(address, bit))
        {
            self.unuse(enabler.event, number, address, bit);
        }
    }

    fn unuse(&mut self, event: u32, number: u64, address: u64, bit: u8) {
        if let Some(places) = self.by_event.get_mut(&event) {
            places.remove(&(number, address, bit));
            if places.is_empty() {
                self.by_event.remove(&event);
                self.released.push(event);
            }
        }
    }

    /// Tells all who ask for an event that it is on or off now, as a part of a change that is begun when there is anybody.
    pub(super) fn tell(&self, event: u32, on: bool, change: &mut Option<Ticket>) {
        let (Some(memory), Some(places)) = (&self.memory, self.by_event.get(&event)) else { return };
        let change = &*change.get_or_insert_with(|| memory.change());
        for (number, address, bit) in places {
            let Some(space) = self.all.get(number) else { continue };
            if let Some(op) = space.op(*number, *address, *bit, on) {
                memory.write(space.lane, op, Some(change));
            }
        }
    }

    /// Tells a new process what `state` says of its events.
    pub(super) fn tell_child(
        &self,
        born: &Born,
        state: impl Fn(u32) -> Option<bool>,
        change: &mut Option<Ticket>,
    ) {
        let (Some(memory), Some(space)) = (&self.memory, self.all.get(&born.space)) else { return };
        for ((address, bit), enabler) in &space.enablers {
            let Some(on) = state(enabler.event) else { continue };
            let change = &*change.get_or_insert_with(|| memory.change());
            memory.write(space.lane, op(born.space, enabler.key, *address, *bit, on), Some(change));
        }
    }

    /// Learns what memory turned out to be. After another process reaches it, all is opened again, and told what `state` says.
    pub(super) fn attend(&mut self, state: impl Fn(u32) -> Option<bool>) {
        let Some(memory) = self.memory.clone() else { return };
        let (generation, failures) = memory.failures();
        for failure in failures {
            match failure {
                Failure::Space(number) => {
                    let tasks = self.all.get(&number).map(|space| space.tasks.clone());
                    tasks.into_iter().flatten().for_each(|task| self.gone(task));
                }
                Failure::Task { task, space } if self.tasks.get(&task) == Some(&space) => self.gone(task),
                Failure::Task { .. } => {}
            }
        }
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        for (number, space) in &self.all {
            let Some(task) = space.tasks.first() else { continue };
            memory.open(*number, space.uid, *task, &space.identity, space.lane);
            for ((address, bit), enabler) in &space.enablers {
                if let Some(on) = state(enabler.event) {
                    memory.write(space.lane, op(*number, enabler.key, *address, *bit, on), None);
                }
            }
        }
    }

    /// Learns what became of tasks; the child processes among it that have memory of their own.
    pub(super) fn learn(&mut self) -> Vec<Born> {
        let Some(follow) = &mut self.follow else { return Vec::new() };
        let (news, lost) = follow.news();
        let mut born = Vec::new();
        for event in news {
            match event.kind {
                task_event::FORK => born.extend(self.born(event)),
                _ => self.gone(event.task),
            }
        }
        if lost && let Some(follow) = &self.follow {
            let (stay, gone): (Vec<u32>, Vec<u32>) = self.tasks.keys().partition(|task| follow.has(**task));
            for task in gone {
                self.gone(task);
            }
            // A number that is there may be another task's.
            for task in stay {
                let Some(number) = self.tasks.get(&task) else { continue };
                if let (Some(space), Some(memory)) = (self.all.get(number), &self.memory) {
                    memory.prove(space.uid, task, *number, &space.identity);
                }
            }
        }
        born
    }

    fn born(&mut self, event: TaskEvent) -> Option<Born> {
        // A number that comes again is another task's.
        self.gone(event.other);
        let number = *self.tasks.get(&event.task)?;
        let parent = self.all.get_mut(&number)?;
        if event.shares != 0 {
            parent.tasks.insert(event.other);
            self.tasks.insert(event.other, number);
            return None;
        }
        let (uid, identity) = (parent.uid, Arc::clone(&parent.identity));
        let asked: Vec<((u64, u8), u32)> =
            parent.enablers.iter().map(|(place, enabler)| (*place, enabler.event)).collect();
        let charge = self.quotas.charge(uid, Kind::AddressSpaces, 1).ok()?;
        let mut enablers = BTreeMap::new();
        for (place, event) in asked {
            let charge = self.quotas.charge(uid, Kind::Enablers, 1).ok()?;
            enablers.insert(place, Enabler { event, key: self.key(), _charge: charge });
        }
        // A process of its own has its first thread's number. Where it is another program by now, its memory is not as its parent's.
        let lane = self.lane(event.other, uid)?;
        let memory = self.memory.as_ref()?;
        let own = memory.number();
        memory.open(own, uid, event.other, &identity, lane);
        for ((address, bit), enabler) in &enablers {
            self.by_event.entry(enabler.event).or_default().insert((own, *address, *bit));
        }
        let tasks = BTreeSet::from([event.other]);
        let space = Space { uid, process: event.other, lane, identity, tasks, enablers, _charge: charge };
        self.all.insert(own, space);
        self.tasks.insert(event.other, own);
        Some(Born { space: own, time: event.time })
    }

    fn gone(&mut self, task: u32) {
        let Some(number) = self.tasks.remove(&task) else { return };
        let Some(space) = self.all.get_mut(&number) else { return };
        space.tasks.remove(&task);
        if !space.tasks.is_empty() {
            return;
        }
        let Some(space) = self.all.remove(&number) else { return };
        for ((address, bit), enabler) in &space.enablers {
            self.unuse(enabler.event, number, *address, *bit);
        }
        let Some(memory) = &self.memory else { return };
        memory.forget(number);
        if let Some((lane, spaces)) = self.lanes.get_mut(&space.process) {
            *spaces -= 1;
            if *spaces == 0 {
                memory.close_lane(*lane);
                self.lanes.remove(&space.process);
            }
        }
    }

    /// Tasks and address spaces that take part, for who asks whether any is left.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tasks.len(), self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::channel,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::control::client_memory::{self, Look, Text};

    #[test]
    fn a_bit_has_a_byte() {
        assert_eq!([place(64, 0), place(64, 31), place(64, 63)], [(64, 1), (67, 0x80), (71, 0x80)]);
    }

    fn spaces() -> (Spaces, ClientMemory) {
        let memory = client_memory::in_process();
        let mut spaces = Spaces::default();
        spaces.reach_by(memory.clone(), Quotas::default());
        (spaces, memory)
    }

    /// Our own address space under a number, as a request would have it.
    fn own(memory: &ClientMemory, spaces: &mut Spaces) -> (u64, Seen) {
        // A thread that is in no ioctl(2) is refused, so the space is opened as a child's is, by what it has.
        let (send, receive) = channel();
        let look = Look { thread: 1, uid: 0, number: 0, known: 0, structure: 0, text: Text::None };
        let until = Instant::now() + Duration::from_secs(60);
        memory.look(look, until, Box::new(move |id, seen| send.send((id, seen)).unwrap()));
        assert!(receive.recv().unwrap().1.is_err());
        let identity = client_memory::identity_of(std::process::id()).unwrap();
        let number = memory.number();
        let lane = spaces.lane(std::process::id(), 0).unwrap();
        spaces.lanes.get_mut(&std::process::id()).unwrap().1 -= 1;
        memory.open(number, 0, std::process::id(), &Arc::from(&identity[..]), lane);
        let seen = Seen {
            process: std::process::id(),
            capable: true,
            alive: true,
            identity,
            argument: 0,
            structure: Ok(Vec::new()),
            text: Ok(Vec::new()),
        };
        (number, seen)
    }

    fn value(word: &u32) -> u32 {
        // Through the kernel, as the compiler knows nothing of the write.
        let at = std::ptr::from_ref(word).expose_provenance() as u64;
        let mut now = [0; 4];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut now, at).unwrap();
        u32::from_ne_bytes(now)
    }

    fn write(memory: &ClientMemory, placed: Placed) -> Result<(), Errno> {
        let (send, receive) = channel();
        let until = Instant::now() + Duration::from_secs(60);
        memory.request(placed.lane, placed.op, until, Box::new(move |done| send.send(done).unwrap()));
        receive.recv().unwrap()
    }

    #[test]
    fn who_asks_is_told_and_forgotten_with_its_last_task() {
        let (mut spaces, memory) = spaces();
        let task = std::process::id();
        let word = Box::new(0_u32);
        let at = std::ptr::from_ref(&*word).expose_provenance() as u64;
        let (look, seen) = own(&memory, &mut spaces);
        let asking = Asking { task, uid: 0, look, seen: &seen };
        spaces.meet(asking);
        let placed = spaces.ask(asking, 5, (at, 9), true).unwrap();
        assert_eq!(write(&memory, placed), Ok(()));
        assert_eq!(value(&word), 1 << 9);
        assert!(spaces.has(task, at, 9) && !spaces.has(task, at, 8) && !spaces.has(1, at, 9));
        assert_eq!((spaces.uses(5), spaces.counts(), spaces.known(task)), (1, (1, 1), Some((look, false))));
        for on in [false, true, false, true] {
            let mut change = None;
            spaces.tell(5, on, &mut change);
            change.unwrap().wait();
            assert_eq!(value(&word) != 0, on);
        }
        // A thread shares it, and outlives the one that asked.
        let thread = TaskEvent { kind: task_event::FORK, task, other: 77, shares: 1, time: 0 };
        assert!(spaces.born(thread).is_none());
        spaces.gone(task);
        assert_eq!((spaces.uses(5), spaces.counts()), (1, (1, 1)));
        assert_eq!(spaces.forget(task, at, 9).err(), Some(Errno::NOENT));
        let placed = spaces.forget(77, at, 9).unwrap();
        assert_eq!(write(&memory, placed), Ok(()));
        assert_eq!((value(&word), spaces.uses(5), spaces.released.clone()), (0, 0, vec![5]));
        assert_eq!(spaces.forget(77, at, 9).err(), Some(Errno::NOENT));
        spaces.gone(77);
        assert_eq!((spaces.counts(), spaces.lanes.len()), ((0, 0), 0));
        drop(word);
    }

    #[test]
    fn a_task_whose_address_space_changed_is_not_believed() {
        let (mut spaces, memory) = spaces();
        let (look, seen) = own(&memory, &mut spaces);
        let asking = Asking { task: 5, uid: 7, look, seen: &seen };
        spaces.ask(asking, 1, (64, 0), false).unwrap();
        spaces.meet(asking);
        assert!(spaces.has(5, 64, 0));
        let other = Seen { identity: vec![1; 16], ..seen.clone() };
        spaces.meet(Asking { seen: &other, ..asking });
        assert!(!spaces.has(5, 64, 0));
        let (look, seen) = own(&memory, &mut spaces);
        spaces.ask(Asking { look, seen: &seen, ..asking }, 1, (64, 0), false).unwrap();
        let dead = Seen { alive: false, ..seen };
        spaces.meet(Asking { seen: &dead, ..asking });
        assert_eq!((spaces.counts(), spaces.uses(1)), ((0, 0), 0));
    }

    #[test]
    fn a_child_that_is_another_program_has_nothing() {
        let (mut spaces, memory) = spaces();
        let task = std::process::id();
        let (look, seen) = own(&memory, &mut spaces);
        let asking = Asking { task, uid: 0, look, seen: &seen };
        spaces.ask(asking, 1, (64, 0), false).unwrap();
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let fork = TaskEvent { kind: task_event::FORK, task, other: child.id(), shares: 0, time: 0 };
        let born = spaces.born(fork).unwrap();
        assert_eq!(spaces.counts(), (2, 2));
        let mut change = None;
        spaces.tell_child(&born, |_| Some(true), &mut change);
        change.unwrap().wait();
        let end = Instant::now() + Duration::from_secs(60);
        while spaces.counts() != (1, 1) {
            assert!(Instant::now() < end);
            spaces.attend(|_| None);
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_uid_has_so_many_addresses() {
        let (mut spaces, memory) = spaces();
        let (look, seen) = own(&memory, &mut spaces);
        let asking = Asking { task: 5, uid: 7, look, seen: &seen };
        let limit = Kind::Enablers.limits().per_uid as u64;
        for at in 0..limit {
            spaces.ask(asking, 1, (at * 8, 0), false).unwrap();
        }
        assert_eq!(spaces.ask(asking, 1, (limit * 8, 0), false).err(), Some(Errno::NOMEM));
        let child = TaskEvent { kind: task_event::FORK, task: 5, other: 6, shares: 0, time: 0 };
        assert!(spaces.born(child).is_none());
        assert_eq!((spaces.counts(), spaces.uses(1)), ((1, 1), limit as usize));
        spaces.gone(5);
        assert_eq!(spaces.quotas.used(7, Kind::Enablers), 0);
    }
}
