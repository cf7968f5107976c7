//! Recording events, with a sink or as an iterator of typed events: what `tracer record` does, for Rust programs.
//!
//! [`Recording::builder`] names what is recorded: events of the kernel with filters, probes, events of programs, and
//! the threads that are traced. [`RecordingBuilder::start`] attaches eBPF programs to the events.
//! [`Recording::events`] then returns the records of all CPUs in order of time. This needs the privileges that
//! `tracer record` needs: root, or `CAP_BPF`, `CAP_PERFMON` and a readable tracefs.
//!
//! ```no_run
//! use tracer_user::api::Recording;
//!
//! let mut recording = Recording::builder()
//!     .event("sched:sched_switch")
//!     .filter("prev_pid == 0")
//!     .start()?;
//! for event in recording.events().take(10) {
//!     println!("{} ns: CPU {} runs {}", event.time_ns(), event.cpu(), event.field("next_comm").unwrap());
//! }
//! for count in recording.finish().counts {
//!     println!("{}: {} recorded, {} dropped", count.event, count.recorded, count.dropped);
//! }
//! # Ok::<(), tracer_user::api::RecordError>(())
//! ```
//!
//! [`Recording::poll`] passes the records to a [`RecordSink`] instead, without a copy of each. [`RecordWriter`] is a sink
//! that writes lines or JSON.
//!
//! Records wait in a ring of each CPU ([`RecordingBuilder::ring_bytes`]) until the program takes them. A hit that finds
//! its ring full is dropped and counted. Every hit is in exactly one count: `hits = filtered + recorded + dropped`.
//! Take them at least every six days, because a record holds only the low 50 bits of its time.

mod builder;
mod error;
mod event;
mod explain;
mod writer;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    ops::ControlFlow,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

pub use builder::{RecordingBuilder, SelectedRecording};
pub use error::{RecordError, RecordErrorKind};
pub use event::Event;
pub use writer::{LineOptions, RecordWriter};

use self::error::Cause;
use crate::{
    engine::{facts::Facts, record::Recorder},
    render::{EventCounts, RecordSink, RecordView, Summary},
    sys::process::held::HeldCommand,
};

/// A recording that runs until it is stopped, finished or dropped.
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct Recording {
    recorder: Recorder,
    /// Records in order that were taken from the rings and not returned yet.
    pending: VecDeque<Event>,
    command: Option<TracedCommand>,
    status: Option<ExitStatus>,
    /// Readable after [`Stopper::stop`].
    stop: UnixStream,
    stopper: UnixStream,
    /// Once the recording has ended.
    summary: Option<Summary>,
}

#[derive(Debug)]
enum TracedCommand {
    /// It waits for the start of the recording.
    Held(HeldCommand),
    /// It runs, or ended.
    Running(Child),
}

/// The result of [`Recording::next_timeout`].
#[derive(Debug)]
pub enum Received {
    /// The next event.
    Event(Event),
    /// No event came in time.
    Timeout,
    /// The recording ended, and all of its events were returned.
    Ended,
}

/// The result of [`Recording::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The recording continues.
    Running,
    /// The recording ended: it was stopped, or the sink wants no more records.
    Stopped,
    /// The recording ended because its command ended.
    Exited(ExitStatus),
}

/// Stops a recording from another thread.
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl Stopper {
    /// Stops the recording. Its events up to now can still be read.
    pub fn stop(&self) {
        // A full socket means that it was stopped before; a closed one, that the recording is gone.
        let _ = (&self.0).write(b"\n");
    }
}

/// For callers that stop a recording by a write to a descriptor, such as the handler of a signal. Any byte stops it.
impl From<Stopper> for OwnedFd {
    fn from(stopper: Stopper) -> Self {
        stopper.0.into()
    }
}

/// The sink of the iterators of events.
struct EventQueue<'a> {
    events: &'a mut VecDeque<Event>,
    facts: &'a Arc<Facts>,
}

impl RecordSink for EventQueue<'_> {
    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        self.events.push_back(Event::new(record, self.facts));
        ControlFlow::Continue(())
    }
}

/// A sink that takes no records.
struct Unread;

