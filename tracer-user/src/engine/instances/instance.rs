//! The state of one instance.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    buffer::{
        PageSize, TraceBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        attachments::enabled::Enabled,
        command::error::{CommandError, ErrorKind},
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

/// Full size in bytes of a CPU's buffer (`TRACE_BUF_SIZE_DEFAULT`).
pub(crate) const EXPANDED: usize = 1_441_792;
/// Size of the top instance's buffers before anything is recorded: two pages, shown as 7 KiB.
const UNEXPANDED: usize = 2 * 4080;

/// The filter of an event.
#[derive(Clone, Debug)]
pub(crate) struct Filtering {
    /// The content of the `filter` file.
    pub(crate) shown: Vec<u8>,
    /// The filter in use; `None` after an error.
    pub(crate) filter: Option<Filter>,
}

/// A size in KiB as `buffer_size_kb` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The size.
    Kib(usize),
    /// The current size, and the size once the buffers are used.
    Expands(usize, usize),
    /// The CPUs differ.
    Mixed,
}

/// An instance.
#[derive(Debug)]
pub struct Instance {
    /// Its name; empty for the top instance.
    pub name: String,
    /// The events that are attached. A trigger may have disabled some of them.
    pub(crate) enabled: Enabled,
    /// Events of modules that are not loaded.
    pub(crate) awaited: AwaitedModules,
    /// Events that were enabled at some time: the buffers may have their records.
    pub(crate) recorded: BTreeSet<EventId>,
    pub(crate) filters: HashMap<EventId, Filtering>,
    /// The events' triggers.
    pub(crate) triggers: TriggerList,
    /// Options.
    pub options: TraceOptions,
    /// Errors.
    pub errors: ErrorLog,
    /// The recorded pages.
    pub buffer: TraceBuffer,
    /// The buffers for a snapshot, once there was one.
    pub snapshot: Option<TraceBuffer>,
    /// Whether the instance ever had a trigger that takes snapshots.
    pub(crate) armed: bool,
    /// The trace clock.
    pub clock: Clock,
    /// Which CPUs are recorded.
    pub cpus: Vec<bool>,
    /// Marks that are not in the buffers yet.
    pub(crate) marks: Arc<Marks>,
    /// Percentage of a buffer that must be full before a reader of its pages is woken.
    pub percent: u32,
    /// Number of bytes of a system call's user memory that its record has at most.
    pub(crate) user_data: u32,
    /// The last value written to `tracing_on`; triggers change the kernel's side ([`super::status::Status::is_on`]).
    pub(crate) on: bool,
    /// Number of readers that stop recording while they read.
    pub(crate) stops: u32,
    /// Number of open files that hold the instance.
    pub(crate) users: u32,
    /// The CPUs that are read through `trace_pipe`; `None` for all.
    pub(crate) pipes: Vec<Option<u32>>,
    expanded: bool,
    page: PageSize,
    pub(crate) threads: ThreadLists,
    /// Number of records so far, for the clock that counts them.
    pub(crate) counted: u64,
    /// The time when all buffers were last emptied, by the trace clock.
    pub since: u64,
}

