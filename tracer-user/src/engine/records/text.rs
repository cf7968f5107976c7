//! Records as text: the reader of `trace`, which does not consume records, and the reader of `trace_pipe`, which
//! does.

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
        instances::Instances,
        records::{
            common::kind_of,
            mark,
            objects::{Maps, Objects},
        },
        registry::catalogue::Events,
        tasks::TaskNames,
    },
    event::InstanceId,
    render::{
        LineWriter, Pointers, Printer, RenderEnv, Symbol, TextBuffer,
        latency::{self, Position},
        line::{self, BufferInfo, Stamp},
        stack::{self, Stack},
    },
    sys::cpus::Cpus,
};

/// The environment of rendering, with pointers as the option `hash-ptr` requests.
struct Env<'a> {
    facts: &'a Facts,
    hashed: bool,
    lists_bitmasks: bool,
    /// Files that processes have mapped, as looked up so far.
    objects: RefCell<HashMap<u32, Arc<Objects>>>,
    maps: Maps,
    since: Since,
    /// The time of the record that is being shown.
    time: Cell<u64>,
}

/// The start times of processes, by the trace clock.
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

    /// Whether a process started after the time of a record, so that the record is of an earlier process with the same
    /// id. `started` is by `CLOCK_BOOTTIME`. If the machine has slept, the answer may be wrong for records from shortly
    /// before.
    fn is_later(&self, started: u64, time: u64) -> bool {
        // The clock `counter` has no time.
        if self.clock == Clock::Counter {
            return false;
        }
        let started = started.saturating_sub(self.slept);
        // These clocks run at their own rates.
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

    fn lists_bitmasks(&self) -> bool {
        self.lists_bitmasks
    }

    fn hash(&self, address: u64) -> Option<u64> {
        self.facts.hash(address)
    }

    fn jiffies(&self) -> u64 {
        self.facts.jiffies()
    }
}

impl Env<'_> {
    /// The mappings of a process; `None` if they must be requested again.
    fn objects(&self, process: u32) -> Option<Arc<Objects>> {
        if let Some(known) = self.objects.borrow().get(&process) {
            return Some(Arc::clone(known));
        }
        let objects = self.maps.of(process)?;
        self.objects.borrow_mut().insert(process, Arc::clone(&objects));
        Some(objects)
    }
}

/// How the records of an event are printed.
#[derive(Clone, Copy, Debug)]
enum LinePrinter<'a> {
    Mark(mark::Mark),
    Stack(Stack),
    Event(&'a Printer),
}

impl<'a> LinePrinter<'a> {
    /// The printer of a kind of record; `None` if there is no such event. With the option `fields`, stacks print as
    /// events.
    fn of(events: &'a Events, kind: u16, facts: &Facts, fields: bool) -> Option<Self> {
        if let Some(printer) = events.defined_printer(kind) {
            return Some(Self::Event(printer));
        }
        let event = events.by_id(kind)?;
        let known = events.get(event)?;
        if events.is_special(known.system) {
            let stack = [Stack::Kernel, Stack::User].into_iter().find(|stack| stack.name() == known.name);
            if let Some(stack) = stack.filter(|_| !fields) {
                return Some(Self::Stack(stack));
            }
            if let Some(mark) = mark::Mark::of(events, event) {
                return Some(Self::Mark(mark));
            }
        }
        Some(Self::Event(events.printer(event, facts)?))
    }
}

/// The environment of the lines of an instance, without the records. It is a copy, so that a thread can print lines
/// while the engine continues.
#[derive(Debug)]
pub struct LineContext {
    facts: Arc<Facts>,
    events: Arc<Events>,
    tasks: Arc<TaskNames>,
    maps: Maps,
    options: line::Options,
    hashed: bool,
    lists_bitmasks: bool,
    clock: Clock,
    /// The time at which the buffers were emptied last.
    since: u64,
}

