//! Marks that did not wait for the mirror's owner.
//!
//! A write to `trace_marker` is a moment that its program wants to see among the kernel's records; it must not wait until all
//! events of a machine are turned on. So each instance has a queue that any thread may put marks into, stamped as programs stamp
//! records. [`Engine::collect`] puts each in its place among the CPU's records; everything that shows records collects first.
//! The owner says beside the queue what a mark comes to at present ([`Engine::publish_marks`]), so that a program is told what
//! the kernel would tell it. Where more is to be done than to record it, or the queue is full, the owner takes the mark:
//! triggers and histograms of `ftrace:print`, a clock that counts, buffers that may be too full, other instances that want it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;

use crate::{
    attach::TracingSwitch,
    buffer::{
        PageSize,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        Engine,
        instances::instance::Instance,
        records::mark::{COPY, Mark, Writer, Written},
        registry::catalogue::{SPECIAL, STACKS},
        tasks::{TaskNames, thread_group},
    },
    event::InstanceId,
};

/// Marks that wait at most, and their bytes.
const WAITING: usize = 4096;
const BYTES: usize = 1 << 20;
/// Writers whose processes are remembered.
const WRITERS: usize = 64;

/// What a mark comes to at present.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Present {
    /// Kinds of the records of both sorts of marks.
    kinds: [u16; 2],
    /// Address of the function that writes marks in the kernel.
    ip: u64,
    page: PageSize,
    cpus: Vec<bool>,
    /// Whether records are taken, apart from the switch.
    on: bool,
    /// What triggers turn recording off by.
    switch: Option<TracingSwitch>,
}

impl Present {
    fn records(&self, cpu: u32) -> bool {
        let recorded = self.cpus.get(cpu as usize).copied().unwrap_or_default();
        recorded && self.on && self.switch.as_ref().is_none_or(TracingSwitch::is_on)
    }
}

/// A mark on its way to the buffer.
#[derive(Debug)]
pub(in crate::engine) struct Waiting {
    stamp: u64,
    record: Vec<u8>,
    comm: [u8; 16],
    group: Option<i32>,
}

#[derive(Debug, Default)]
struct State {
    present: Option<Present>,
    /// By CPU.
    waiting: Vec<VecDeque<Waiting>>,
    count: usize,
    bytes: usize,
    /// Threads that wrote last, and their processes.
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

