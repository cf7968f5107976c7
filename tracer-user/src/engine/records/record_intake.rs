//! Moves records from the rings into the buffers of an instance.
//!
//! The records of each CPU are added to that CPU's buffer as they come. If triggers may take snapshots, or the clock
//! counts records, the records of all CPUs are sorted first: a snapshot contains everything older than the control
//! record that requests it, from any CPU.
//!
//! Emptying full rings takes long, so it is done in steps. Between steps the state is as after a complete collection
//! of fewer records.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use tracer_abi::{control, ring::record_words};

use crate::{
    buffer::{
        CpuBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::{InstanceSession, ring_queue::RingQueue},
        },
        facts::Facts,
        instances::instance::Instance,
        records::{
            common::{kind_of, pid_of},
            marks::{Marks, Waiting},
            stack,
        },
        tasks::TaskNames,
    },
    event::InstanceId,
    render::RenderEnv,
    ring::SETTLE,
    sys::bpf::{
        cpu_ring::CpuRing,
        ring::{Drained, Seen},
    },
};

/// How often to wait for records that are being written, in all steps of a collection.
const PATIENCE: u32 = 100;

/// Duration of a step, and number of records between checks of the clock.
const STEP: Duration = Duration::from_millis(8);
const RECORDS: u32 = 64;

impl Engine {
    /// Moves the records of an instance's programs into its buffers. Returns the trace clock's time up to which no
    /// older record can arrive.
    pub fn collect(&mut self, instance: InstanceId) -> u64 {
        let mut part = Part::all(self.attachments.session(instance).map(|session| &session.queue));
        loop {
            if let Some(horizon) = collect_part(self, instance, &mut part) {
                return horizon;
            }
            self.yield_to_readers();
        }
    }

    /// Like [`Self::collect`], for a limited time. Returns whether everything was collected.
    pub fn collect_some(&mut self, instance: InstanceId) -> bool {
        let mut part = Part::all(self.attachments.session(instance).map(|session| &session.queue));
        collect_part(self, instance, &mut part).is_some()
    }

    /// Moves the records of all instances' programs into their buffers.
    pub fn collect_all(&mut self) {
        for instance in self.attachments.recording() {
            self.collect(instance);
        }
    }
}

/// Lets programs overwrite the oldest records of an instance until they are collected, because no client waits for
/// them. Returns false if the rings cannot hold as many bytes as the buffers, or an option or a trigger forbids it. The
/// names of threads that have records by now are looked up, because the threads may end.
pub fn leave_unread(engine: &mut Engine, instance: InstanceId) -> bool {
    let Engine { attachments, instances, tasks, .. } = engine;
    let session = attachments.session_mut(instance);
    let Some((state, session)) = instances.get(instance).zip(session) else { return true };
    if state.armed || state.clock == Clock::Counter || !state.options.is("overwrite") {
        return false;
    }
    let (tasks, wants_groups) = (Arc::make_mut(tasks), state.options.is("record-tgid"));
    let look_up = |payload: &[u8]| tasks.look_up(pid_of(payload), wants_groups);
    session.queue.overwrite(|cpu| state.buffer.cpu(cpu).map_or(0, CpuBuffer::size), look_up)
}

/// Reads the names that threads got since the last call.
pub fn collect_names(engine: &mut Engine) {
    if let Some(names) = &mut engine.names {
        names.collect(Arc::make_mut(&mut engine.tasks));
    }
}

/// One step; `None` if another one is needed.
fn collect_part(engine: &mut Engine, instance: InstanceId, part: &mut Part) -> Option<u64> {
    collect_names(engine);
    let stacks = desired::stack_kinds(&engine.facts, engine.registry.events());
    let Some(state) = engine.instances.get_mut(instance) else { return Some(u64::MAX) };
    let Some(session) = engine.attachments.session_mut(instance) else {
        flush_marks(state, Arc::make_mut(&mut engine.tasks), part.until);
        return Some(u64::MAX);
    };
    let mut intake = RecordIntake { tasks: Arc::make_mut(&mut engine.tasks), facts: &engine.facts, stacks };
    part.since = Instant::now();
    let horizon = if state.armed || state.clock == Clock::Counter {
        in_order(state, session, &mut intake, part).then_some(u64::MAX)
    } else {
        by_cpu(state, &mut session.queue, &mut intake, part)
    };
    if let Some(time) = part.complete.filter(|_| horizon.is_some()) {
        session.queue.set_complete_until(time);
    }
    // Before the last step, full rings would be read once more for each.
    for cpu in (0..session.queue.cpus()).take_while(|_| horizon.is_some()) {
        let (dropped, overwritten) = session.newly_lost(cpu, |payload| is_event(payload, stacks));
        if let Some(buffer) = state.buffer.cpu_mut(cpu)
            && state.cpus.get(cpu as usize).copied().unwrap_or_default()
        {
            buffer.add_dropped(dropped);
            buffer.add_overwritten(overwritten);
        }
    }
    horizon
}

/// Moves all marks up to a time into the buffers of an instance whose programs recorded nothing before them.
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

