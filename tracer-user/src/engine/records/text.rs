//! Records as text: the non-consuming reader behind `trace` and the consuming one behind `trace_pipe`.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::Arc,
};

use crate::{
    buffer::{
        Entry, Reader, TraceBuffer,
        clock::{Clock, Conversion, monotonic},
    },
    engine::{
        Engine,
        facts::Facts,
        instances::instance::Instance,
        records::{
            mark,
            objects::{Maps, Objects},
        },
        registry::catalogue::Events,
        tasks::TaskNames,
    },
    event::{EventId, InstanceId},
    render::{
        Pointers, RenderEnv, Symbol,
        latency::{self, Position},
        line::{self, BufferInfo, Stamp},
        stack::{self, Stack},
    },
    sys::cpus::Cpus,
};

/// What rendering asks, with pointers as the option `hash-ptr` wants them.
struct Env<'a> {
    facts: &'a Facts,
    hashed: bool,
    /// Files that are mapped by processes that were asked for.
    objects: RefCell<HashMap<u32, Arc<Objects>>>,
    maps: Maps,
    since: Since,
    /// The time of the record that is being shown.
    time: Cell<u64>,
}

/// When processes started, by the trace clock.
struct Since {
    clock: Clock,
    conversion: Conversion,
    /// `CLOCK_BOOTTIME` less `CLOCK_MONOTONIC`.
    slept: u64,
    now: u64,
}

impl Since {
    fn now(clock: Clock) -> Self {
        let now = monotonic();
        let slept = Conversion::now(Clock::Boot).time(now, 0).saturating_sub(now);
        Self { clock, conversion: Conversion::now(clock), slept, now }
    }

    /// Whether a process that started then, by `CLOCK_BOOTTIME`, cannot be the one of a record of this time, which had its number
    /// before. A machine that slept meanwhile may be wrong about what came right before.
    fn is_later(&self, started: u64, time: u64) -> bool {
        // Whoever counts records knows no time.
        if self.clock == Clock::Counter {
            return false;
        }
        let started = started.saturating_sub(self.slept);
        // These do not keep the pace of the others.
        let own_pace = matches!(self.clock, Clock::MonoRaw | Clock::Tsc);
        let slack = if own_pace { self.now.saturating_sub(started) / 1000 } else { 0 };
        time < self.conversion.time(started.saturating_sub(slack), 0)
    }
}

impl RenderEnv for Env<'_> {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.facts.symbol(address)
    }

    fn kernel_text(&self, address: u64) -> Option<&[u8]> {
        self.facts.kernel_text(address)
    }

    fn object(&self, process: u32, address: u64) -> Option<(Vec<u8>, u64)> {
        let objects = self.objects(process)?;
        if self.since.is_later(objects.started, self.time.get()) { None } else { objects.find(address) }
    }

    fn pointers(&self) -> Pointers {
        if self.hashed { Pointers::Hidden } else { Pointers::Raw }
    }

    fn hash(&self, address: u64) -> Option<u64> {
        self.facts.hash(address)
    }

    fn jiffies(&self) -> u64 {
        self.facts.jiffies()
    }
}

impl Env<'_> {
    /// What a process has mapped; None where it is to be asked again.
    fn objects(&self, process: u32) -> Option<Arc<Objects>> {
        if let Some(known) = self.objects.borrow().get(&process) {
            return Some(Arc::clone(known));
        }
        let objects = self.maps.of(process)?;
        self.objects.borrow_mut().insert(process, Arc::clone(&objects));
        Some(objects)
    }
}

/// Records that no print fmt describes as they are shown.
#[derive(Clone, Copy, Debug)]
enum Special {
    Mark(mark::Mark),
    Stack(Stack),
}

impl Special {
    /// What an event's records are.
    fn of(events: &Events, event: EventId) -> Option<Self> {
        let known = events.get(event)?;
        if !events.is_special(known.system) {
            return None;
        }
        let stack = [Stack::Kernel, Stack::User].into_iter().find(|stack| stack.name() == known.name);
        stack.map(Self::Stack).or_else(|| mark::Mark::of(events, event).map(Self::Mark))
    }
}

/// Everything that a line is made of but the record.
struct Style<'a> {
    options: line::Options,
    env: Env<'a>,
    events: &'a Events,
    tasks: &'a TaskNames,
}

