//! Tasks that take part in user events: who of them has children, ends, or runs another program, told by programs of our own
//! in the order in which it happens, before any of those does its next system call.

use std::os::fd::{AsFd, OwnedFd};

use tracer_abi::{TASK_RING, TASKS, TASKS_LOST, TaskEvent};

use super::{Cause, follow};
use crate::{
    kernel::Cast,
    sys::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
        ring::{Drained, RingMemory, Seen},
    },
};

/// Threads that can take part at once.
const ENTRIES: u32 = 65_536;
/// Bytes of the ring: so many events may wait, some thousands.
const RING_BYTES: u32 = 1 << 18;

/// How often a ring is looked at again in which something is being written: that takes less than a microsecond.
const BUSY_TRIES: u32 = 1000;

/// Byte offsets in the kernel's `struct task_struct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// Of `pid`.
    pub pid: u32,
    /// Of `mm`.
    pub mm: u32,
}

/// Follows tasks as long as it lives.
#[derive(Debug)]
pub struct Tasks {
    _hooks: Vec<(Prog, OwnedFd)>,
    table: Map,
    ring: RingMemory,
}

impl Tasks {
    /// Puts the programs on their hooks; nobody takes part yet.
    ///
    /// # Errors
    /// When the kernel refuses maps or programs.
    pub fn follow(offsets: TaskOffsets, cast: Option<Cast>) -> Result<Self, Cause> {
        let table = Map::create(&MapSpec {
            kind: MapKind::Hash,
            key_size: 4,
            value_size: 1,
            max_entries: ENTRIES,
            flags: 0,
            inner: None,
            name: "tracer_tasks",
        })
        .map_err(|errno| Cause::Map("hash", errno))?;
        let ring = Map::create(&MapSpec {
            kind: MapKind::RingBuf,
            key_size: 0,
            value_size: 0,
            max_entries: RING_BYTES,
            flags: 0,
            inner: None,
            name: "tracer_births",
        })
        .map_err(|errno| Cause::Map("ring buffer", errno))?;
        table.update(&TASKS_LOST.to_ne_bytes(), &[0]).map_err(|errno| Cause::Map("hash", errno))?;
        let templates = [
            ("tasks_fork", "sched_process_fork"),
            ("tasks_exec", "sched_process_exec"),
            ("tasks_exit", "sched_process_exit"),
        ];
        let (pid, mm) = (offsets.pid.to_ne_bytes(), offsets.mm.to_ne_bytes());
        let hooks =
            follow::hang(&templates, &[("TASKS_PID", &pid), ("TASKS_MM", &mm)], cast, |map| match map {
                TASKS => Some(table.as_fd()),
                TASK_RING => Some(ring.as_fd()),
                _ => None,
            })?;
        let ring = RingMemory::new(ring).map_err(|errno| Cause::Map("ring buffer", errno))?;
        Ok(Self { _hooks: hooks, table, ring })
    }

    /// Lets a thread take part, and from then on its children.
    ///
    /// # Errors
    /// `E2BIG` when too many do.
    pub fn add(&self, task: u32) -> Result<(), crate::sys::Errno> {
        self.table.update(&task.to_ne_bytes(), &[1])
    }

    /// Whether a thread takes part.
    pub fn has(&self, task: u32) -> bool {
        matches!(self.table.lookup(&task.to_ne_bytes()), Ok(Some(_)))
    }

    /// What happened since the last call, and whether something is missing from it.
    pub fn news(&mut self) -> (Vec<TaskEvent>, bool) {
        let mut all = Vec::new();
        let mut take = |bytes: &[u8]| {
            let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            let word = |at| word(at).map_or(0, u32::from_ne_bytes);
            let time = u64::from(word(16)) | u64::from(word(20)) << 32;
            all.push(TaskEvent { kind: word(0), task: word(4), other: word(8), shares: word(12), time });
            Seen::Taken
        };
        for _ in 0..BUSY_TRIES {
            // What is being written is older than what stands behind it, and nobody is to wait for its end but us.
            match self.ring.drain(&mut take) {
                Drained::Busy => std::thread::yield_now(),
                _ => break,
            }
        }
        let key = TASKS_LOST.to_ne_bytes();
        let lost = matches!(self.table.lookup(&key), Ok(Some(lost)) if lost != [0]);
        if lost {
            let _ = self.table.update(&key, &[0]);
        }
        (all, lost)
    }

    /// What becomes readable when something happens.
    pub fn ring(&self) -> &RingMemory {
        &self.ring
    }
}
