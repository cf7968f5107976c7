//! Recording events as an iterator of typed events: what `tracer record` does, for Rust programs.
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
//! Records wait in a ring of each CPU ([`RecordingBuilder::ring_bytes`]) until the program takes them. A hit that finds
//! its ring full is dropped and counted. Every hit is in exactly one count: `hits = filtered + recorded + dropped`.
//! Take them at least every six days, because a record holds only the low 50 bits of its time.

mod builder;
mod error;
mod event;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Child, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

pub use builder::RecordingBuilder;
pub use error::{RecordError, RecordErrorKind};
pub use event::Event;

use crate::{
    engine::{
        facts::Facts,
        record::{Count, Recorder},
    },
    sys::process::held::HeldCommand,
};

/// A recording that runs until it is stopped, finished or dropped.
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct Recording {
    recorder: Recorder,
    facts: Arc<Facts>,
    /// Records in order that were taken from the rings and not returned yet.
    pending: VecDeque<Event>,
    command: Option<TracedCommand>,
    status: Option<ExitStatus>,
    /// Readable after [`Stopper::stop`].
    stop: UnixStream,
    stopper: UnixStream,
    ended: bool,
}

/// The command of a recording.
#[derive(Debug)]
pub(crate) enum TracedCommand {
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

/// The counts of an event's hits.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Hits for which the kernel did not run the program, because it was already running on that CPU.
    pub missed: u64,
}

impl From<Count> for EventCounts {
    fn from(count: Count) -> Self {
        let counters = count.counters;
        Self {
            event: count.event,
            hits: counters.hits(),
            filtered: counters.filtered,
            recorded: counters.recorded,
            dropped: counters.dropped,
            missed: count.missed,
        }
    }
}

/// The result of a recording.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The counts of each event.
    pub counts: Vec<EventCounts>,
    /// Misses of programs that several events share. They belong to no single event.
    pub missed_together: u64,
    /// How the command ended; `None` without a command and while it runs.
    pub status: Option<ExitStatus>,
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

impl Recording {
    /// Begins to describe a recording.
    pub fn builder() -> RecordingBuilder {
        RecordingBuilder::default()
    }

    fn new(recorder: Recorder, facts: Arc<Facts>, command: Option<HeldCommand>) -> Result<Self, RecordError> {
        let (stop, stopper) = UnixStream::pair().map_err(RecordError::system)?;
        for stream in [&stop, &stopper] {
            stream.set_nonblocking(true).map_err(RecordError::system)?;
        }
        recorder.waiter().add(&stop).map_err(|errno| RecordError::system(errno.into()))?;
        let command = command.map(TracedCommand::Held);
        let pending = VecDeque::new();
        Ok(Self { recorder, facts, pending, command, status: None, stop, stopper, ended: false })
    }

    /// Starts what [`RecordingBuilder::attach`] prepared, and lets the command run.
    pub(crate) fn go(&mut self) -> std::io::Result<()> {
        self.recorder.go();
        self.release()
    }

    fn release(&mut self) -> std::io::Result<()> {
        match self.command.take() {
            Some(TracedCommand::Held(held)) => {
                self.command = Some(TracedCommand::Running(held.release()?));
            }
            other => self.command = other,
        }
        Ok(())
    }

    /// The engine's recording, for a sink that takes records without making [`Event`]s of them.
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    /// The engine's recording, for its end.
    pub(crate) fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// The events in order of time. The iterator blocks until the next event, and ends with the recording: after
    /// [`Stopper::stop`], [`Recording::stop`] or the end of the command.
    pub fn events(&mut self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(move || match self.receive(None) {
            Received::Event(event) => Some(event),
            Received::Timeout | Received::Ended => None,
        })
    }

    /// As [`Recording::events`], but ends when this time has passed. The recording continues.
    pub fn events_for(&mut self, time: Duration) -> impl Iterator<Item = Event> + '_ {
        let end = Instant::now().checked_add(time);
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
            if self.ended {
                return Received::Ended;
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let failed = self.recorder.wait(left).is_err();
            let Self { recorder, facts, pending, .. } = self;
            recorder.poll(|shown| pending.push_back(Event::new(shown, facts)));
            // epoll fails only if the process has closed a descriptor of this recording.
            if failed || self.command_ended() || matches!((&self.stop).read(&mut [0; 8]), Ok(1..)) {
                self.stop();
            }
            if self.pending.is_empty() && !self.ended && left.is_zero() {
                return Received::Timeout;
            }
        }
    }

    /// How the command ended, once it has.
    pub(crate) fn command_status(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if let (None, Some(TracedCommand::Running(child))) = (self.status, &mut self.command) {
            self.status = child.try_wait()?;
        }
        Ok(self.status)
    }

    fn command_ended(&mut self) -> bool {
        self.command_status().is_ok_and(|status| status.is_some())
    }

    /// Stops recording. Events up to now can still be read.
    pub fn stop(&mut self) {
        if !self.ended {
            let Self { recorder, facts, pending, .. } = self;
            recorder.finish(|shown| pending.push_back(Event::new(shown, facts)));
            self.ended = true;
        }
    }

    /// A handle that stops this recording from another thread, such as one that waits for a signal.
    ///
    /// # Errors
    /// When no descriptor is left ([`RecordErrorKind::System`]).
    pub fn stopper(&self) -> Result<Stopper, RecordError> {
        self.stopper.try_clone().map(Stopper).map_err(RecordError::system)
    }

    /// The counts of each event so far.
    pub fn counts(&self) -> Vec<EventCounts> {
        self.recorder.counts().into_iter().map(EventCounts::from).collect()
    }

    /// Stops recording, detaches from all events and returns the counts. Events that were not read are lost.
    pub fn finish(mut self) -> Summary {
        self.stop();
        let status = self.command_status().ok().flatten();
        let summary =
            Summary { counts: self.counts(), missed_together: self.recorder.missed_together(), status };
        drop(self.recorder.end());
        summary
    }
}