/// The state for looking up and storing records.
struct RecordIntake<'a> {
    tasks: &'a mut TaskNames,
    facts: &'a Facts,
    /// `common_type` of the records of kernel stacks and of user stacks.
    stacks: [u16; 2],
}

impl RecordIntake<'_> {
    /// Processes a record. Returns the record to store.
    fn enter<'r>(&mut self, payload: &'r [u8], wants_groups: bool) -> Cow<'r, [u8]> {
        self.tasks.look_up(pid_of(payload), wants_groups);
        if kind_of(payload) == self.stacks[0] {
            let name = |address| self.facts.symbol(address).map(|symbol| symbol.name.to_owned());
            Cow::Owned(stack::without_hook(payload, name))
        } else {
            Cow::Borrowed(payload)
        }
    }
}

/// The progress of a collection.
struct Part {
    /// By CPU: the number of bytes that waited at the start and still wait, and the stamp of the last record taken.
    /// The collection ends with these bytes; otherwise it would never end if it is slower than the hits.
    cpus: Vec<(u64, u64)>,
    /// Records younger than this time are left, so that marks are inserted before records that came after them.
    until: u64,
    /// The end of this collection takes out all records up to this time. `None` if a record that is still being written
    /// keeps others back.
    complete: Option<u64>,
    since: Instant,
    records: u32,
}

impl Part {
    fn all(queue: Option<&RingQueue>) -> Self {
        let begun = monotonic();
        let cpus =
            queue.map_or(Vec::new(), |queue| queue.rings().iter().map(|ring| (ring.pending(), 0)).collect());
        Self { cpus, until: monotonic(), complete: Some(begun), since: Instant::now(), records: 0 }
    }

    /// Whether the step has lasted long enough; called for every record.
    fn is_over(&mut self) -> bool {
        self.records += 1;
        self.records.is_multiple_of(RECORDS) && self.since.elapsed() > STEP
    }
}

/// Reads the bytes of one CPU's ring that waited at the start. Returns whether the step ended before that, and
/// whether the next record is still being written.
fn drain(ring: &mut CpuRing, cpu: usize, part: &mut Part, mut take: impl FnMut(u64, &[u8])) -> (bool, bool) {
    let Some((mut left, mut last)) = part.cpus.get(cpu).copied() else { return (false, false) };
    let mut over = false;
    let how = ring.drain(|stamp, payload| {
        over = left > 0 && part.is_over();
        if over || left == 0 || stamp > part.until {
            return Seen::Left;
        }
        take(stamp, payload);
        last = stamp;
        left = left.saturating_sub(record_words(payload.len() as u64) * 8);
        Seen::Taken
    });
    if let Some(place) = part.cpus.get_mut(cpu) {
        *place = (left, last);
    }
    (over, how == Drained::Busy)
}

