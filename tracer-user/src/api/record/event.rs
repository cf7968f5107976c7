//! One record with its typed fields.

use std::{borrow::Cow, fmt, sync::Arc};

use crate::{
    engine::{facts::Facts, records::ShownRecord},
    render::{
        FieldValue, Printer,
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
    pub(super) fn new(shown: &ShownRecord<'_>, facts: &Arc<Facts>) -> Self {
        let payload: Box<[u8]> = shown.record.payload.into();
        let pid = pid(&payload);
        Self {
            printer: Arc::clone(shown.printer),
            facts: Arc::clone(facts),
            stamp: Stamp { cpu: shown.record.cpu, time: shown.record.time },
            payload,
            comm: shown.tasks.comm(pid).map(Box::from),
            tgid: shown.tasks.tgid(pid),
        }
    }

    /// The subsystem, such as `sched`.
    pub fn system(&self) -> &str {
        &self.printer.format().system
    }

    /// The name, such as `sched_switch`.
    pub fn name(&self) -> &str {
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
        pid(&self.payload)
    }

    /// The process of that thread, with [`RecordingBuilder::tgid`](super::RecordingBuilder::tgid) and where it is
    /// known.
    pub fn tgid(&self) -> Option<i32> {
        self.tgid
    }

    /// The name of the thread at the time of the hit; `<...>` if it is unknown.
    pub fn comm(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(line::comm(self.pid(), self))
    }

    /// The value of a field; `None` if the event has no field of this name.
    pub fn field(&self, name: &str) -> Option<FieldValue<'_>> {
        self.printer.value(name, &self.payload)
    }

    /// The event's own fields with their names, in the order of the event's format.
    pub fn fields(&self) -> impl Iterator<Item = (&str, FieldValue<'_>)> {
        self.printer.values(&self.payload)
    }

    /// The text that tracefs prints after the event's name.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        self.printer.text(&self.payload, &*self.facts, &mut text);
        String::from_utf8_lossy(&text).into_owned()
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

/// The thread in the common fields of a record.
fn pid(payload: &[u8]) -> i32 {
    let bytes = payload.get(4..).and_then(|rest| rest.first_chunk());
    i32::from_ne_bytes(bytes.copied().unwrap_or_default())
}