impl<'a> Style<'a> {
    fn of(state: &Instance, facts: &'a Facts, events: &'a Events, tasks: &'a TaskNames, maps: &Maps) -> Self {
        Self {
            options: state.options.line(state.clock.in_ns(), facts.version()),
            env: Env {
                facts,
                hashed: state.options.is("hash-ptr") && facts.hashes_pointers(),
                objects: RefCell::default(),
                maps: maps.clone(),
                since: Since::now(state.clock),
                time: Cell::default(),
            },
            events,
            tasks,
        }
    }

    /// Whether a record cannot be shown yet: it is to show files of a process that was asked for them and did not answer.
    fn awaits(&self, payload: &[u8]) -> bool {
        let kind = payload.first_chunk().map_or(0, |kind| u16::from_ne_bytes(*kind));
        let event = self.events.by_id(kind).filter(|_| self.options.sym_userobj && !self.options.fields);
        let Some(Special::Stack(Stack::User)) = event.and_then(|event| Special::of(self.events, event))
        else {
            return false;
        };
        stack::process(payload).is_some_and(|process| self.env.objects(process).is_none())
    }

    /// Writes a record.
    fn line(&self, out: &mut Vec<u8>, entry: Entry<'_>) {
        self.env.time.set(entry.time);
        let stamp = Stamp { cpu: entry.cpu, time: entry.time };
        let kind = entry.payload.first_chunk().map_or(0, |kind| u16::from_ne_bytes(*kind));
        let Some(event) = self.events.by_id(kind) else { return };
        match Special::of(self.events, event) {
            Some(Special::Mark(mark)) => {
                return mark.line(out, &self.options, entry.payload, stamp, self.tasks, &self.env);
            }
            Some(Special::Stack(stack)) if !self.options.fields => {
                return stack.line(out, &self.options, entry.payload, stamp, self.tasks, &self.env);
            }
            _ => {}
        }
        if let Some(printer) = self.events.printer(event, self.env.facts) {
            line::line(out, &self.options, printer, entry.payload, stamp, self.tasks, &self.env);
        }
    }
}

/// The text of `trace`: what was there when it was opened, made as it is read.
#[derive(Clone, Debug)]
pub struct Lines {
    instance: InstanceId,
    reader: Reader,
    /// Whether a CPU's first line is announced: only where records were overwritten.
    annotate: bool,
    seen: Vec<u32>,
    shown: u64,
    header: Option<Header>,
    latency: bool,
    ended: bool,
}

/// Where lines ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// There are more.
    More,
    /// More once something is known that was asked for.
    Later,
    /// There are no more.
    All,
}

/// What stands above the lines.
#[derive(Clone, Copy, Debug)]
enum Header {
    /// The usual.
    Records(BufferInfo),
    /// How to use `snapshot`, while there is none, or an empty one.
    Help { allocated: bool, cpu: bool },
}

impl Lines {
    /// Begins to read one CPU's buffer or all of an instance, or of its snapshot.
    pub fn new(mirror: &mut Engine, instance: InstanceId, cpu: Option<u32>, snapshot: bool) -> Option<Self> {
        mirror.collect(instance);
        let state = mirror.get(instance)?;
        let nothing = TraceBuffer::new(0, 0, state.page());
        let buffers = state.buffers(snapshot).unwrap_or(&nothing);
        let mut header =
            BufferInfo { entries: 0, written: 0, cpus: Cpus::online().map_or(0, |cpus| cpus.count() as u32) };
        for (_, buffer) in buffers.select(None) {
            let stats = buffer.stats();
            header.entries += stats.entries;
            header.written += stats.entries + stats.overrun;
        }
        let latency = !snapshot && state.options.is("latency-format");
        let annotate = state.options.is("annotate") && header.written > header.entries;
        let empty = buffers.select(cpu).all(|(_, buffer)| buffer.is_empty());
        if latency && empty {
            // Of a buffer that is empty nothing is told.
            header.entries = 0;
        }
        let header = if snapshot && empty {
            Header::Help { allocated: state.snapshot.is_some(), cpu: cpu.is_some() }
        } else {
            Header::Records(header)
        };
        Some(Self {
            instance,
            reader: Reader::new(buffers, cpu),
            annotate,
            seen: Vec::new(),
            shown: 0,
            header: Some(header),
            latency,
            ended: false,
        })
    }