/// Collects records CPU by CPU; `None` if more remain.
fn by_cpu(
    state: &mut Instance,
    queue: &mut RingQueue,
    intake: &mut RecordIntake<'_>,
    part: &mut Part,
) -> Option<u64> {
    let conversion = Conversion::now(state.clock);
    let mut horizon = part.until;
    let stacks = intake.stacks;
    let wants_groups = state.options.is("record-tgid");
    let Instance { buffer, cpus, marks, counted, .. } = state;
    let RingQueue { drain: queued, tallies, .. } = queue;
    for ((cpu, ring), tally) in (0..).zip(queued.parts().0).zip(tallies) {
        let (Some(buffer), Some(wanted)) = (buffer.cpu_mut(cpu), cpus.get(cpu as usize)) else {
            continue;
        };
        let Some(overwritten) = ring.was_overwritten() else {
            part.complete = None;
            continue;
        };
        if overwritten {
            tally.add_gap();
            if *wanted {
                buffer.overwrite_all();
            }
        }
        // No trigger takes snapshots.
        ring.drain_controls(|_, _| {});
        let mut waiting = marks.until(cpu, part.until);
        let mut next = waiting.front().map_or(u64::MAX, Waiting::stamp);
        let mut put = |buffer: &mut CpuBuffer, intake: &mut RecordIntake<'_>, mark: Waiting| {
            let stamp = mark.stamp();
            *counted += 1;
            buffer.push(conversion.time(stamp, 0), &mark.enter(intake.tasks));
        };
        let mut youngest = 0;
        let (over, busy) = drain(ring, cpu as usize, part, |stamp, payload| {
            while next < stamp
                && let Some(mark) = waiting.pop_front()
            {
                put(buffer, intake, mark);
                next = waiting.front().map_or(u64::MAX, Waiting::stamp);
            }
            if std::mem::take(&mut tally.gap) && *wanted {
                // Marks from before the record.
                buffer.overwrite_all();
            }
            tally.taken += u64::from(is_event(payload, stacks));
            if *wanted && kind_of(payload) < control::FIRST {
                let (time, record) = (conversion.time(stamp, 0), intake.enter(payload, wants_groups));
                // A program that was interrupted before it reserved space in the ring has its record after younger
                // ones.
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
            put(buffer, intake, mark);
        }
        let last = part.cpus.get(cpu as usize).map_or(0, |(_, last)| *last);
        if busy && last > 0 {
            horizon = horizon.min(last);
        }
        if busy {
            part.complete = part.complete.map(|time| time.min(last));
        }
    }
    Some(conversion.time(horizon, 0))
}

/// Collects the records of all CPUs in order of time, and takes the snapshots that triggers requested in between.
/// Returns whether everything was collected.
fn in_order(
    state: &mut Instance,
    session: &mut InstanceSession,
    intake: &mut RecordIntake<'_>,
    part: &mut Part,
) -> bool {
    let conversion = Conversion::now(state.clock);
    let wants_groups = state.options.is("record-tgid");
    if !session.queue.settled && !settle(&mut session.queue, &state.marks, intake, part) {
        return false;
    }
    loop {
        let mut asks_snapshot = false;
        let RingQueue { drain: queued, tallies, .. } = &mut session.queue;
        let all = queued.parts().1.pass_on(u64::MAX, |record| {
            let kind = kind_of(record.payload);
            asks_snapshot = kind == control::SNAPSHOT;
            let wanted = state.cpus.get(record.cpu as usize).copied().unwrap_or_default();
            if wanted && kind < control::FIRST {
                let payload = intake.enter(record.payload, wants_groups);
                state.counted += 1;
                if let Some(buffer) = state.buffer.cpu_mut(record.cpu) {
                    let tally = tallies.get_mut(record.cpu as usize);
                    if tally.is_some_and(|tally| std::mem::take(&mut tally.gap)) {
                        buffer.overwrite_all();
                    }
                    buffer.push(conversion.time(record.time, state.counted), &payload);
                }
            }
            !part.is_over() && !asks_snapshot
        });
        session.queue.settled = !all;
        if asks_snapshot {
            snap(state, session);
        }
        if all {
            break;
        }
        if !asks_snapshot {
            return false;
        }
    }
    if session.kernel().switches().lost_snapshot() {
        snap(state, session);
    }
    // A step of another collection may have taken records, and this one's are still in the rings.
    part.cpus.iter().all(|(left, _)| *left == 0)
}

/// Takes the snapshot that a trigger requested, or stops recording if its buffers were freed.
fn snap(state: &mut Instance, session: &InstanceSession) {
    if !state.snap() {
        state.on = false;
        session.kernel().switches().set_tracing(false);
    }
}

/// Sorts all records, so that none older than the last snapshot is missing. Returns whether everything was collected.
fn settle(queue: &mut RingQueue, marks: &Marks, intake: &mut RecordIntake<'_>, part: &mut Part) -> bool {
    let RingQueue { drain: queued, settled, requests, waits, tallies, .. } = queue;
    let (rings, merge) = queued.parts();
    let mut patient = false;
    while *waits < PATIENCE {
        let mut busy = false;
        // Requests come first: the records that are older are then in the rings.
        for ring in &mut *rings {
            ring.drain_controls(|time, kind| requests.extend((kind == control::SNAPSHOT).then_some(time)));
        }
        let youngest = requests.iter().copied().filter(|time| *time <= part.until).max();
        for ((cpu, ring), tally) in (0..).zip(&mut *rings).zip(&mut *tallies) {
            let Some(overwritten) = ring.was_overwritten() else {
                busy = true;
                continue;
            };
            if overwritten {
                tally.add_gap();
            }
            let (over, writes) = drain(ring, cpu as usize, part, |stamp, payload| {
                tally.taken += u64::from(is_event(payload, intake.stacks));
                merge.push(cpu, stamp, payload);
            });
            if over {
                return false;
            }
            busy |= writes;
        }
        let settle = SETTLE.as_nanos() as u64;
        let wait =
            youngest.map_or(0, |time| time.saturating_add(settle).saturating_sub(monotonic()).min(settle));
        if !busy && wait == 0 {
            patient = true;
            break;
        }
        *waits += 1;
        std::thread::sleep(Duration::from_nanos(wait.max(20_000)));
        if *waits == PATIENCE {
            // Nothing is drained after this. Requests and marks that came meanwhile stay.
            break;
        }
        // Records that arrived meanwhile may be older.
        part.until = monotonic();
        for ((left, _), ring) in part.cpus.iter_mut().zip(&*rings) {
            *left = ring.pending();
        }
        // The next step continues with the records taken so far.
        if part.since.elapsed() > STEP {
            return false;
        }
    }
    (*settled, *waits) = (true, 0);
    requests.retain(|time| {
        if *time <= part.until {
            merge.push_snapshot(*time);
        }
        *time > part.until
    });
    // Records from before a trigger made sorting necessary.
    for cpu in 0..rings.len() as u32 {
        for mark in marks.until(cpu, part.until) {
            merge.push(cpu, mark.stamp(), &mark.enter(intake.tasks));
        }
    }
    // A record that is being written for so long is not waited for.
    part.cpus.iter_mut().for_each(|(left, _)| *left = 0);
    part.complete = part.complete.filter(|_| patient);
    true
}

/// Whether a record is an event's, which its program counted. Stacks are not counted.
fn is_event(payload: &[u8], stacks: [u16; 2]) -> bool {
    let kind = kind_of(payload);
    kind < control::FIRST && !stacks.contains(&kind)
}
