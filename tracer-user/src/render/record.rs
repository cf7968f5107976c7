//! Records on their way to a consumer: the view of a record, and the trait of consumers.

use std::{borrow::Cow, fmt, ops::ControlFlow, process::ExitStatus, sync::Arc};

use super::{
    env::RenderEnv,
    line::{self, Entry, Stamp, Tasks},
    printer::Printer,
    value::FieldValue,
};
use crate::{attach::AttachPoint, event::Format};

/// A consumer of the records of a recording, such as an output format.
///
/// A recording calls [`begin`](Self::begin) once and before everything else, then [`record`](Self::record), and at the
/// end [`lost`](Self::lost) and once [`finish`](Self::finish). It calls the sink only within calls of its own methods.
/// A sink that takes long lets the rings become full.
///
/// A recording that is dropped or detached from before its end does not finish its sink. So a caller that stops by
/// itself after `Recording::poll` calls `Recording::stop_with` with the same sink.
pub trait RecordSink {
    /// All events are attached. They and their hooks stay the same until the end.
    fn begin(&mut self, _start: &RecordStart<'_>) {}

    /// A record. Records of all CPUs come in order of time. After `Break`, the sink gets no more records, and the
    /// recording ends.
    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()>;

    /// This many hits on a CPU found its ring full and made no record. It is called at the end, before `finish`, once
    /// for each CPU with such hits. The sum of all calls is the sum of [`EventCounts::dropped`].
    fn lost(&mut self, _cpu: u32, _hits: u64) {}

    /// The recording has ended, and all of its records were passed on.
    fn finish(&mut self, _summary: &Summary) {}
}

/// What is known once everything is attached.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RecordStart<'a> {
    /// The events, in the order of their counts.
    pub events: &'a [RecordedEvent<'a>],
    /// The highest possible number of a CPU plus one.
    pub cpus: u32,
    /// The version of the kernel, major and minor.
    pub kernel: (u32, u32),
}

/// An event of a recording.
#[derive(Clone, Debug)]
pub struct RecordedEvent<'a> {
    pub(crate) format: &'a Format,
    pub(crate) hooks: Vec<EventHook<'a>>,
}

impl<'a> RecordedEvent<'a> {
    /// The subsystem, such as `sched`.
    pub fn system(&self) -> &'a str {
        &self.format.system
    }

    /// The name, such as `sched_switch`.
    pub fn name(&self) -> &'a str {
        &self.format.name
    }

    /// The names of the event's own fields, in the order of its format.
    pub fn fields(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.format.fields.iter().map(|field| field.name.as_str())
    }

    /// The hooks of its programs: several for an event of several probes.
    pub fn hooks(&self) -> &[EventHook<'a>] {
        &self.hooks
    }
}

/// The hook of a program of an event.
#[derive(Clone, Copy, Debug)]
pub struct EventHook<'a> {
    pub(crate) point: &'a AttachPoint,
    pub(crate) reason: &'a str,
}

impl<'a> EventHook<'a> {
    /// The hook, for logs. The form of this text may change.
    pub fn point(&self) -> impl fmt::Debug + use<'a> {
        self.point
    }

    /// Whether it is a perf tracepoint, which costs more than a raw tracepoint.
    pub fn is_perf_tracepoint(&self) -> bool {
        self.point.is_tracepoint()
    }

    /// Why no raw tracepoint is used; empty if one is used, and for probes.
    pub fn reason(&self) -> &'a str {
        self.reason
    }
}

/// The result of a recording.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The counts of each event.
    pub counts: Vec<EventCounts>,
    /// Misses of programs that several events share. They belong to no single event.
    pub missed_together: u64,
    /// How the command ended; `None` without a command and while it runs.
    pub status: Option<ExitStatus>,
}

/// The counts of an event's hits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventCounts {
    /// `system:name`.
    pub event: String,
    /// Hits in the scope of the recording: the sum of the next three.
    pub hits: u64,
    /// Hits that the filter refused.
    pub filtered: u64,
    /// Hits with a record.
    pub recorded: u64,
    /// Hits that found the ring of their CPU full.
    pub dropped: u64,
    /// Hits for which the kernel did not run the program, because it (or, at a perf tracepoint, any other program)
    /// was already running on that CPU.
    pub missed: u64,
}

/// A record of an event with everything that is needed to show it. It is valid during one call of
/// [`RecordSink::record`].
#[derive(Clone, Copy)]
pub struct RecordView<'a> {
    pub(crate) stamp: Stamp,
    pub(crate) payload: &'a [u8],
    pub(crate) printer: &'a Arc<Printer>,
    pub(crate) tasks: &'a dyn Tasks,
    pub(crate) env: &'a dyn RenderEnv,
}

impl<'a> RecordView<'a> {
    /// The subsystem of the event, such as `sched`.
    pub fn system(&self) -> &'a str {
        &self.printer.format().system
    }

    /// The name of the event, such as `sched_switch`.
    pub fn name(&self) -> &'a str {
        &self.printer.format().name
    }

    /// The time of the hit: nanoseconds of `CLOCK_MONOTONIC`.
    pub fn time_ns(&self) -> u64 {
        self.stamp.time
    }

    /// The number of the CPU.
    pub fn cpu(&self) -> u32 {
        self.stamp.cpu
    }

    /// The thread that was running, by its id in the initial pid namespace; 0 for an idle CPU. The kernel calls
    /// thread ids pids.
    pub fn pid(&self) -> i32 {
        Entry::of(self.payload).pid
    }

    /// The process of that thread, if the recording looks it up and where it is known.
    pub fn tgid(&self) -> Option<i32> {
        self.tasks.tgid(self.pid())
    }

    /// The name of the thread at the time of the hit; `<...>` if it is unknown.
    pub fn comm(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(line::comm(self.pid(), self.tasks))
    }

    /// The value of a field; `None` if the event has no field of this name.
    pub fn field(&self, name: &str) -> Option<FieldValue<'a>> {
        self.printer.value(name, self.payload)
    }

    /// The event's own fields with their names, in the order of the event's format.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> + use<'a> {
        self.printer.values(self.payload)
    }

    /// The bytes of the record, in the layout of the event's format.
    pub fn bytes(&self) -> &'a [u8] {
        self.payload
    }

    /// The text that tracefs prints after the event's name.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        self.printer.text(self.payload, self.env, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl fmt::Debug for RecordView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordView")
            .field("system", &self.system())
            .field("name", &self.name())
            .field("stamp", &self.stamp)
            .field("bytes", &self.payload)
            .finish_non_exhaustive()
    }
}
