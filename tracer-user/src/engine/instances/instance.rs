//! The state of one instance.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    buffer::{
        CpuBuffer, PageSize, TraceBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        attachments::enabled::Enabled,
        instances::{
            awaited::AwaitedModules,
            errors::ErrorLog,
            options::TraceOptions,
            thread_lists::{List, ThreadLists},
            trigger_list::TriggerList,
        },
        records::marks::Marks,
    },
    event::EventId,
    plan::filter::Filter,
};

/// Bytes of a CPU's buffer once it is used (`TRACE_BUF_SIZE_DEFAULT`), and in the top instance before.
pub(in crate::engine) const EXPANDED: usize = 1_441_792;
/// What the top instance has before anything is recorded: two pages, shown as 7 KiB.
const UNEXPANDED: usize = 2 * 4080;

/// A filter as it stands.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Filtering {
    /// What the `filter` file reads.
    pub(in crate::engine) shown: Vec<u8>,
    /// What is in force; none after an error.
    pub(in crate::engine) filter: Option<Filter>,
}

/// A size in KiB as `buffer_size_kb` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many.
    Kib(usize),
    /// So many now, and so many once the buffers are used.
    Expands(usize, usize),
    /// The CPUs differ.
    Mixed,
}

/// An instance.
#[derive(Debug)]
pub struct Instance {
    /// Its name; empty for the top.
    pub name: String,
    /// The events that hang on their hooks; triggers may have turned one off all the same.
    pub(in crate::engine) enabled: Enabled,
    /// Events of modules that are not loaded.
    pub(in crate::engine) awaited: AwaitedModules,
    /// Events that were on at some time: their records may be in the buffers.
    pub(in crate::engine) recorded: BTreeSet<EventId>,
    pub(in crate::engine) filters: HashMap<EventId, Filtering>,
    /// The events' triggers.
    pub(in crate::engine) triggers: TriggerList,
    /// Options.
    pub options: TraceOptions,
    /// Errors.
    pub errors: ErrorLog,
    /// What was recorded.
    pub buffer: TraceBuffer,
    /// The buffers that a snapshot exchanges for those, once there was one.
    pub snapshot: Option<TraceBuffer>,
    /// Whether there ever was a trigger that takes snapshots.
    pub(in crate::engine) armed: bool,
    /// The trace clock.
    pub clock: Clock,
    /// CPUs that are recorded.
    pub cpus: Vec<bool>,
    /// Marks that are not in the buffers yet.
    pub(in crate::engine) marks: Arc<Marks>,
    /// How full a buffer is to be, in percent, before a reader of its pages is woken.
    pub percent: u32,
    /// Whether recording was last set to be on; triggers change the kernel's side ([`super::status::Status::is_on`]).
    pub(in crate::engine) on: bool,
    /// Readers that stop recording while they read.
    pub(in crate::engine) stops: u32,
    /// Open files that keep the instance.
    pub(in crate::engine) users: u32,
    /// CPUs, or all, that somebody reads by `trace_pipe`.
    pub(in crate::engine) pipes: Vec<Option<u32>>,
    expanded: bool,
    page: PageSize,
    /// The threads that are traced and those that are not.
    pub(in crate::engine) threads: ThreadLists,
    /// Records so far, for the clock that counts them.
    pub(in crate::engine) counted: u64,
    /// When the buffers of all CPUs were last emptied, by the trace clock.
    pub since: u64,
}

impl Instance {
    /// A new instance.
    pub(in crate::engine) fn new(name: &str, options: TraceOptions, cpus: u32, page: PageSize) -> Self {
        let expanded = !name.is_empty();
        let bytes = if expanded { EXPANDED } else { UNEXPANDED };
        Self {
            name: name.to_owned(),
            enabled: Enabled::default(),
            awaited: AwaitedModules::default(),
            recorded: BTreeSet::new(),
            filters: HashMap::new(),
            triggers: TriggerList::default(),
            options,
            errors: ErrorLog::default(),
            buffer: TraceBuffer::new(cpus, bytes, page),
            snapshot: None,
            armed: false,
            clock: Clock::default(),
            cpus: vec![true; cpus as usize],
            marks: Arc::default(),
            percent: 50,
            on: true,
            stops: 0,
            users: 0,
            pipes: Vec::new(),
            expanded,
            page,
            threads: ThreadLists::default(),
            counted: 0,
            since: 0,
        }
    }

    /// Whether the buffers have the size that they are to have when they are used.
    pub(in crate::engine) fn is_expanded(&self) -> bool {
        self.expanded
    }

    /// The size of a page of its buffers.
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// Empties the buffers and gives them pages of another size.
    pub(in crate::engine) fn set_page(&mut self, page: PageSize) {
        if page == self.page {
            return;
        }
        self.page = page;
        let overwrite = self.options.is("overwrite");
        for (_, buffer) in self.buffer.select_mut(None) {
            *buffer = CpuBuffer::new(buffer.size(), page);
            buffer.set_overwrite(overwrite);
        }
        // Pages of two sizes cannot be exchanged.
        if self.snapshot.is_some() {
            self.snapshot = Some(self.buffer.alike());
        }
    }