impl LineContext {
    /// The context of an instance; `None` if the instance is gone.
    pub fn of(engine: &Engine, instance: InstanceId) -> Option<Self> {
        let state = engine.instances.get(instance)?;
        let facts = Arc::clone(&engine.facts);
        Some(Self {
            options: state.options.line(state.clock.in_ns(), facts.version()),
            hashed: state.options.is("hash-ptr") && facts.hashes_pointers(),
            lists_bitmasks: state.options.is("bitmask-list"),
            clock: state.clock,
            since: state.since,
            events: Arc::clone(engine.registry.events()),
            tasks: Arc::clone(&engine.tasks),
            maps: engine.maps.clone(),
            facts,
        })
    }
}

/// Number of events whose printers a [`Style`] keeps.
const PRINTERS: usize = 64;

/// A [`LineContext`] in use.
struct Style<'a> {
    writer: LineWriter,
    env: Env<'a>,
    events: &'a Events,
    tasks: &'a TaskNames,
    /// The printers that were used last, by the remainders of their kinds.
    printers: [Option<(u16, LinePrinter<'a>)>; PRINTERS],
}

impl<'a> Style<'a> {
    fn of(context: &'a LineContext) -> Self {
        Self {
            writer: LineWriter::new(context.options),
            env: Env {
                facts: &context.facts,
                hashed: context.hashed,
                lists_bitmasks: context.lists_bitmasks,
                objects: RefCell::default(),
                maps: context.maps.clone(),
                since: Since::now(context.clock),
                time: Cell::default(),
            },
            events: &context.events,
            tasks: &context.tasks,
            printers: [None; PRINTERS],
        }
    }

    /// The printer of a kind of record; `None` if there is no such event.
    #[inline]
    fn printer(&mut self, kind: u16) -> Option<LinePrinter<'a>> {
        let kept = self.printers.get_mut(usize::from(kind) % PRINTERS)?;
        if let Some((_, printer)) = kept.filter(|(of, _)| *of == kind) {
            return Some(printer);
        }
        let printer = LinePrinter::of(self.events, kind, self.env.facts, self.writer.options().fields)?;
        *kept = Some((kind, printer));
        Some(printer)
    }

    /// Whether a record cannot be shown yet, because it shows mapped files of a process that have not been read.
    fn awaits(&mut self, payload: &[u8]) -> bool {
        if !self.writer.options().sym_userobj || self.writer.options().fields {
            return false;
        }
        let Some(LinePrinter::Stack(Stack::User)) = self.printer(kind_of(payload)) else {
            return false;
        };
        stack::process(payload).is_some_and(|process| self.env.objects(process).is_none())
    }

    fn line(&mut self, out: &mut TextBuffer, entry: Entry<'_>) {
        let Entry { cpu, time, payload, .. } = entry;
        self.env.time.set(time);
        let stamp = Stamp { cpu, time };
        let printer = self.printer(kind_of(payload));
        let (options, tasks, env) = (self.writer.options(), self.tasks, &self.env);
        let Some(printer) = printer else {
            return out.with(|out| line::unknown(out, options, payload, stamp, tasks));
        };
        match printer {
            LinePrinter::Event(printer) => self.writer.line(out, printer, payload, stamp, tasks, env),
            LinePrinter::Mark(mark) => out.with(|out| mark.line(out, options, payload, stamp, tasks, env)),
            LinePrinter::Stack(stack) => out.with(|out| stack.line(out, options, payload, stamp, tasks, env)),
        }
    }
}

/// The text of `trace`: the records at the time of opening, rendered as they are read.
#[derive(Clone, Debug)]
pub struct Lines {
    reader: Reader,
    /// The CPUs whose first lines were announced. They are announced only if records were overwritten.
    announced: Option<Vec<u32>>,
    shown: u64,
    header: Option<Header>,
    latency: bool,
    /// Whether the records are those of a snapshot.
    snapshot: bool,
    ended: bool,
}

/// The state after [`Lines::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// There are more.
    More,
    /// More lines follow once requested information is available, or other pages are held.
    Later,
    /// There are no more.
    All,
}

/// The text before the lines.
#[derive(Clone, Copy, Debug)]
enum Header {
    /// The usual header.
    Records(BufferInfo),
    /// The help text of `snapshot`, if there is none or it is empty.
    Help { allocated: bool, cpu: bool },
}

