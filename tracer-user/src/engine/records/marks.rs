//! Marks that do not wait for the engine's owner.
//!
//! A program writes to `trace_marker` to see that moment among the kernel's records, so the write must not wait
//! until, for example, all events of a machine are enabled. Each instance has a queue to which any thread can add
//! marks, with the same timestamps as records of programs. The intake of records inserts each mark among the CPU's
//! records. Everything that shows records runs the intake first. The owner publishes in the queue how marks are
//! handled at present ([`MarkRules`]), so that the writer gets the kernel's answer. The owner records a mark itself
//! if the queue is full or more than recording is needed: triggers and histograms of `ftrace:print`, a clock that
//! counts records, buffers that may be too full, and copies for other instances.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    attach::TracingSwitch,
    buffer::{PageSize, clock::monotonic},
    engine::{
        command::error::{CommandError, ErrorKind},
        records::{
            common::pid_of,
            mark::{Mark, Writer, Written},
        },
        tasks::{TaskNames, thread_group},
    },
};

/// Maximum number of waiting marks, and of their bytes.
const WAITING: usize = 4096;
const BYTES: usize = 1 << 20;
/// Maximum number of remembered writers.
const WRITERS: usize = 64;

/// How marks are recorded at present.
#[derive(Clone, Debug)]
pub(crate) struct MarkRules {
    /// Kinds of the records of text and raw marks.
    pub(crate) kinds: [u16; 2],
    /// Address of the function that writes marks in the kernel.
    pub(crate) ip: u64,
    pub(crate) page: PageSize,
    /// Which CPUs are recorded.
    pub(crate) cpus: Vec<bool>,
    /// Whether recording is on, apart from the switch.
    pub(crate) on: bool,
    /// The switch by which triggers disable recording.
    pub(crate) switch: Option<TracingSwitch>,
}

impl MarkRules {
    fn records(&self, cpu: u32) -> bool {
        let recorded = self.cpus.get(cpu as usize).copied().unwrap_or_default();
        recorded && self.on && self.switch.as_ref().is_none_or(TracingSwitch::is_on)
    }
}

/// A mark in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    stamp: u64,
    record: Vec<u8>,
    comm: [u8; 16],
    group: Option<i32>,
}

#[derive(Debug, Default)]
struct State {
    rules: Option<MarkRules>,
    /// Queues by CPU.
    waiting: Vec<VecDeque<Waiting>>,
    count: usize,
    bytes: usize,
    /// Last writers, and their processes.
    writers: VecDeque<(u32, Option<i32>)>,
}

/// The marks of an instance.
#[derive(Debug, Default)]
pub struct Marks {
    state: Mutex<State>,
}

