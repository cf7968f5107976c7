//! Address spaces of processes that asked to be told by a bit in their memory whether an event is on.
//!
//! The kernel has what a task asked for at the task: threads born to it have it too, a child process has a copy, and with
//! the last task, or its next program, it is gone. So it is here. Memory is reached through a descriptor of its own, so that a
//! number that another process has by now does no harm.

use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    os::unix::fs::FileExt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::io::Errno;
use tracer_abi::{TaskEvent, task_event};

use crate::attach::Tasks;

/// A process's memory.
#[derive(Debug)]
pub struct Memory {
    file: File,
    /// What the kernel told the program at its start: no other program's is the same, except where addresses are not random.
    auxiliary: Vec<u8>,
    /// Somebody hangs in it.
    stuck: AtomicBool,
    /// Taken by who writes into it.
    writing: Mutex<()>,
}

impl Memory {
    /// The memory of a thread's process.
    fn open(task: u32) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/proc/{task}/mem"))?;
        // Read behind: if this is the old program's, so is the memory.
        let mut auxiliary = Vec::new();
        File::open(format!("/proc/{task}/auxv"))?.take(4096).read_to_end(&mut auxiliary)?;
        Ok(Self { file, auxiliary, stuck: AtomicBool::new(false), writing: Mutex::default() })
    }

    /// Keeps others from writing bits into it.
    pub(super) fn take(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody hangs in it, so that nobody else should go there.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }
}

/// A bit to be written into a process's memory.
#[derive(Clone, Debug)]
pub struct Write {
    pub(super) memory: Arc<Memory>,
    address: u64,
    bit: u8,
    on: bool,
    /// Whether the program still wants it.
    wanted: Arc<AtomicBool>,
}

/// The byte of a word in which a bit is, and the bit in that.
pub(super) fn place(address: u64, bit: u8) -> (u64, u8) {
    let at = if cfg!(target_endian = "little") { bit / 8 } else { 7 - bit / 8 };
    (address.wrapping_add(u64::from(at)), 1 << (bit % 8))
}

impl Write {
    /// Writes it. Other bits of the byte stay, unless the program changes them at the same moment.
    pub(super) fn run(&self) {
        let _taken = self.memory.take();
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let (at, mask) = place(self.address, self.bit);
        let mut byte = [0];
        let done = self.memory.file.read_exact_at(&mut byte, at).and_then(|()| {
            let new = if self.on { byte[0] | mask } else { byte[0] & !mask };
            if new == byte[0] { Ok(()) } else { self.memory.file.write_all_at(&[new], at) }
        });
        if let Err(error) = done {
            tracing::debug!("no bit at {:#x}: {error}", self.address);
        }
    }
}

/// Who wants to know of which event, and where.
#[derive(Clone, Debug)]
struct Enabler {
    event: u32,
    address: u64,
    bit: u8,
    /// Whether it still does; writes that are on their way look at it.
    wanted: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Space {
    memory: Arc<Memory>,
    tasks: usize,
    enablers: Vec<Enabler>,
}

impl Space {
    fn write(&self, enabler: &Enabler, on: bool) -> Write {
        let (memory, wanted) = (Arc::clone(&self.memory), Arc::clone(&enabler.wanted));
        Write { memory, address: enabler.address, bit: enabler.bit, on, wanted }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    all: HashMap<u64, Space>,
    tasks: HashMap<u32, u64>,
    next: u64,
    /// How many ask for an event.
    uses: HashMap<u32, usize>,
    follow: Option<Tasks>,
}

/// A child process that has a copy of what its parent asked for: its events, and when it was born.
pub(super) struct Born {
    space: u64,
    pub(super) time: u64,
}

impl Spaces {
    /// What tells of births and ends, once somebody takes part.
    pub(super) fn followed(&self) -> Option<&Tasks> {
        self.follow.as_ref()
    }

    pub(super) fn set_followed(&mut self, tasks: Tasks) {
        self.follow = Some(tasks);
    }

    /// How many processes have asked for an event.
    pub(super) fn uses(&self, event: u32) -> usize {
        self.uses.get(&event).copied().unwrap_or(0)
    }

    /// Whether nobody takes part.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn of(&self, task: u32) -> Option<&Space> {
        self.all.get(self.tasks.get(&task)?)
    }

    /// Whether a task has asked for something at this place.
    pub(super) fn has(&self, task: u32, address: u64, bit: u8) -> bool {
        self.of(task)
            .is_some_and(|space| space.enablers.iter().any(|own| own.address == address && own.bit == bit))
    }

    /// Lets a task ask for an event. The task waits for us, and is the one that it was.
    pub(super) fn ask(&mut self, task: u32, event: u32, address: u64, bit: u8) -> Result<(), Errno> {
        if !self.tasks.contains_key(&task) {
            let memory = Memory::open(task).map_err(|error| {
                Errno::from_io_error(&error).filter(|errno| *errno != Errno::NOENT).unwrap_or(Errno::NOMEM)
            })?;
            if let Some(follow) = &self.follow {
                follow.add(task).map_err(|_| Errno::NOMEM)?;
            }
            self.next += 1;
            let space = Space { memory: Arc::new(memory), tasks: 1, enablers: Vec::new() };
            self.all.insert(self.next, space);
            self.tasks.insert(task, self.next);
        }
        let space = self.tasks.get(&task).and_then(|space| self.all.get_mut(space));
        space.ok_or(Errno::NOMEM)?.enablers.push(Enabler {
            event,
            address,
            bit,
            wanted: Arc::new(AtomicBool::new(true)),
        });
        *self.uses.entry(event).or_default() += 1;
        Ok(())
    }