impl Lines {
    /// Starts to read the buffer of one CPU, or of all, of an instance or its snapshot.
    pub fn new(engine: &mut Engine, instance: InstanceId, cpu: Option<u32>, snapshot: bool) -> Option<Self> {
        engine.collect(instance);
        let state = engine.instances.get(instance)?;
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
            // The kernel shows no counts for an empty buffer.
            header.entries = 0;
        }
        let header = if snapshot && empty {
            Header::Help { allocated: state.snapshot.is_some(), cpu: cpu.is_some() }
        } else {
            Header::Records(header)
        };
        Some(Self {
            reader: Reader::new(buffers, cpu),
            announced: annotate.then(Vec::new),
            shown: 0,
            header: Some(header),
            latency,
            snapshot,
            ended: false,
        })
    }

    /// Bytes of the pages that it holds.
    pub fn held_bytes(&self) -> usize {
        self.reader.held_bytes()
    }

    /// Releases the pages and keeps the position. It must hold pages again before it continues.
    pub fn release(&mut self) {
        self.reader.release();
    }

    /// Holds the pages from the position on again. Records that were overwritten meanwhile are reported as lost.
    pub fn hold(&mut self, instances: &Instances, instance: InstanceId) {
        let Some(state) = instances.get(instance) else { return };
        // A snapshot exchanges the two.
        let both = [self.snapshot, !self.snapshot].map(|snapshot| state.buffers(snapshot));
        let both: Vec<&TraceBuffer> = both.into_iter().flatten().collect();
        self.reader.hold(&both);
    }

    /// Appends lines until the text has this many bytes.
    pub fn fill(&mut self, context: &LineContext, out: &mut Vec<u8>, bytes: usize) -> Filled {
        let mut style = Style::of(context);
        let mut text = TextBuffer::after(std::mem::take(out));
        let filled = self.write(context, &mut style, &mut text, bytes);
        *out = text.into_text();
        filled
    }

    fn write(
        &mut self,
        context: &LineContext,
        style: &mut Style<'_>,
        out: &mut TextBuffer,
        bytes: usize,
    ) -> Filled {
        if let Some(header) = self.header.take() {
            match header {
                Header::Records(info) if self.latency => {
                    let release = rustix::system::uname().release().to_string_lossy().into_owned();
                    let (options, preemption) = (style.writer.options(), context.facts.preemption());
                    out.with(|out| latency::header(out, options, info, &release, preemption));
                }
                Header::Records(info) => out.with(|out| line::header(out, style.writer.options(), info)),
                Header::Help { allocated, cpu } => out.with(|out| help(out, allocated, cpu)),
            }
        }
        let mut kept = Vec::new();
        while out.length() < bytes && !self.ended {
            let may_wait = style.writer.options().sym_userobj || self.latency;
            let before = may_wait.then(|| self.reader.clone());
            if self.reader.is_short() {
                return Filled::Later;
            }
            let Some(mut entry) = self.reader.advance() else {
                for (cpu, lost) in self.reader.take_lost() {
                    out.with(|out| line::lost(out, cpu, lost));
                }
                self.ended = true;
                break;
            };
            let awaits = style.awaits(entry.payload);
            if self.latency {
                kept.clear();
                kept.extend_from_slice(entry.payload);
                entry = Entry { payload: &kept, ..entry };
                // A line shows the time until the next record.
                if (awaits || self.reader.is_short())
                    && let Some(before) = before
                {
                    self.reader = before;
                    return Filled::Later;
                }
                let next = self.reader.next_time().unwrap_or(entry.time);
                style.writer.set_position(Position { start: context.since, next, index: self.shown });
            } else if awaits && let Some(before) = before {
                self.reader = before;
                return Filled::Later;
            }
            if entry.lost > 0 {
                out.with(|out| line::lost(out, entry.cpu, entry.lost));
            }
            if let Some(announced) = self.announced.as_mut().filter(|all| !all.contains(&entry.cpu)) {
                announced.push(entry.cpu);
                // The first two lines are not announced.
                if self.shown > 1 {
                    out.bytes(format!("##### CPU {} buffer started ####\n", entry.cpu).as_bytes());
                }
            }
            self.shown += 1;
            style.line(out, entry);
        }
        if self.ended { Filled::All } else { Filled::More }
    }
}