    /// Adds lines until there are so many bytes.
    pub fn fill(&mut self, mirror: &mut Engine, out: &mut Vec<u8>, bytes: usize) -> Filled {
        let maps = mirror.maps.clone();
        let Some((facts, events, tasks, state)) = mirror.parts(self.instance) else { return Filled::All };
        let mut style = Style::of(state, facts, events, tasks, &maps);
        if let Some(header) = self.header.take() {
            match header {
                Header::Records(info) if self.latency => {
                    let release = rustix::system::uname().release().to_string_lossy().into_owned();
                    latency::header(out, &style.options, info, &release, facts.preemption());
                }
                Header::Records(info) => line::header(out, &style.options, info),
                Header::Help { allocated, cpu } => help(out, allocated, cpu),
            }
        }
        let mut kept = Vec::new();
        while out.len() < bytes && !self.ended {
            let before = style.options.sym_userobj.then(|| self.reader.clone());
            let Some(mut entry) = self.reader.advance() else {
                self.ended = true;
                break;
            };
            if let Some(before) = before
                && style.awaits(entry.payload)
            {
                self.reader = before;
                return Filled::Later;
            }
            if self.annotate && !self.seen.contains(&entry.cpu) {
                self.seen.push(entry.cpu);
                // The first two lines need no word on where they begin.
                if self.shown > 1 {
                    out.extend(format!("##### CPU {} buffer started ####\n", entry.cpu).bytes());
                }
            }
            if self.latency {
                kept.clear();
                kept.extend_from_slice(entry.payload);
                entry = Entry { payload: &kept, ..entry };
                let next = self.reader.next_time().unwrap_or(entry.time);
                style.options.latency = Some(Position { start: state.since, next, index: self.shown });
            }
            self.shown += 1;
            style.line(out, entry);
        }
        if self.ended { Filled::All } else { Filled::More }
    }
}

/// What `snapshot` reads while it holds nothing (`print_snapshot_help()`): scripts look for the state.
fn help(out: &mut Vec<u8>, allocated: bool, cpu: bool) {
    let state = if allocated { "allocated" } else { "freed" };
    out.extend(format!("# tracer: nop\n#\n#\n# * Snapshot is {state} *\n#\n# Snapshot commands:\n").bytes());
    let (zero, whose) = if cpu {
        ("Invalid for per_cpu snapshot file.", " for this cpu")
    } else {
        ("Clears and frees snapshot buffer", "")
    };
    let two = if cpu { "Clears this cpu's snapshot buffer" } else { "Clears snapshot buffer" };
    let free = if cpu { "" } else { " or free" };
    out.extend(
        format!(
            "# echo 0 > snapshot : {zero}\n\
             # echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.\n\
             #                      Takes a snapshot of the main buffer{whose}.\n\
             # echo 2 > snapshot : {two} (but does not allocate{free})\n\
             #                      (Doesn't have to be '2' works with any number that\n\
             #                       is not a '0' or '1')\n"
        )
        .bytes(),
    );
}

/// Bytes that one read of `trace_pipe` gives at most (`TRACE_SEQ_BUFFER_SIZE` less one, of two pages).
const PIPE_MAX: usize = 8155;

/// A reader of `trace_pipe`: what it shows is gone.
#[derive(Debug)]
pub struct Pipe {
    instance: InstanceId,
    cpu: Option<u32>,
    latency: bool,
    left: Vec<u8>,
    read_before: bool,
    /// A record that was taken and cannot be shown yet.
    taken: Option<Taken>,
}

/// A record that was taken out of its buffer.
#[derive(Debug)]
struct Taken {
    cpu: u32,
    lost: u64,
    time: u64,
    payload: Vec<u8>,
}

impl Pipe {
    /// A reader of one CPU or of all.
    pub fn new(mirror: &Engine, instance: InstanceId, cpu: Option<u32>) -> Self {
        let latency = mirror.get(instance).is_some_and(|state| state.options.is("latency-format"));
        Self { instance, cpu, latency, left: Vec::new(), read_before: false, taken: None }
    }