impl Marks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a mark. Returns the number of recorded bytes; `None` if the owner must record it.
    ///
    /// # Errors
    /// `EINVAL` if raw data has no number, `EBADF` while recording is off.
    pub fn take(
        &self,
        mark: Mark,
        written: &[u8],
        writer: impl FnOnce() -> Writer,
    ) -> Option<Result<usize, CommandError>> {
        self.lock().rules.as_ref()?;
        // Read from /proc, so outside the lock.
        let writer = writer();
        let group = self.group(writer.pid);
        let mut state = self.lock();
        let rules = state.rules.as_ref()?;
        let [text, raw] = rules.kinds;
        let kind = if mark == Mark::Raw { raw } else { text };
        let Written { record, taken } = match mark.record(written, kind, rules.ip, writer.pid, rules.page) {
            Ok(made) => made,
            Err(error) => return Some(Err(error)),
        };
        if !rules.records(writer.cpu) {
            return Some(Err(ErrorKind::BadFile.into()));
        }
        if state.count >= WAITING || state.bytes + record.len() > BYTES {
            return None;
        }
        state.count += 1;
        state.bytes += record.len();
        let cpu = writer.cpu as usize;
        if state.waiting.len() <= cpu {
            state.waiting.resize_with(cpu + 1, VecDeque::new);
        }
        // Stamped under the lock, so the marks of a CPU are in order.
        let waiting = Waiting { stamp: monotonic(), record, comm: writer.comm, group };
        if let Some(own) = state.waiting.get_mut(cpu) {
            own.push_back(waiting);
        }
        Some(Ok(taken))
    }

    fn group(&self, pid: u32) -> Option<i32> {
        if let Some((_, group)) = self.lock().writers.iter().find(|(writer, _)| *writer == pid) {
            return *group;
        }
        let group = thread_group(pid as i32);
        let mut state = self.lock();
        if state.writers.len() >= WRITERS {
            state.writers.pop_front();
        }
        state.writers.push_back((pid, group));
        group
    }

    /// Sets how marks are recorded from now on; `None` if the owner records all.
    pub(crate) fn publish(&self, rules: Option<MarkRules>) {
        self.lock().rules = rules;
    }

    /// Removes and returns the marks of a CPU up to a time.
    pub(crate) fn until(&self, cpu: u32, stamp: u64) -> VecDeque<Waiting> {
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(cpu as usize) else { return VecDeque::new() };
        let index = waiting.partition_point(|mark| mark.stamp <= stamp);
        let later = waiting.split_off(index);
        let given = std::mem::replace(waiting, later);
        state.count -= given.len();
        state.bytes -= given.iter().map(|mark| mark.record.len()).sum::<usize>();
        given
    }

    /// Puts marks back at the front.
    pub(crate) fn put_back(&self, cpu: u32, marks: VecDeque<Waiting>) {
        let mut state = self.lock();
        state.count += marks.len();
        state.bytes += marks.iter().map(|mark| mark.record.len()).sum::<usize>();
        if let Some(waiting) = state.waiting.get_mut(cpu as usize) {
            for mark in marks.into_iter().rev() {
                waiting.push_front(mark);
            }
        }
    }

    /// Number of CPUs with a queue.
    pub(crate) fn cpus(&self) -> u32 {
        self.lock().waiting.len() as u32
    }
}

impl Waiting {
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The record, after its writer's name was stored.
    pub(crate) fn enter(self, tasks: &mut TaskNames) -> Vec<u8> {
        let comm = self.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        tasks.record_known(pid_of(&self.record), comm, self.group);
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> MarkRules {
        MarkRules {
            kinds: [5, 6],
            ip: 7,
            page: PageSize::LEAST,
            cpus: vec![true, false, true],
            on: true,
            switch: None,
        }
    }

    fn writer(cpu: u32) -> Writer {
        Writer { pid: std::process::id(), cpu, comm: *b"writer\0\0\0\0\0\0\0\0\0\0" }
    }

    #[test]
    fn marks_are_ordered_and_taken_up_to_a_time() {
        let marks = Marks::default();
        assert_eq!(marks.take(Mark::Text, b"early", || panic!("the owner takes it")), None);
        marks.publish(Some(rules()));
        assert_eq!(marks.take(Mark::Text, b"one", || writer(0)), Some(Ok(3)));
        let between = monotonic();
        assert_eq!(marks.take(Mark::Text, b"two", || writer(0)), Some(Ok(3)));
        assert_eq!(marks.take(Mark::Raw, b"1234", || writer(2)), Some(Ok(4)));
        let first = marks.until(0, between);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].record[..2], 5_u16.to_ne_bytes());
        marks.put_back(0, first);
        let both = marks.until(0, u64::MAX);
        assert!(both.len() == 2 && both[0].stamp < both[1].stamp);
        assert_eq!(marks.until(2, u64::MAX).len(), 1);
        let state = marks.lock();
        assert_eq!((state.count, state.bytes), (0, 0));
    }

    #[test]
    fn errors_equal_the_owners_and_the_owner_records_for_a_full_queue() {
        let marks = Marks::default();
        marks.publish(Some(rules()));
        // A CPU that is not recorded, and one that does not exist.
        assert_eq!(marks.take(Mark::Text, b"x", || writer(1)), Some(Err(ErrorKind::BadFile.into())));
        assert_eq!(marks.take(Mark::Text, b"x", || writer(9)), Some(Err(ErrorKind::BadFile.into())));
        assert_eq!(marks.take(Mark::Raw, b"123", || writer(0)), Some(Err(ErrorKind::Invalid.into())));
        for _ in 0..WAITING {
            assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), Some(Ok(1)));
        }
        assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), None);
        marks.publish(Some(MarkRules { on: false, ..rules() }));
        assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), Some(Err(ErrorKind::BadFile.into())));
    }
}