/// The text of an empty `snapshot` (`print_snapshot_help()`). Scripts search it for the state.
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

/// Maximum bytes of one read of `trace_pipe` (`TRACE_SEQ_BUFFER_SIZE`, two pages, less one).
const PIPE_MAX: usize = 8155;

/// A reader of `trace_pipe`, which removes the records that it shows.
#[derive(Debug)]
pub struct Pipe {
    instance: InstanceId,
    cpu: Option<u32>,
    latency: bool,
    left: Vec<u8>,
    read_before: bool,
    /// A record that was removed from its buffer and cannot be shown yet.
    taken: Option<Taken>,
}

/// A record that was removed from its buffer.
#[derive(Debug)]
struct Taken {
    cpu: u32,
    lost: u64,
    time: u64,
    payload: Vec<u8>,
}

impl Pipe {
    /// A reader of one CPU or of all.
    pub fn new(instances: &Instances, instance: InstanceId, cpu: Option<u32>) -> Self {
        let latency = instances.get(instance).is_some_and(|state| state.options.is("latency-format"));
        Self { instance, cpu, latency, left: Vec::new(), read_before: false, taken: None }
    }

    /// Text of at most this many bytes. `None` if there is nothing yet. Empty at the end: recording was stopped after
    /// something had been read.
    pub fn read(&mut self, engine: &mut Engine, size: usize) -> Option<Vec<u8>> {
        if self.left.is_empty() {
            let until = engine.collect(self.instance);
            let is_on = engine.status(self.instance).is_some_and(|status| status.is_on());
            let Some(context) = LineContext::of(engine, self.instance) else { return Some(Vec::new()) };
            let Some(state) = engine.instances.get_mut(self.instance) else { return Some(Vec::new()) };
            let mut style = Style::of(&context);
            let most = size.min(PIPE_MAX);
            let since = context.since;
            let (mut any, mut index) = (false, 0);
            let mut text = TextBuffer::default();
            let mut show = |out: &mut TextBuffer, cpu, lost, time, payload: &[u8]| {
                if style.awaits(payload) {
                    return Some(Taken { cpu, lost, time, payload: payload.to_vec() });
                }
                if lost > 0 {
                    out.with(|out| line::lost(out, cpu, lost));
                }
                if self.latency {
                    // Here the kernel takes the record itself for the next one.
                    index += 1;
                    style.writer.set_position(Position { start: since, next: time, index });
                }
                style.line(out, Entry { cpu, time, payload, lost });
                any = true;
                None
            };
            if let Some(Taken { cpu, lost, time, payload }) = self.taken.take() {
                self.taken = show(&mut text, cpu, lost, time, &payload);
            }
            while text.length() < most && self.taken.is_none() {
                let out = &mut text;
                let taken = state
                    .buffer
                    .consume(self.cpu, until, |cpu, lost, time, payload| show(out, cpu, lost, time, payload));
                let Some(taken) = taken else { break };
                self.taken = taken;
            }
            self.left = text.into_text();
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

    /// Whether a read would return immediately, based on the records collected so far.
    pub fn is_ready(&self, engine: &Engine) -> bool {
        if !self.left.is_empty() || self.taken.is_some() {
            return true;
        }
        let Some(state) = engine.instances.get(self.instance) else { return true };
        let ready = state.buffer.select(self.cpu).any(|(_, buffer)| !buffer.is_empty());
        let is_on = engine.status(self.instance).is_some_and(|status| status.is_on());
        ready || (!is_on && self.read_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_has_no_earlier_records() {
        for clock in Clock::ALL {
            let since = Since::now(*clock);
            let record = since.conversion.time(since.now, 0);
            let boot = since.now + since.slept;
            assert!(!since.is_later(boot - 1_000_000_000, record), "{clock:?}");
            assert_eq!(since.is_later(boot + 1_000_000_000, record), *clock != Clock::Counter, "{clock:?}");
        }
    }
}
