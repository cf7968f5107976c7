//! From the rings into the buffers: what an instance's programs have recorded so far.
//!
//! Each CPU's records are put into that CPU's buffer as they come. Where triggers may take snapshots, and under the clock
//! that counts records, all CPUs' records are put in order first: a snapshot holds what is older than the control
//! record that asks for it, on whatever CPU.
//!
//! Full rings take long to be emptied, so it is done in steps, between which everything is as after a whole collection of less.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use tracer_abi::{COMMON_SIZE, STAMP_SIZE, control};

use crate::{
    buffer::{
        CpuBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::InstanceSession,
            session::ring_queue::{RingQueue, RingRecord},
        },
        facts::Facts,
        instances::instance::Instance,
        records::{
            marks::{Marks, Waiting},
            stack,
        },
        tasks::TaskNames,
    },
    event::InstanceId,
    render::RenderEnv,
    sys::bpf::ring::{Drained, RingMemory, Seen},
};

/// How long after a moment a record may still come that is older, in nanoseconds: its stamp was had, and the interrupt or
/// the host of a virtual machine took its time.
const SETTLED: u64 = 2_000_000;
/// How often records that are being written are waited for, in all steps of a collection together.
const PATIENCE: u32 = 100;

/// How long a step goes on, and how many records are taken between two looks at the clock.
const STEP: Duration = Duration::from_millis(8);
const RECORDS: u32 = 64;

impl Engine {
    /// Takes what an instance's programs have recorded into its buffers. What it gives is the trace clock's time up to
    /// which no older record can come any more.
    pub fn collect(&mut self, instance: InstanceId) -> u64 {
        let mut part = Part::all(self.attachments.session(instance).map(|session| &session.queue));
        loop {
            if let Some(horizon) = self.collect_part(instance, &mut part) {
                return horizon;
            }
            self.yield_to_readers();
        }
    }

    /// The same for a while. Whether that was all.
    pub fn collect_some(&mut self, instance: InstanceId) -> bool {
        let mut part = Part::all(self.attachments.session(instance).map(|session| &session.queue));
        self.collect_part(instance, &mut part).is_some()
    }

    /// One step; None when another one is needed.
    fn collect_part(&mut self, instance: InstanceId, part: &mut Part) -> Option<u64> {
        if let Some(names) = &mut self.names {
            names.collect(&mut self.tasks);
        }
        let stack = desired::stack_kinds(self)[0];
        let Some(state) = self.instances.get_mut(&instance) else { return Some(u64::MAX) };
        let Some(session) = self.attachments.session_mut(instance) else {
            flush_marks(state, &mut self.tasks, part.until);
            return Some(u64::MAX);
        };
        let mut books = RecordIntake { tasks: &mut self.tasks, facts: &self.facts, stack };
        part.begin();
        let horizon = if state.armed || state.clock == Clock::Counter {
            in_order(state, session, &mut books, part).then_some(u64::MAX)
        } else {
            by_cpu(state, &mut session.queue, &mut books, part)
        };
        for cpu in 0..session.queue.cpus() {
            let dropped = session.newly_dropped(cpu);
            if let Some(buffer) = state.buffer.cpu_mut(cpu) {
                buffer.add_dropped(dropped);
            }
        }
        horizon
    }

    /// Takes in what the programs of all instances have recorded.
    pub fn collect_all(&mut self) {
        for instance in self.recording() {
            self.collect(instance);
        }
    }
}

/// Puts all marks up to a moment into the buffers of an instance whose programs have recorded nothing before them.
fn flush_marks(state: &mut Instance, tasks: &mut TaskNames, until: u64) {
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

/// What is looked up and kept for a record.
struct RecordIntake<'a> {
    tasks: &'a mut TaskNames,
    facts: &'a Facts,
    /// Kind of the records of the kernel's stack.
    stack: u16,
}

impl RecordIntake<'_> {
    /// Sees a record; the record as it is to be kept.
    fn enter<'r>(&mut self, payload: &'r [u8], wants_groups: bool) -> Cow<'r, [u8]> {
        self.tasks.meet(pid_of(payload), wants_groups);
        if kind_of(payload) == self.stack {
            let name = |address| self.facts.symbol(address).map(|symbol| symbol.name.to_owned());
            Cow::Owned(stack::without_hook(payload, name))
        } else {
            Cow::Borrowed(payload)
        }
    }
}