    /// Empties the buffers of one CPU or of all.
    pub(in crate::engine) fn clear(&mut self, cpu: Option<u32>) {
        self.buffer.select_mut(cpu).for_each(|(_, buffer)| buffer.clear());
        if cpu.is_none() {
            // To ask the clock that counts is to count.
            self.counted += u64::from(self.clock == Clock::Counter);
            self.since = Conversion::now(self.clock).time(monotonic(), self.counted);
        }
    }

    /// The buffers that are recorded to, or those of the snapshot.
    pub fn buffers(&self, snapshot: bool) -> Option<&TraceBuffer> {
        if snapshot { self.snapshot.as_ref() } else { Some(&self.buffer) }
    }

    /// What a number written to `snapshot` asks for.
    pub(in crate::engine) fn take_snapshot(&mut self, cpu: Option<u32>, number: u64) -> Result<(), Errno> {
        match (number, &mut self.snapshot) {
            // One CPU's cannot be given back alone.
            (0, _) if cpu.is_some() => return Err(Errno::INVAL),
            (0, snapshot) => *snapshot = None,
            (1, snapshot) => {
                let spare = snapshot.get_or_insert_with(|| self.buffer.alike());
                // Sizes may have changed since.
                for ((_, spare), (_, buffer)) in spare.select_mut(cpu).zip(self.buffer.select(cpu)) {
                    spare.fit(buffer);
                }
                self.buffer.swap(spare, cpu);
            }
            (_, Some(snapshot)) => snapshot.select_mut(cpu).for_each(|(_, buffer)| buffer.clear()),
            (_, None) => {}
        }
        Ok(())
    }

    /// Makes the buffers of the snapshot for a trigger that will take one.
    pub(in crate::engine) fn arm_snapshot(&mut self) {
        self.armed = true;
        if self.snapshot.is_none() {
            self.snapshot = Some(self.buffer.alike());
        }
    }

    /// Takes the snapshot that a trigger asked for. False where a client gave its buffers back: then recording stops
    /// (`tracing_snapshot_instance_cond()`).
    pub(in crate::engine) fn snap(&mut self) -> bool {
        // Nothing is refused for all CPUs.
        self.snapshot.is_some() && self.take_snapshot(None, 1).is_ok()
    }

    /// How many records were counted, for the clock that does so.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Stops recording while one more reader reads, or one less.
    pub(in crate::engine) fn pause(&mut self, on: bool) {
        self.stops = if on { self.stops + 1 } else { self.stops.saturating_sub(1) };
    }

    /// Words for events that are to be turned on when a module brings them, the last first.
    pub fn awaited(&self) -> impl Iterator<Item = String> {
        self.awaited.texts()
    }

    /// Awaits no module's events any more.
    pub fn await_none(&mut self) {
        self.awaited.clear();
    }

    /// Whether an event hangs on its hook: it is on, or triggers may turn it on.
    pub fn is_enabled(&self, event: EventId) -> bool {
        self.enabled.contains(&event)
    }

    /// Forgets an event that is gone. Whether its records may be in the buffers.
    pub(in crate::engine) fn forget(&mut self, event: EventId) -> bool {
        self.enabled.remove(&event);
        self.filters.remove(&event);
        self.triggers.forget(event);
        self.recorded.remove(&event)
    }

    /// What an event's `filter` file reads.
    pub fn filter_text(&self, event: EventId) -> &[u8] {
        self.filters.get(&event).map_or(b"none\n", |filtering| &filtering.shown)
    }

    /// Makes the buffers as large as they are to be when they are used.
    pub(in crate::engine) fn expand(&mut self) {
        if !self.expanded {
            self.expanded = true;
            self.buffer.select_mut(None).for_each(|(_, buffer)| buffer.resize(EXPANDED));
        }
    }

    /// Sets the size of buffers.
    pub(in crate::engine) fn resize(&mut self, cpu: Option<u32>, bytes: usize) -> Result<(), Errno> {
        self.expanded = true;
        let mut any = false;
        for (_, buffer) in self.buffer.select_mut(cpu) {
            buffer.resize(bytes);
            any = true;
        }
        if any { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// The size of one CPU's buffer, or of all.
    pub fn size(&self, cpu: Option<u32>) -> Size {
        let mut sizes = self.buffer.select(cpu).map(|(_, buffer)| buffer.size());
        let Some(first) = sizes.next() else { return Size::Kib(0) };
        if !sizes.all(|size| size == first) {
            return Size::Mixed;
        }
        if self.expanded || cpu.is_some() {
            Size::Kib(first >> 10)
        } else {
            Size::Expands(first >> 10, EXPANDED >> 10)
        }
    }

    /// The size of all buffers together.
    pub fn total_size(&self) -> Size {
        let (mut sum, mut expanded) = (0, 0);
        for (_, buffer) in self.buffer.select(None) {
            sum += buffer.size() >> 10;
            expanded += EXPANDED >> 10;
        }
        if self.expanded { Size::Kib(sum) } else { Size::Expands(sum, expanded) }
    }

    /// The threads of a list, in order.
    pub fn pids(&self, list: List) -> impl Iterator<Item = u32> {
        self.threads.pids(list)
    }
}
