//! One record with its typed fields.

use std::{borrow::Cow, fmt, sync::Arc};

use crate::{
    engine::facts::Facts,
    render::{
        FieldValue, Printer, RecordView,
        line::{self, Stamp, Tasks},
    },
};

/// A record of an event. It owns its data, so it can be sent to other threads.
#[derive(Clone, Debug)]
pub struct Event {
    printer: Arc<Printer>,
    facts: Arc<Facts>,
    stamp: Stamp,
    payload: Box<[u8]>,
    comm: Option<Box<[u8]>>,
    tgid: Option<i32>,
}

impl Event {
    pub(super) fn new(record: &RecordView<'_>, facts: &Arc<Facts>) -> Self {
        let pid = record.pid();
        Self {
            printer: Arc::clone(record.printer),
            facts: Arc::clone(facts),
            stamp: record.stamp,
            payload: record.payload.into(),
            comm: record.tasks.comm(pid).map(Box::from),
            tgid: record.tasks.tgid(pid),
        }
    }

    fn view(&self) -> RecordView<'_> {
        let Self { stamp, printer, .. } = self;
        RecordView { stamp: *stamp, payload: &self.payload, printer, tasks: self, env: &*self.facts }
    }

    /// The subsystem, such as `sched`.
    pub fn system(&self) -> &str {
        self.view().system()
    }

    /// The name, such as `sched_switch`.
    pub fn name(&self) -> &str {
        self.view().name()
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
        self.view().pid()
    }

    /// The process of that thread, with [`RecordingBuilder::tgid`](super::RecordingBuilder::tgid) and where it is
    /// known.
    pub fn tgid(&self) -> Option<i32> {
        self.tgid
    }

    /// The name of the thread at the time of the hit; `<...>` if it is unknown.
    pub fn comm(&self) -> Cow<'_, str> {
        self.view().comm()
    }

    /// The value of a field; `None` if the event has no field of this name.
    pub fn field(&self, name: &str) -> Option<FieldValue<'_>> {
        self.view().field(name)
    }

    /// The event's own fields with their names, in the order of the event's format.
    pub fn fields(&self) -> impl Iterator<Item = (&str, FieldValue<'_>)> {
        self.view().fields()
    }

    /// The text that tracefs prints after the event's name.
    pub fn text(&self) -> String {
        self.view().text()
    }
}

/// The whole line that tracefs and `tracer record` print, without a newline.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = line::Options {
            print_tgid: self.tgid.is_some(),
            ..line::Options::for_kernel(self.facts.version())
        };
        let mut text = Vec::new();
        line::line(&mut text, &options, &self.printer, &self.payload, self.stamp, self, &*self.facts);
        f.write_str(String::from_utf8_lossy(&text).trim_end_matches('\n'))
    }
}

/// The names that the line of this record needs.
impl Tasks for Event {
    fn comm(&self, pid: i32) -> Option<&[u8]> {
        self.comm.as_deref().filter(|_| pid == self.pid())
    }

    fn tgid(&self, pid: i32) -> Option<i32> {
        self.tgid.filter(|_| pid == self.pid())
    }
}
