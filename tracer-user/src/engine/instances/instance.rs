//! The state of one instance.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use rustix::io::Errno;
use tracer_abi::{Counters, lists};

use crate::{
    buffer::{
        CpuBuffer, PageSize, TraceBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        List,
        attachments::{
            enabled::Enabled,
            session::{self, EventConfig, InstanceSession},
        },
        histograms::hist::Hists,
        instances::{errors::ErrorLog, options::TraceOptions, trigger_list::TriggerList},
        records::marks::Marks,
        registry::modules::Awaited,
    },
    event::{EventId, Format},
    plan::filter::Filter,
};

/// Bytes of a CPU's buffer once it is used (`TRACE_BUF_SIZE_DEFAULT`), and in the top instance before.
pub(in crate::engine) const EXPANDED: usize = 1_441_792;
/// What the top instance has before anything is recorded: two pages, shown as 7 KiB.
const UNEXPANDED: usize = 2 * 4080;
/// Pids below this are taken (`MAX_PID`, kernel/trace/pid_list.c).
pub(in crate::engine) const PID_LIMIT: u32 = 1 << 30;

/// A filter as it stands.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Filtering {
    /// What the `filter` file reads.
    pub(in crate::engine) shown: Vec<u8>,
    /// What is in force; none after an error.
    pub(in crate::engine) filter: Option<Filter>,
}