impl Instance {
    /// A new instance.
    pub(crate) fn new(name: &str, options: TraceOptions, cpus: u32, page: PageSize) -> Self {
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
            user_data: 0,
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

    /// Whether the buffers have their full size.
    pub(crate) fn is_expanded(&self) -> bool {
        self.expanded
    }

    /// The size of a page of its buffers.
    pub fn page(&self) -> PageSize {
        self.page
    }

    /// Empties the buffers and sets the size of their pages.
    pub(crate) fn set_page(&mut self, page: PageSize) {
        if page == self.page {
            return;
        }
        self.page = page;
        let overwrite = self.options.is("overwrite");
        for (_, buffer) in self.buffer.select_mut(None) {
            *buffer = buffer.with_page(page);
            buffer.set_overwrite(overwrite);
        }
        // Buffers with different page sizes cannot be exchanged.
        if self.snapshot.is_some() {
            self.snapshot = Some(self.buffer.empty_copy());
        }
    }

    /// Empties the buffers of one CPU or of all.
    pub(crate) fn clear(&mut self, cpu: Option<u32>) {
        self.buffer.select_mut(cpu).for_each(|(_, buffer)| buffer.clear());
        if cpu.is_none() {
            // Reading the clock `counter` counts as a record.
            self.counted += u64::from(self.clock == Clock::Counter);
            self.since = Conversion::now(self.clock).time(monotonic(), self.counted);
        }
    }

    /// The buffers, or those of the snapshot.
    pub fn buffers(&self, snapshot: bool) -> Option<&TraceBuffer> {
        if snapshot { self.snapshot.as_ref() } else { Some(&self.buffer) }
    }

    /// Applies a number written to `snapshot`.
    pub(crate) fn take_snapshot(&mut self, cpu: Option<u32>, number: u64) -> Result<(), CommandError> {
        match (number, &mut self.snapshot) {
            // The buffer of one CPU cannot be freed alone.
            (0, _) if cpu.is_some() => return Err(ErrorKind::Invalid.into()),
            (0, snapshot) => *snapshot = None,
            (1, snapshot) => {
                let spare = snapshot.get_or_insert_with(|| self.buffer.empty_copy());
                // Sizes may have changed.
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

    /// Allocates the buffers of the snapshot for a trigger.
    pub(crate) fn arm_snapshot(&mut self) {
        self.armed = true;
        if self.snapshot.is_none() {
            self.snapshot = Some(self.buffer.empty_copy());
        }
    }

    /// Takes a snapshot for a trigger. Returns false if a client has freed the buffers; recording then stops
    /// (`tracing_snapshot_instance_cond()`).
    pub(crate) fn snap(&mut self) -> bool {
        // A snapshot of all CPUs cannot fail.
        self.snapshot.is_some() && self.take_snapshot(None, 1).is_ok()
    }

    /// Number of records, for the clock that counts them.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Adds or removes a reader that stops recording while it reads. Returns their number.
    pub(crate) fn pause(&mut self, on: bool) -> u32 {
        self.stops = if on { self.stops + 1 } else { self.stops.saturating_sub(1) };
        self.stops
    }

    /// Words for events that are enabled when their module is loaded, the last first.
    pub fn awaited(&self) -> impl Iterator<Item = String> {
        self.awaited.texts()
    }

    /// Removes these words.
    pub fn clear_awaited(&mut self) {
        self.awaited.clear();
    }

    /// Whether an event is attached: it is enabled, or triggers may enable it.
    pub fn is_enabled(&self, event: EventId) -> bool {
        self.enabled.contains(&event)
    }

    /// Forgets a removed event. Returns whether the buffers may have its records.
    pub(crate) fn forget(&mut self, event: EventId) -> bool {
        self.enabled.remove(&event);
        self.filters.remove(&event);
        self.triggers.forget(event);
        self.recorded.remove(&event)
    }

    /// The content of an event's `filter` file.
    pub fn filter_text(&self, event: EventId) -> &[u8] {
        self.filters.get(&event).map_or(b"none\n", |filtering| &filtering.shown)
    }

    /// Grows the buffers to their full size.
    pub(crate) fn expand(&mut self) {
        if !self.expanded {
            self.expanded = true;
            self.buffer.select_mut(None).for_each(|(_, buffer)| buffer.resize(EXPANDED));
        }
    }

    /// Sets the size of buffers.
    pub(crate) fn resize(&mut self, cpu: Option<u32>, bytes: usize) -> Result<(), CommandError> {
        self.expanded = true;
        let mut any = false;
        for (_, buffer) in self.buffer.select_mut(cpu) {
            buffer.resize(bytes);
            any = true;
        }
        if any { Ok(()) } else { Err(ErrorKind::Invalid.into()) }
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

    /// The total size of the buffers.
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
