//! The records of a recording, passed from the rings to a [`RecordSink`] in order of time. They are not copied into
//! the buffers of the instance.
//!
//! The two events that change names of threads are in the same stream. So each record is shown with the name that the
//! thread had at that time.

use std::{ops::ControlFlow, sync::Arc};

use tracer_abi::control;

use crate::{
    engine::{
        facts::Facts,
        records::{
            common::{kind_of, pid_of},
            names::NameEvents,
        },
        tasks::TaskNames,
    },
    render::{Printer, RecordSink, RecordView, line::Stamp},
    ring::{Drain, Record},
};

/// The value in [`RecordStream::by_kind`] for a kind without a printer.
const NO_PRINTER: u16 = u16::MAX;

/// The printers and names for the records of a recording, and the number of records taken.
#[derive(Debug)]
pub(crate) struct RecordStream {
    names: NameEvents,
    printers: Vec<Arc<Printer>>,
    /// Index in `printers` by kind of record.
    by_kind: Vec<u16>,
    wants_groups: bool,
    taken: u64,
    /// Whether the sink wants no more records.
    is_full: bool,
}

impl RecordStream {
    pub(crate) fn new() -> Self {
        Self {
            names: NameEvents::default(),
            printers: Vec::new(),
            by_kind: vec![NO_PRINTER; usize::from(control::FIRST)],
            wants_groups: false,
            taken: 0,
            is_full: false,
        }
    }

    /// Learns names from these events, which are attached in the session of the stream.
    pub(crate) fn follow(&mut self, names: NameEvents) {
        self.names = names;
    }

    /// Shows the records of this event from now on.
    pub(crate) fn show(&mut self, printer: &Arc<Printer>) {
        if let Some(place) = self.by_kind.get_mut(usize::from(printer.format().id)) {
            *place = self.printers.len() as u16;
            self.printers.push(Arc::clone(printer));
        }
    }

    pub(crate) fn names(&self) -> &NameEvents {
        &self.names
    }

    /// Also looks up the process of each thread, for `print-tgid`.
    pub(crate) fn want_groups(&mut self) {
        self.wants_groups = true;
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Passes on the records that are old enough at time `now`. `None` passes on all remaining records, once no
    /// program runs. Returns `Break` once the sink wants no more records; the others are dropped.
    pub(crate) fn pass_on(
        &mut self,
        (drain, tasks): (&mut Drain, &mut TaskNames),
        now: Option<u64>,
        facts: &Facts,
        sink: &mut dyn RecordSink,
    ) -> ControlFlow<()> {
        let Self { names, printers, by_kind, wants_groups, taken, is_full } = self;
        let pass_on = |record: Record<'_>| {
            let kind = kind_of(record.payload);
            if kind >= control::FIRST {
                *taken += u64::from(names.learn(kind, record.payload, tasks));
                return;
            }
            let Some(printer) =
                by_kind.get(usize::from(kind)).and_then(|index| printers.get(usize::from(*index)))
            else {
                return;
            };
            *taken += 1;
            if *is_full {
                return;
            }
            tasks.look_up(pid_of(record.payload), *wants_groups);
            let stamp = Stamp { cpu: record.cpu, time: record.time };
            let view = RecordView { stamp, payload: record.payload, printer, tasks, env: facts };
            *is_full = sink.record(&view).is_break();
        };
        match now {
            Some(now) => drain.merge(now, pass_on),
            None => drain.finish(pass_on),
        }
        if self.is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
