//! Processes that take part in user events. BPF programs report when such a process forks, ends, or runs another
//! program. They report in the order in which it happens, before the process does its next system call.

pub(crate) mod follow;

use std::os::fd::{AsFd, OwnedFd};

use tracer_abi::{TASK_RING, TASKS, TASKS_LOST, TaskEvent};

use super::{Cause, maps};
use crate::{
    kernel::PreemptGuard,
    sys::bpf::{
        map::{Map, MapKind},
        prog::Prog,
        ring::{Drained, RingMemory, Seen},
    },
};

/// Processes that can take part at once: those charged to uids (`Kind::AddressSpaces`), plus as many uncharged ones as
/// fit into the ring. So one more process of root always fits.
const ENTRIES: u32 = 65_536;
/// Bytes of the ring, enough for some thousands of waiting events.
const RING_BYTES: u32 = 1 << 18;

/// How often the reader retries while a record is being written, which takes less than a microsecond.
const BUSY_TRIES: u32 = 1000;

/// Byte offsets in the kernel's `struct task_struct`, except for the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// Of `tgid`.
    pub tgid: u32,
    /// Of `mm`.
    pub mm: u32,
    /// Of `signal`.
    pub signal: u32,
    /// Of `live` in `struct signal_struct`.
    pub live: u32,
}

/// Follows tasks until it is dropped.
#[derive(Debug)]
pub struct Tasks {
    _hooks: Vec<(Prog, OwnedFd)>,
    table: Map,
    ring: RingMemory,
}

impl Tasks {
    /// Attaches the programs; no process takes part yet.
    ///
    /// # Errors
    /// When the kernel refuses maps or programs.
    pub fn follow(offsets: TaskOffsets, guard: Option<PreemptGuard>) -> Result<Self, Cause> {
        let table = maps::create(&maps::spec(MapKind::Hash, 8, ENTRIES, "tracer_tasks"))?;
        let ring = maps::ring_buffer(RING_BYTES, "tracer_births")?;
        table.update(&TASKS_LOST.to_ne_bytes(), &[0; 8]).map_err(|errno| Cause::Map("hash", errno))?;
        let templates = [
            ("tasks_fork", "sched_process_fork"),
            ("tasks_exec", "sched_process_exec"),
            ("tasks_exit", "sched_process_exit"),
        ];
        let (tgid, mm) = (offsets.tgid.to_ne_bytes(), offsets.mm.to_ne_bytes());
        let (signal, live) = (offsets.signal.to_ne_bytes(), offsets.live.to_ne_bytes());
        let constants: [(&str, &[u8]); 4] =
            [("TASKS_TGID", &tgid), ("TASKS_MM", &mm), ("TASKS_SIGNAL", &signal), ("TASKS_LIVE", &live)];
        let hooks = follow::attach_hook(&templates, &constants, None, guard, |map| match map {
            TASKS => Some(table.as_fd()),
            TASK_RING => Some(ring.as_fd()),
            _ => None,
        })?;
        let ring = RingMemory::new(ring).map_err(|errno| Cause::Map("ring buffer", errno))?;
        Ok(Self { _hooks: hooks, table, ring })
    }

    /// Adds a process that takes part since `mark` (`CLOCK_MONOTONIC`), and from now on its children.
    ///
    /// # Errors
    /// `E2BIG` when too many processes take part.
    pub fn add(&self, process: u32, mark: u64) -> Result<(), crate::sys::Errno> {
        self.table.update(&process.to_ne_bytes(), &mark.to_ne_bytes())
    }

    /// The time since which a process takes part (`CLOCK_MONOTONIC`); `None` if it takes no part. A process that
    /// ended or ran another program takes no part, even if its event was not read yet.
    pub fn mark(&self, process: u32) -> Option<u64> {
        let value = self.table.lookup(&process.to_ne_bytes()).ok()??;
        value.first_chunk().map(|mark| u64::from_ne_bytes(*mark))
    }

    /// Removes a process that takes part since `mark`.
    pub fn remove(&self, process: u32, mark: u64) {
        // A new process with the same id has its own mark and stays. If the new process is born between these two
        // calls, it is not followed any more; it is forgotten with the next process of its id.
        if self.mark(process) == Some(mark) {
            let _ = self.table.delete(&process.to_ne_bytes());
        }
    }

    /// The oldest events since the last call, at most `most` of them, and whether events were lost.
    pub fn news(&mut self, most: usize) -> (Vec<TaskEvent>, bool) {
        let mut all = Vec::new();
        let mut take = |bytes: &[u8]| {
            if all.len() == most {
                return Seen::Left;
            }
            let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            let word = |at| word(at).map_or(0, u32::from_ne_bytes);
            let time = u64::from(word(16)) | u64::from(word(20)) << 32;
            all.push(TaskEvent { kind: word(0), task: word(4), other: word(8), shares: word(12), time });
            Seen::Taken
        };
        for _ in 0..BUSY_TRIES {
            // A record that is still being written is older than those behind it. Only this thread waits for its end.
            match self.ring.drain(&mut take) {
                Drained::Busy => std::thread::yield_now(),
                _ => break,
            }
        }
        let key = TASKS_LOST.to_ne_bytes();
        let lost = matches!(self.table.lookup(&key), Ok(Some(lost)) if lost != [0; 8]);
        if lost {
            let _ = self.table.update(&key, &[0; 8]);
        }
        (all, lost)
    }

    /// The ring, which becomes readable when an event arrives.
    pub fn ring(&self) -> &RingMemory {
        &self.ring
    }
}