/// How far a collection is.
struct Part {
    /// By CPU: the bytes that waited at first and still do, and the stamp of the last record that was taken. A collection ends
    /// there, or one that is slower than the hits would never come to an end.
    cpus: Vec<(u64, u64)>,
    /// The moment: what is younger is left, or a mark could come behind a record that it came before.
    until: u64,
    since: Instant,
    records: u32,
}

impl Part {
    /// All that waits.
    fn all(queue: Option<&RingQueue>) -> Self {
        let cpus =
            queue.map_or(Vec::new(), |queue| queue.rings.iter().map(|ring| (ring.pending(), 0)).collect());
        Self { cpus, until: monotonic(), since: Instant::now(), records: 0 }
    }

    fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// Whether a step has gone on for long enough; asked for every record.
    fn is_over(&mut self) -> bool {
        self.records += 1;
        self.records.is_multiple_of(RECORDS) && self.since.elapsed() > STEP
    }
}

/// Empties one CPU's ring as far as it was full at first. Whether the step is over before that, and whether the next record is
/// still being written.
fn drain(
    ring: &mut RingMemory,
    cpu: usize,
    part: &mut Part,
    mut take: impl FnMut(u64, &[u8]),
) -> (bool, bool) {
    let Some(place) = part.cpus.get_mut(cpu) else { return (false, false) };
    let (mut left, mut last) = *place;
    let (until, since, mut records, mut over) = (part.until, part.since, 0_u32, false);
    let how = ring.drain(|record| {
        records += 1;
        if left == 0 || (records.is_multiple_of(RECORDS) && since.elapsed() > STEP) {
            over = left > 0;
            return Seen::Left;
        }
        if let Some((stamp, payload)) = split(record) {
            if stamp > until {
                return Seen::Left;
            }
            take(stamp, payload);
            last = stamp;
        }
        left = left.saturating_sub((record.len() as u64 + 8).next_multiple_of(8));
        Seen::Taken
    });
    *place = (left, last);
    (over, how == Drained::Busy)
}

/// Takes records CPU by CPU; None when there are more.
fn by_cpu(
    state: &mut Instance,
    queue: &mut RingQueue,
    books: &mut RecordIntake<'_>,
    part: &mut Part,
) -> Option<u64> {
    let conversion = Conversion::now(state.clock);
    let mut horizon = part.until;
    let wants_groups = state.options.is("record-tgid");
    let Instance { buffer, cpus, marks, counted, .. } = state;
    for (cpu, ring) in (0..).zip(&mut queue.rings) {
        let (Some(buffer), Some(wanted)) = (buffer.cpu_mut(cpu), cpus.get(cpu as usize)) else {
            continue;
        };
        let mut waiting = marks.until(cpu, part.until);
        let mut next = waiting.front().map_or(u64::MAX, Waiting::stamp);
        let mut put = |buffer: &mut CpuBuffer, books: &mut RecordIntake<'_>, mark: Waiting| {
            let stamp = mark.stamp();
            *counted += 1;
            buffer.push(conversion.time(stamp, 0), &mark.enter(books.tasks));
        };
        let mut youngest = 0;
        let (over, busy) = drain(ring, cpu as usize, part, |stamp, payload| {
            while next < stamp
                && let Some(mark) = waiting.pop_front()
            {
                put(buffer, books, mark);
                next = waiting.front().map_or(u64::MAX, Waiting::stamp);
            }
            if *wanted && kind_of(payload) < control::FIRST {
                let (time, record) = (conversion.time(stamp, 0), books.enter(payload, wants_groups));
                // Where a program was interrupted before it reserved space in the ring, younger records are in front of its own.
                if stamp < youngest {
                    buffer.insert(time, &record);
                } else {
                    buffer.push(time, &record);
                }
                youngest = youngest.max(stamp);
            }
        });
        if over {
            marks.put_back(cpu, waiting);
            return None;
        }
        for mark in waiting {
            put(buffer, books, mark);
        }
        let last = part.cpus.get(cpu as usize).map_or(0, |(_, last)| *last);
        if busy && last > 0 {
            horizon = horizon.min(last);
        }
    }
    Some(conversion.time(horizon, 0))
}