/// What an instance itself does not know of an event.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct EventInputs<'a> {
    pub(in crate::engine) format: &'a Format,
    /// Kinds of the records of stacks.
    pub(in crate::engine) stacks: [u16; 2],
    /// As in [`EventConfig`].
    pub(in crate::engine) begins_off: bool,
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
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub struct Instance {
    /// Its name; empty for the top.
    pub name: String,
    /// The events that hang on their hooks; triggers may have turned one off all the same.
    pub(in crate::engine) enabled: Enabled,
    /// Events of modules that are not loaded.
    pub(in crate::engine) awaited: Vec<Awaited>,
    /// Events that were on at some time: their records may be in the buffers.
    pub(in crate::engine) recorded: BTreeSet<EventId>,
    pub(in crate::engine) filters: HashMap<EventId, Filtering>,
    /// The events' triggers.
    pub(in crate::engine) triggers: TriggerList,
    /// The events' histograms.
    pub(in crate::engine) hists: Hists,
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
    /// Whether recording was on when it was last said or asked; what is in the kernel knows better ([`Self::is_on`]).
    on: bool,
    /// Readers that stop recording while they read.
    pub(in crate::engine) stops: u32,
    /// Open files that keep the instance.
    pub(in crate::engine) users: u32,
    /// CPUs, or all, that somebody reads by `trace_pipe`.
    pub(in crate::engine) pipes: Vec<Option<u32>>,
    expanded: bool,
    page: PageSize,
    pub(in crate::engine) live: Option<InstanceSession>,
    traced: BTreeSet<u32>,
    untraced: BTreeSet<u32>,
    following: bool,
    /// Hits that no program saw, when the buffers were last emptied.
    missed_before: u64,
    /// Counts of each CPU when its buffer was last emptied.
    counts_before: Vec<Counters>,
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
            awaited: Vec::new(),
            recorded: BTreeSet::new(),
            filters: HashMap::new(),
            triggers: TriggerList::default(),
            hists: Hists::default(),
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
            live: None,
            traced: BTreeSet::new(),
            untraced: BTreeSet::new(),
            following: false,
            missed_before: 0,
            counts_before: vec![Counters::default(); cpus as usize],
            counted: 0,
            since: 0,
        }
    }

    /// Whether recording is on (`tracing_on`).
    pub fn is_on(&self) -> bool {
        self.live.as_ref().map_or(self.on, |live| live.asked().switches().is_tracing())
    }

    /// Turns recording on or off.
    pub(in crate::engine) fn set_on(&mut self, on: bool) {
        self.on = on;
        if let Some(live) = &self.live {
            live.asked().switches().set_tracing(on);
        }
    }

    /// Whether the buffers have the size that they are to have when they are used.
    pub(in crate::engine) fn is_expanded(&self) -> bool {
        self.expanded
    }

    /// Whether records are taken at this moment.
    pub(in crate::engine) fn records(&self) -> bool {
        self.is_on() && self.stops == 0
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

    fn counts_ever(&self, cpu: u32) -> Counters {
        self.live.as_ref().map_or(Counters::default(), |live| live.counts(cpu))
    }

    /// Hits on a CPU since its buffer was last emptied, and what became of them.
    pub fn counts(&self, cpu: u32) -> Counters {
        let before = self.counts_before.get(cpu as usize).copied().unwrap_or_default();
        self.counts_ever(cpu).minus(before)
    }

    fn missed_ever(&self) -> u64 {
        self.live.as_ref().map_or(0, InstanceSession::missed)
    }

    /// Hits for which the kernel ran no program, since the buffers were last emptied: at a perf tracepoint it runs none
    /// while another runs on that CPU. It counts them for all CPUs together.
    pub fn missed(&self) -> u64 {
        self.missed_ever().saturating_sub(self.missed_before)
    }

    /// Empties the buffers of one CPU or of all.
    pub(in crate::engine) fn clear(&mut self, cpu: Option<u32>) {
        self.buffer.select_mut(cpu).for_each(|(_, buffer)| buffer.clear());
        let live = self.live.as_ref();
        for (number, before) in (0..).zip(&mut self.counts_before) {
            if cpu.is_none_or(|cpu| cpu == number) {
                *before = live.map_or(Counters::default(), |live| live.counts(number));
            }
        }
        if cpu.is_none() {
            self.missed_before = self.missed_ever();
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

    /// Takes the snapshot that a trigger asked for; where somebody gave its buffers back, recording stops
    /// (`tracing_snapshot_instance_cond()`).
    pub(in crate::engine) fn snap(&mut self) {
        if self.snapshot.is_none() {
            return self.set_on(false);
        }
        // All CPUs: nothing is refused.
        let _ = self.take_snapshot(None, 1);
    }

    /// How many records were counted, for the clock that does so.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Stops recording while one more reader reads, or one less.
    pub(in crate::engine) fn pause(&mut self, on: bool) {
        self.stops = if on { self.stops + 1 } else { self.stops.saturating_sub(1) };
        if let Some(live) = &self.live {
            live.asked().switches().pause(self.stops > 0);
        }
    }

    /// Words for events that are to be turned on when a module brings them, the last first.
    pub fn awaited(&self) -> impl Iterator<Item = String> {
        self.awaited.iter().map(Awaited::text)
    }

    /// Awaits no module's events any more.
    pub fn await_none(&mut self) {
        self.awaited.clear();
    }

    /// Whether an event hangs on its hook: it is on, or triggers may turn it on.
    pub fn is_enabled(&self, event: EventId) -> bool {
        self.enabled.contains(&event)
    }

    /// Whether an event that is off needs no program.
    pub(in crate::engine) fn idles(&self, event: EventId) -> bool {
        self.live.as_ref().is_some_and(|live| live.is_idle(event))
    }

    /// Forgets an event that is gone.
    pub(in crate::engine) fn forget(&mut self, event: EventId) {
        self.enabled.remove(&event);
        self.filters.remove(&event);
        self.triggers.forget(event);
        if let Some(live) = &mut self.live {
            live.forget(event);
        }
        if self.recorded.remove(&event) {
            if let Some(live) = &mut self.live {
                live.discard();
            }
            self.clear(None);
        }
    }

    /// What an event's `enable` file reads: whether it is recorded, and whether triggers may turn it on and off
    /// (`event_enable_read()`).
    pub fn enable_text(&self, event: EventId) -> &'static [u8] {
        let off = self.live.as_ref().is_some_and(|live| live.is_soft_off(event));
        match (self.is_enabled(event) && !off, off || self.triggers.is_soft(event)) {
            (true, true) => b"1*\n",
            (true, false) => b"1\n",
            (false, true) => b"0*\n",
            (false, false) => b"0\n",
        }
    }

    /// What an event's `trigger` file reads, the lines of its histograms among it.
    pub(in crate::engine) fn trigger_text(
        &self,
        event: EventId,
        hists: Vec<u8>,
        name: impl Fn(EventId) -> String,
    ) -> Vec<u8> {
        let left = |place| self.live.as_ref().map_or(0, |live| live.asked().switches().count(place));
        if !hists.is_empty() && self.triggers.of(event).is_empty() {
            return hists;
        }
        // Histograms stand behind all others.
        [self.triggers.text(event, left, name), hists].concat()
    }

    /// Does something to an event with all that is to become of its hits.
    pub(in crate::engine) fn with_wanted<T>(
        &mut self,
        event: EventId,
        wants: EventInputs<'_>,
        act: impl FnOnce(&mut InstanceSession, &EventConfig<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Self { live, filters, triggers, options, hists, .. } = self;
        let live = live.as_mut().ok_or(Errno::NODEV)?;
        let plan = triggers.plan(event, |target| live.slot(target), |target| hists.places(target));
        let wanted = EventConfig {
            format: wants.format,
            filter: filters.get(&event).and_then(|filtering| filtering.filter.as_ref()),
            triggers: &plan,
            soft: triggers.is_soft(event),
            counted: hists.counts_event(event),
            begins_off: wants.begins_off,
            stacks: [options.is("stacktrace"), options.is("userstacktrace")],
            kinds: wants.stacks,
        };
        act(live, &wanted)
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
        let set = match list {
            List::Traced => &self.traced,
            List::Untraced => &self.untraced,
        };
        set.iter().copied()
    }

    fn lists_of(&self, pid: u32) -> u8 {
        (if self.traced.contains(&pid) { lists::TRACED } else { 0 })
            | (if self.untraced.contains(&pid) { lists::UNTRACED } else { 0 })
    }

    fn in_force(&self) -> u8 {
        (if self.traced.is_empty() { 0 } else { lists::TRACED })
            | (if self.untraced.is_empty() { 0 } else { lists::UNTRACED })
    }

    fn tell_pid(&mut self, pid: u32) -> Result<(), Errno> {
        let lists = self.lists_of(pid);
        match &mut self.live {
            Some(live) => live.session().threads().set(pid, lists).map_err(|error| session::errno(&error)),
            None => Ok(()),
        }
    }

    pub(in crate::engine) fn add_pids(&mut self, list: List, pids: &[u32]) -> Result<(), Errno> {
        self.refresh_pids();
        for pid in pids {
            match list {
                List::Traced => self.traced.insert(*pid),
                List::Untraced => self.untraced.insert(*pid),
            };
            self.tell_pid(*pid)?;
        }
        let in_force = self.in_force();
        if let Some(live) = &mut self.live {
            live.session().switches().set_lists(in_force);
        }
        Ok(())
    }

    pub(in crate::engine) fn clear_pids(&mut self, list: List) -> Result<(), Errno> {
        self.refresh_pids();
        let gone = match list {
            List::Traced => std::mem::take(&mut self.traced),
            List::Untraced => std::mem::take(&mut self.untraced),
        };
        let in_force = self.in_force();
        if let Some(live) = &mut self.live {
            live.session().switches().set_lists(in_force);
        }
        gone.into_iter().try_for_each(|pid| self.tell_pid(pid))
    }

    /// Learns who came into the lists and who left them by forking and exiting.
    pub fn refresh_pids(&mut self) {
        if !self.following {
            return;
        }
        let Some(live) = &mut self.live else { return };
        let Ok(pids) = live.session().threads().all() else { return };
        let with = |list: u8| pids.iter().filter(move |(_, lists)| lists & list != 0).map(|(pid, _)| *pid);
        // A list that was in force stays so when its last thread ends.
        self.traced = with(lists::TRACED).collect();
        self.untraced = with(lists::UNTRACED).collect();
    }

    /// Follows forks and exits, or does so no more.
    pub(in crate::engine) fn follow(&mut self, on: bool, task_pid: Option<u32>) -> Result<(), Errno> {
        self.refresh_pids();
        if let Some(live) = &mut self.live {
            if on {
                let offset = task_pid.ok_or(Errno::NOSYS)?;
                live.session().follow(offset).map_err(|error| session::errno(&error))?;
            } else {
                live.session().unfollow();
            }
        }
        self.following = on;
        Ok(())
    }

    /// Gives a new session what was set before.
    pub(in crate::engine) fn enliven(
        &mut self,
        mut live: InstanceSession,
        task_pid: Option<u32>,
    ) -> Result<(), Errno> {
        let told = |error: crate::attach::AttachError| session::errno(&error);
        for pid in self.traced.union(&self.untraced) {
            live.session().threads().set(*pid, self.lists_of(*pid)).map_err(told)?;
        }
        if self.following {
            live.session().follow(task_pid.ok_or(Errno::NOSYS)?).map_err(told)?;
        }
        live.session().switches().set_lists(self.in_force());
        live.session().switches().pause(self.stops > 0);
        live.session().switches().set_tracing(self.on);
        self.live = Some(live);
        Ok(())
    }
}