impl RecordSink for Unread {
    fn record(&mut self, _record: &RecordView<'_>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

impl Recording {
    /// Begins to describe a recording.
    pub fn builder() -> RecordingBuilder {
        RecordingBuilder::default()
    }

    fn new(recorder: Recorder, command: Option<HeldCommand>) -> Result<Self, RecordError> {
        let (stop, stopper) = UnixStream::pair().map_err(Cause::System)?;
        for stream in [&stop, &stopper] {
            stream.set_nonblocking(true).map_err(Cause::System)?;
        }
        recorder.waiter().add(&stop).map_err(|errno| Cause::System(errno.into()))?;
        let command = command.map(TracedCommand::Held);
        let pending = VecDeque::new();
        Ok(Self { recorder, pending, command, status: None, stop, stopper, summary: None })
    }

    /// Passes the events and their hooks to the sink. Only the first call has an effect, and [`Recording::poll`] makes it
    /// otherwise. A caller that drops privileges before it polls may call this before.
    pub fn begin(&mut self, sink: &mut dyn RecordSink) {
        self.recorder.begin(sink);
    }

    /// Starts to record, and lets the command run. [`RecordingBuilder::start`] has done this already. Does nothing after
    /// the end.
    ///
    /// # Errors
    /// The command cannot be executed ([`RecordErrorKind::Command`]). The events are recorded nevertheless.
    pub fn start(&mut self) -> Result<(), RecordError> {
        if self.summary.is_some() {
            return Ok(());
        }
        self.recorder.go();
        match self.command.take() {
            Some(TracedCommand::Held(held)) => {
                let child = held.release().map_err(Cause::Command)?;
                self.command = Some(TracedCommand::Running(child));
            }
            other => self.command = other,
        }
        Ok(())
    }

    /// The number of attached events.
    pub fn event_count(&self) -> usize {
        self.recorder.event_count()
    }

    /// Waits at most this long for records, and passes those on that are complete by now. The wait ends earlier without
    /// records, after at most 20 ms. If the recording has ended, all remaining records are passed on and the sink is
    /// finished.
    ///
    /// All calls, and those of [`Recording::begin`] and [`Recording::stop_with`], must pass the same sink.
    ///
    /// # Errors
    /// The end of the command cannot be waited for, or the process has closed a descriptor of the recording. The
    /// recording continues.
    pub fn poll(&mut self, sink: &mut dyn RecordSink, timeout: Duration) -> Result<Progress, RecordError> {
        if self.summary.is_some() {
            return Ok(self.status.map_or(Progress::Stopped, Progress::Exited));
        }
        self.recorder.wait(timeout).map_err(|errno| Cause::Wait(errno.into()))?;
        let flow = self.recorder.poll(sink);
        let progress = if let Some(status) = self.command_status().map_err(Cause::CommandEnd)? {
            Progress::Exited(status)
        } else if flow.is_break() || matches!((&self.stop).read(&mut [0; 8]), Ok(1..)) {
            Progress::Stopped
        } else {
            return Ok(Progress::Running);
        };
        self.stop_with(sink);
        Ok(progress)
    }

    /// The events in order of time. The iterator blocks until the next event, and ends with the recording: after
    /// [`Stopper::stop`], [`Recording::stop`] or the end of the command.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.events_until(None)
    }

    /// As [`Recording::events`], but ends when this time has passed. The recording continues.
    pub fn events_for(&mut self, time: Duration) -> impl Iterator<Item = Event> + '_ {
        self.events_until(Instant::now().checked_add(time))
    }

    fn events_until(&mut self, end: Option<Instant>) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(move || {
            if end.is_some_and(|end| Instant::now() >= end) {
                return None;
            }
            match self.receive(end) {
                Received::Event(event) => Some(event),
                Received::Timeout | Received::Ended => None,
            }
        })
    }

    /// Waits at most this long for the next event. Events come about 2 ms late, because records of other CPUs may
    /// precede them.
    pub fn next_timeout(&mut self, timeout: Duration) -> Received {
        self.receive(Instant::now().checked_add(timeout))
    }

    fn receive(&mut self, until: Option<Instant>) -> Received {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Received::Event(event);
            }
            if self.summary.is_some() {
                return Received::Ended;
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if self.with_queue(|recording, queue| recording.poll(queue, left)).is_err() {
                self.stop();
            }
            if self.pending.is_empty() && self.summary.is_none() && left.is_zero() {
                return Received::Timeout;
            }
        }
    }

    /// Calls a function with the sink that collects the pending events.
    fn with_queue<T>(&mut self, act: impl FnOnce(&mut Self, &mut EventQueue<'_>) -> T) -> T {
        let (mut events, facts) = (std::mem::take(&mut self.pending), Arc::clone(self.recorder.facts()));
        let result = act(self, &mut EventQueue { events: &mut events, facts: &facts });
        self.pending = events;
        result
    }

    fn command_status(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if let (None, Some(TracedCommand::Running(child))) = (self.status, &mut self.command) {
            self.status = child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Stops recording. Events up to now can still be read.
    pub fn stop(&mut self) {
        self.with_queue(|recording, queue| {
            recording.stop_with(queue);
        });
    }

    /// Stops recording, passes the remaining records on, and finishes the sink. If the recording has ended, nothing is
    /// passed on. The status of the command is that at the time of the call.
    pub fn stop_with(&mut self, sink: &mut dyn RecordSink) -> &Summary {
        // An error leaves the status unknown.
        let status = self.command_status().ok().flatten();
        let summary = match self.summary.take() {
            Some(summary) => Summary { status, ..summary },
            None => self.recorder.finish(sink, status),
        };
        self.summary.insert(summary)
    }

    /// A handle that stops this recording from another thread, such as one that waits for a signal.
    ///
    /// # Errors
    /// When no descriptor is left ([`RecordErrorKind::System`]).
    pub fn stopper(&self) -> Result<Stopper, RecordError> {
        Ok(self.stopper.try_clone().map(Stopper).map_err(Cause::System)?)
    }

    /// The counts of each event so far.
    pub fn counts(&self) -> Vec<EventCounts> {
        self.recorder.counts()
    }

    /// Stops recording, detaches from all events and returns the counts. Events that were not read are lost.
    pub fn finish(mut self) -> Summary {
        self.stop_with(&mut Unread).clone()
    }

    /// Detaches from all events without finishing a sink, and returns their perf events, which have no effect any more.
    /// Closing one takes the kernel tens of milliseconds, so a caller with many can leave that to another thread or
    /// process. Dropping the recording closes them.
    #[must_use = "the descriptors are closed when they are dropped"]
    pub fn detach(self) -> Vec<OwnedFd> {
        self.recorder.end()
    }
}