/// Takes the records of all CPUs in the order in which they happened, and the snapshots that triggers asked for in
/// between. Whether that was all.
fn in_order(
    state: &mut Instance,
    session: &mut InstanceSession,
    books: &mut RecordIntake<'_>,
    part: &mut Part,
) -> bool {
    let conversion = Conversion::now(state.clock);
    let wants_groups = state.options.is("record-tgid");
    if session.queue.ordered.is_empty() && !settle(&mut session.queue, &state.marks, books, part) {
        return false;
    }
    while let Some(RingRecord { stamp, cpu, payload }) = session.queue.ordered.pop_front() {
        let kind = kind_of(&payload);
        if kind == control::SNAPSHOT {
            snap(state, session);
        }
        let wanted = state.cpus.get(cpu as usize).copied().unwrap_or_default();
        if wanted && kind < control::FIRST {
            let payload = books.enter(&payload, wants_groups);
            state.counted += 1;
            if let Some(buffer) = state.buffer.cpu_mut(cpu) {
                buffer.push(conversion.time(stamp, state.counted), &payload);
            }
        }
        if part.is_over() {
            return false;
        }
    }
    if session.kernel().switches().lost_snapshot() {
        snap(state, session);
    }
    // They may have been those of somebody else's step, and this one's still in the rings.
    part.cpus.iter().all(|(left, _)| *left == 0)
}

/// Takes the snapshot that a trigger asked for, or stops recording where there are no buffers for it.
fn snap(state: &mut Instance, session: &InstanceSession) {
    if !state.snap() {
        state.on = false;
        session.kernel().switches().set_tracing(false);
    }
}

/// Puts all records in order, with none missing that is older than the last snapshot. Whether that was all.
fn settle(queue: &mut RingQueue, marks: &Marks, books: &mut RecordIntake<'_>, part: &mut Part) -> bool {
    let RingQueue { rings, taken, ordered, waits } = queue;
    while *waits < PATIENCE {
        let mut busy = false;
        for (cpu, ring) in (0..).zip(&mut *rings) {
            let (over, writes) = drain(ring, cpu as usize, part, |stamp, payload| {
                taken.push(RingRecord { stamp, cpu, payload: payload.to_vec() });
            });
            if over {
                return false;
            }
            busy |= writes;
        }
        let snapshots = taken.iter().filter(|taken| kind_of(&taken.payload) == control::SNAPSHOT);
        let early = snapshots.map(|taken| taken.stamp).max();
        let wait =
            early.map_or(0, |stamp| stamp.saturating_add(SETTLED).saturating_sub(monotonic()).min(SETTLED));
        if !busy && wait == 0 {
            break;
        }
        *waits += 1;
        std::thread::sleep(Duration::from_nanos(wait.max(20_000)));
        // Records that came meanwhile may be older.
        part.until = monotonic();
        for ((left, _), ring) in part.cpus.iter_mut().zip(&*rings) {
            *left = ring.pending();
        }
        // The next step goes on with what was taken.
        if part.since.elapsed() > STEP {
            return false;
        }
    }
    *waits = 0;
    // From before a trigger was set that makes this necessary.
    for cpu in 0..rings.len() as u32 {
        let marks = marks.until(cpu, part.until).into_iter();
        taken.extend(marks.map(|mark| RingRecord {
            stamp: mark.stamp(),
            cpu,
            payload: mark.enter(books.tasks),
        }));
    }
    taken.sort_by_key(|taken| taken.stamp);
    ordered.extend(taken.drain(..));
    // One that is being written for so long is not waited for.
    part.cpus.iter_mut().for_each(|(left, _)| *left = 0);
    true
}

/// Stamp and payload of a record as it lies in a ring.
fn split(record: &[u8]) -> Option<(u64, &[u8])> {
    let (stamp, payload) = record.split_first_chunk::<STAMP_SIZE>()?;
    (payload.len() >= COMMON_SIZE).then(|| (u64::from_ne_bytes(*stamp), payload))
}

fn kind_of(payload: &[u8]) -> u16 {
    payload.first_chunk().map_or(0, |kind| u16::from_ne_bytes(*kind))
}

/// Thread of a record.
fn pid_of(payload: &[u8]) -> i32 {
    payload.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |pid| i32::from_ne_bytes(*pid))
}