    /// Takes a mark, and says how much of it; None where the owner is to take it.
    ///
    /// # Errors
    /// As [`Engine::mark`].
    pub fn take(
        &self,
        mark: Mark,
        written: &[u8],
        writer: impl FnOnce() -> Writer,
    ) -> Option<Result<usize, Errno>> {
        self.lock().present.as_ref()?;
        // Read from /proc, so outside of the lock.
        let writer = writer();
        let group = self.group(writer.pid);
        let mut state = self.lock();
        let present = state.present.as_ref()?;
        let [text, raw] = present.kinds;
        let kind = if mark == Mark::Raw { raw } else { text };
        let made = mark.record(written, kind, present.ip, writer.pid, present.page);
        let Written { record, taken } = match made {
            Ok(made) => made,
            Err(error) => return Some(Err(error)),
        };
        if !present.records(writer.cpu) {
            return Some(Err(Errno::BADF));
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
        // Stamped under the lock: marks of a CPU are in order.
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

    /// Says what a mark comes to from now on; None where the owner is to take all.
    fn publish(&self, present: Option<Present>) {
        self.lock().present = present;
    }

    /// Gives out the marks of a CPU up to a moment.
    pub(in crate::engine) fn until(&self, cpu: u32, stamp: u64) -> VecDeque<Waiting> {
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(cpu as usize) else { return VecDeque::new() };
        let index = waiting.partition_point(|mark| mark.stamp <= stamp);
        let later = waiting.split_off(index);
        let given = std::mem::replace(waiting, later);
        state.count -= given.len();
        state.bytes -= given.iter().map(|mark| mark.record.len()).sum::<usize>();
        given
    }

    /// Takes marks back that came first.
    pub(in crate::engine) fn put_back(&self, cpu: u32, marks: VecDeque<Waiting>) {
        let mut state = self.lock();
        state.count += marks.len();
        state.bytes += marks.iter().map(|mark| mark.record.len()).sum::<usize>();
        if let Some(waiting) = state.waiting.get_mut(cpu as usize) {
            for mark in marks.into_iter().rev() {
                waiting.push_front(mark);
            }
        }
    }

    fn cpus(&self) -> u32 {
        self.lock().waiting.len() as u32
    }
}

impl Waiting {
    pub(in crate::engine) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The record, once its writer's name is known.
    pub(in crate::engine) fn enter(self, tasks: &mut TaskNames) -> Vec<u8> {
        let pid = self.record.get(4..8).and_then(|pid| pid.try_into().ok()).map_or(0, i32::from_ne_bytes);
        let comm = self.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        tasks.met(pid, comm, self.group);
        self.record
    }
}

/// Puts all marks up to a moment into the buffers of an instance whose programs have recorded nothing before them.
pub(in crate::engine) fn flush(state: &mut Instance, tasks: &mut TaskNames, until: u64) {
    let conversion = Conversion::now(state.clock);
    for cpu in 0..state.marks.cpus() {
        for mark in state.marks.until(cpu, until) {
            let stamp = mark.stamp();
            let record = mark.enter(tasks);
            state.counted += 1;
            if let Some(buffer) = state.buffer.cpu_mut(cpu) {
                buffer.push(conversion.time(stamp, state.counted), &record);
            }
        }
    }
}

impl Engine {
    /// The marks of an instance.
    pub fn marks(&self, instance: InstanceId) -> Option<Arc<Marks>> {
        self.get(instance).map(|state| Arc::clone(&state.marks))
    }

    /// Says that what a mark comes to may have changed.
    pub fn stale_marks(&mut self) {
        self.marks_stale = true;
    }

    /// Reads the formats of marks and stacks, which every instance needs. The kernel may take long to show them, while it closes
    /// other tracers' events, and no request is to wait for that.
    pub fn read_special_formats(&self) {
        let Some(system) = self.registry.events().find_system(SPECIAL) else { return };
        for name in [Mark::Text.name(), Mark::Raw.name()].into_iter().chain(STACKS) {
            let event = self.registry.events().find(system, name);
            let _ = event.and_then(|event| self.registry.events().format(event, &self.facts));
        }
    }

    /// Says beside each instance's marks what one comes to, if that may have changed.
    pub(in crate::engine) fn publish_marks(&mut self) {
        if !std::mem::take(&mut self.marks_stale) {
            return;
        }
        for (instance, state) in &self.instances {
            state.marks.publish(self.present(*instance, state));
        }
    }

    fn present(&self, instance: InstanceId, state: &Instance) -> Option<Present> {
        let options = &state.options;
        let plain =
            options.is("markers") && options.is("overwrite") && state.clock != Clock::Counter && !state.armed;
        if !plain {
            return None;
        }
        // Those of the top go to all instances that want them.
        if instance == InstanceId::TOP && options.find(COPY).is_some() {
            let alone =
                self.numbered().all(|(other, state)| state.options.is(COPY) == (other == InstanceId::TOP));
            if !alone {
                return None;
            }
        }
        let system = self.registry.events().find_system(SPECIAL)?;
        let [text, raw] =
            [Mark::Text, Mark::Raw].map(|mark| self.registry.events().find(system, mark.name()));
        let (text, raw) = (text?, raw?);
        if !state.triggers.of(text).is_empty() || self.histograms.counts_event(instance, text) {
            return None;
        }
        let session = self.attachments.session(instance);
        let kind = |event| Some(self.registry.events().format(event, &self.facts)?.id);
        Some(Present {
            kinds: [kind(text)?, kind(raw)?],
            // Not before the symbols were read, which takes long.
            ip: self.facts.known_mark_writer()?,
            page: state.page(),
            cpus: state.cpus.clone(),
            on: session.is_some() || state.on,
            switch: session.map(|session| session.kernel().tracing_switch()),
        })
        .filter(|_| state.stops == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present() -> Present {
        Present {
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
    fn marks_wait_in_order_and_are_given_out_up_to_a_moment() {
        let marks = Marks::default();
        assert_eq!(marks.take(Mark::Text, b"early", || panic!("the owner takes it")), None);
        marks.publish(Some(present()));
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
    fn errors_are_those_of_the_owner_and_a_full_queue_is_its() {
        let marks = Marks::default();
        marks.publish(Some(present()));
        // A CPU that is not recorded, or that there is not.
        assert_eq!(marks.take(Mark::Text, b"x", || writer(1)), Some(Err(Errno::BADF)));
        assert_eq!(marks.take(Mark::Text, b"x", || writer(9)), Some(Err(Errno::BADF)));
        assert_eq!(marks.take(Mark::Raw, b"123", || writer(0)), Some(Err(Errno::INVAL)));
        for _ in 0..WAITING {
            assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), Some(Ok(1)));
        }
        assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), None);
        marks.publish(Some(Present { on: false, ..present() }));
        assert_eq!(marks.take(Mark::Text, b"x", || writer(0)), Some(Err(Errno::BADF)));
    }
}