    /// Forgets what a task asked for at a place. Who takes the memory then finds nobody else writing there.
    pub(super) fn forget(&mut self, task: u32, address: u64, bit: u8) -> Result<Arc<Memory>, Errno> {
        let space = self.tasks.get(&task).and_then(|space| self.all.get_mut(space)).ok_or(Errno::NOENT)?;
        let is = |own: &Enabler| own.address == address && own.bit == bit;
        let gone: Vec<Enabler> = space.enablers.extract_if(.., |own| is(own)).collect();
        let memory = Arc::clone(&space.memory);
        for own in &gone {
            own.wanted.store(false, Ordering::Release);
        }
        self.unused(&gone);
        if gone.is_empty() { Err(Errno::NOENT) } else { Ok(memory) }
    }

    fn unused(&mut self, gone: &[Enabler]) {
        for Enabler { event, .. } in gone {
            if let Some(uses) = self.uses.get_mut(event) {
                *uses -= 1;
                if *uses == 0 {
                    self.uses.remove(event);
                }
            }
        }
    }

    /// What is to be written now that an event is on or off.
    pub(super) fn writes(&self, event: u32, on: bool) -> Vec<Write> {
        if self.uses(event) == 0 {
            return Vec::new();
        }
        let all = self.all.values().flat_map(|space| space.enablers.iter().map(move |own| (space, own)));
        all.filter(|(_, own)| own.event == event).map(|(space, own)| space.write(own, on)).collect()
    }

    /// What is to be written into a new process's memory: what `state` says of its events.
    pub(super) fn writes_of(&self, born: &Born, state: impl Fn(u32) -> Option<bool>) -> Vec<Write> {
        let Some(space) = self.all.get(&born.space) else { return Vec::new() };
        space.enablers.iter().filter_map(|own| Some(space.write(own, state(own.event)?))).collect()
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
        if lost {
            let Some(follow) = &self.follow else { return born };
            let gone: Vec<u32> = self.tasks.keys().copied().filter(|task| !follow.has(*task)).collect();
            for task in gone {
                self.gone(task);
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
            parent.tasks += 1;
            self.tasks.insert(event.other, number);
            return None;
        }
        // Gone again, or another program by now: then its end is told next.
        let memory = Memory::open(event.other).ok()?;
        if memory.auxiliary != parent.memory.auxiliary {
            return None;
        }
        let copy = |own: &Enabler| Enabler { wanted: Arc::new(AtomicBool::new(true)), ..own.clone() };
        let enablers: Vec<Enabler> = parent.enablers.iter().map(copy).collect();
        for Enabler { event, .. } in &enablers {
            *self.uses.entry(*event).or_default() += 1;
        }
        self.next += 1;
        self.all.insert(self.next, Space { memory: Arc::new(memory), tasks: 1, enablers });
        self.tasks.insert(event.other, self.next);
        Some(Born { space: self.next, time: event.time })
    }

    fn gone(&mut self, task: u32) {
        let Some(number) = self.tasks.remove(&task) else { return };
        let Some(space) = self.all.get_mut(&number) else { return };
        space.tasks -= 1;
        if space.tasks == 0
            && let Some(space) = self.all.remove(&number)
        {
            self.unused(&space.enablers);
        }
    }

    /// Tasks and address spaces that take part, for who asks whether any is left.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tasks.len(), self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_has_a_byte() {
        assert_eq!([place(64, 0), place(64, 31), place(64, 63)], [(64, 1), (67, 0x80), (71, 0x80)]);
    }

    #[test]
    fn who_asks_is_told_and_forgotten_with_its_last_task() {
        let mut spaces = Spaces::default();
        let own = std::process::id();
        let mut word = Box::new(0_u32);
        let at = (&raw mut *word).expose_provenance() as u64;
        spaces.ask(own, 5, at, 9).unwrap();
        assert!(spaces.has(own, at, 9) && !spaces.has(own, at, 8) && !spaces.has(1, at, 9));
        assert_eq!((spaces.uses(5), spaces.counts()), (1, (1, 1)));
        for write in spaces.writes(5, true) {
            write.run();
        }
        // Through the kernel, as the compiler knows nothing of the write.
        let mut now = [0; 4];
        crate::sys::memory::read(own, at, &mut now).unwrap();
        assert_eq!(u32::from_ne_bytes(now), 1 << 9);
        // A thread shares it, and outlives the one that asked.
        let thread = TaskEvent { kind: task_event::FORK, task: own, other: 77, shares: 1, time: 0 };
        assert!(spaces.born(thread).is_none());
        spaces.gone(own);
        assert_eq!((spaces.uses(5), spaces.counts()), (1, (1, 1)));
        assert_eq!(spaces.forget(own, at, 9).err(), Some(Errno::NOENT));
        // A write that is on its way then is none.
        let late = spaces.writes(5, false);
        assert!(spaces.forget(77, at, 9).is_ok());
        late.iter().for_each(Write::run);
        crate::sys::memory::read(own, at, &mut now).unwrap();
        assert_eq!(u32::from_ne_bytes(now), 1 << 9);
        assert_eq!((spaces.uses(5), spaces.forget(77, at, 9).err()), (0, Some(Errno::NOENT)));
        spaces.gone(77);
        assert_eq!(spaces.counts(), (0, 0));
        drop(word);
    }
}