    /// Text of at most so many bytes; None when there is nothing yet, empty at the end: recording was stopped, and
    /// something had been read.
    pub fn read(&mut self, mirror: &mut Engine, size: usize) -> Option<Vec<u8>> {
        if self.left.is_empty() {
            let until = mirror.collect(self.instance);
            let maps = mirror.maps.clone();
            let is_on = mirror.status(self.instance).is_some_and(|status| status.is_on());
            let Some((facts, events, tasks, state)) = mirror.parts(self.instance) else {
                return Some(Vec::new());
            };
            let mut style = Style::of(state, facts, events, tasks, &maps);
            let most = size.min(PIPE_MAX);
            let since = state.since;
            let (mut any, mut index) = (false, 0);
            let mut show = |out: &mut Vec<u8>, cpu, lost, time, payload: &[u8]| {
                if style.awaits(payload) {
                    return Some(Taken { cpu, lost, time, payload: payload.to_vec() });
                }
                if lost > 0 {
                    line::lost(out, cpu, lost);
                }
                if self.latency {
                    // Here the kernel takes the record itself for the one that comes next.
                    index += 1;
                    style.options.latency = Some(Position { start: since, next: time, index });
                }
                style.line(out, Entry { cpu, time, payload });
                any = true;
                None
            };
            if let Some(Taken { cpu, lost, time, payload }) = self.taken.take() {
                self.taken = show(&mut self.left, cpu, lost, time, &payload);
            }
            while self.left.len() < most && self.taken.is_none() {
                let out = &mut self.left;
                let taken = state
                    .buffer
                    .consume(self.cpu, until, |cpu, lost, time, payload| show(out, cpu, lost, time, payload));
                let Some(taken) = taken else { break };
                self.taken = taken;
            }
            if self.taken.is_some() && !any {
                return None;
            }
            if !any {
                return (!is_on && self.read_before).then(Vec::new);
            }
            self.read_before = true;
        }
        let rest = self.left.split_off(size.min(self.left.len()));
        Some(std::mem::replace(&mut self.left, rest))
    }

    /// Whether a read would give something at once, of what has been taken in by now.
    pub fn is_ready(&self, mirror: &mut Engine) -> bool {
        if !self.left.is_empty() || self.taken.is_some() {
            return true;
        }
        let Some(state) = mirror.get(self.instance) else { return true };
        let ready = state.buffer.select(self.cpu).any(|(_, buffer)| !buffer.is_empty());
        let is_on = mirror.status(self.instance).is_some_and(|status| status.is_on());
        ready || (!is_on && self.read_before)
    }
}

/// A reader of `trace_pipe_raw`: the pages that it gets are gone.
#[derive(Debug)]
pub struct Pages {
    instance: InstanceId,
    cpu: u32,
    snapshot: bool,
    left: Vec<u8>,
}

impl Pages {
    /// A reader of a CPU's buffer, or of its snapshot.
    pub fn new(instance: InstanceId, cpu: u32, snapshot: bool) -> Self {
        Self { instance, cpu, snapshot, left: Vec::new() }
    }

    /// At most so many bytes of a page; None when there is none yet, empty at the end of a snapshot, which nothing is
    /// added to.
    pub fn read(&mut self, mirror: &mut Engine, size: usize) -> Option<Vec<u8>> {
        if self.left.is_empty() {
            mirror.collect(self.instance);
            let state = mirror.get_mut(self.instance)?;
            let buffers = if self.snapshot { state.snapshot.as_mut() } else { Some(&mut state.buffer) };
            match buffers.and_then(|buffers| buffers.cpu_mut(self.cpu)?.consume_page()) {
                Some(page) => self.left = page,
                None if self.snapshot => return Some(Vec::new()),
                None => return None,
            }
        }
        let rest = self.left.split_off(size.min(self.left.len()));
        Some(std::mem::replace(&mut self.left, rest))
    }

    /// Whether somebody who polls is to be woken: as full as `buffer_percent` says, of what has been taken in by now.
    pub fn is_ready(&self, mirror: &mut Engine) -> bool {
        let Some(state) = mirror.get(self.instance).filter(|_| !self.snapshot) else { return true };
        let Some(buffer) = state.buffer.cpu(self.cpu) else { return true };
        let full = state.percent as usize;
        !self.left.is_empty() || (!buffer.is_empty() && (full == 0 || buffer.percent() >= full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_came_later_had_no_record_before() {
        for clock in Clock::ALL {
            let since = Since::now(*clock);
            let record = Conversion::now(*clock).time(since.now, 0);
            let boot = since.now + since.slept;
            assert!(!since.is_later(boot - 1_000_000_000, record), "{clock:?}");
            assert_eq!(since.is_later(boot + 1_000_000_000, record), *clock != Clock::Counter, "{clock:?}");
        }
    }
}
