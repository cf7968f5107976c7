//! A recording: a private engine, which is not mounted, passes the records of its top instance to a [`RecordSink`] in
//! order of time.
//!
//! [`Selection`] resolves names in the engine. [`Recorder`] attaches the events and passes the records on. The engine
//! attaches everything once and changes nothing until the end ([`RecordingOptions`]).

mod error;
mod select;

use std::{
    ops::ControlFlow,
    os::fd::OwnedFd,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use tracer_abi::Counters;

use crate::{
    attach::Opening,
    buffer::clock::monotonic,
    engine::{
        Engine,
        attachments::{
            AttachOptions, RecordingOptions,
            plan::ProbeState,
            reconcile::{Goal, Reconciler},
            session::{InstanceSession, table::ProgramRole},
            sessions::Attachments,
        },
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        instances::List,
        probes,
        records::{names::NameEvents, record_stream::RecordStream},
    },
    event::{EventId, InstanceId},
    render::{EventCounts, EventHook, RecordSink, RecordStart, RecordedEvent, Summary},
    ring::{Waiter, Woken},
};

pub use self::{
    error::{SelectError, StartError},
    select::{RecordRequest, SelectedEvent, Selection},
};

/// The options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of each CPU's ring.
    pub ring_bytes: u32,
    /// Ids of the threads to trace, in the initial pid namespace; their children are traced too. Empty for all
    /// threads.
    pub pids: Vec<u32>,
    /// Whether the tracer's own threads are traced.
    pub own: bool,
    /// Whether only perf tracepoints are used.
    pub tracepoints_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        // The kernel's default is 1,408 KiB per CPU. The size of a ring must be a power of two.
        Self { ring_bytes: 2 << 20, pids: Vec::new(), own: false, tracepoints_only: false }
    }
}

/// Maximum time that the reader sleeps while records may wait below the watermark.
const PERIOD: Duration = Duration::from_millis(20);
/// The first such limit, for clients that wait for the first records. It is slightly longer than records take to
/// settle ([`SETTLE`](crate::ring::SETTLE)).
const FIRST_PERIOD: Duration = Duration::from_millis(3);
/// Maximum time that the end of a recording waits for hits that are still being written.
const LAST_HITS: Duration = Duration::from_millis(200);
/// Number of programs that record changes of names.
const NAME_EVENTS: usize = 2;

/// A running recording.
#[derive(Debug)]
pub struct Recorder {
    engine: Engine,
    events: Vec<EventId>,
    stream: RecordStream,
    waiter: Waiter,
    /// Limit of the reader's next sleep.
    period: Duration,
    /// Whether the sink knows the events.
    begun: bool,
}

impl Recorder {
    /// Attaches everything. Nothing is recorded until [`Recorder::go`]. If the kernel refuses something, everything
    /// is detached.
    ///
    /// # Errors
    /// The first refusal.
    pub fn new(selection: Selection, options: &Options) -> Result<Self, StartError> {
        let Selection { mut engine, events } = selection;
        let probes = engine.registry.dynamic().probes().len();
        engine.attachments = Attachments::new(AttachOptions {
            perf_tracepoints_only: options.tracepoints_only,
            own: options.own,
            // The stream of records follows names.
            without_names: true,
            recording: Some(RecordingOptions {
                ring_bytes: options.ring_bytes,
                // Each event needs two more programs while its hook is tried.
                slots: (3 * events.len() + probes + NAME_EVENTS) as u32,
                listed_only: !options.pids.is_empty(),
            }),
        });
        // The perf events of trials are closed after all others are open.
        let _opening = Opening::begin_at_once();
        let (facts, task_pid) = (engine.facts.clone(), engine.facts.task_pid());
        let state = engine.instances.state(InstanceId::TOP)?;
        state.on = false;
        if !options.pids.is_empty() {
            state.threads.add(List::Traced, &options.pids, None)?;
            state.threads.follow_forks(true, task_pid, None)?;
        }
        engine.make_session(InstanceId::TOP)?;
        let gone = || CommandError::from(ErrorKind::Gone);
        let session = engine.attachments.session(InstanceId::TOP).ok_or_else(gone)?;
        let waiter = Waiter::new(session.queue.rings()).map_err(CommandError::from)?;
        let stream = RecordStream::new();
        let mut recorder = Self { engine, events, stream, waiter, period: FIRST_PERIOD, begun: false };
        let Self { engine, events, stream, .. } = &mut recorder;
        Reconciler::of(engine, InstanceId::TOP)
            .reconcile(events, Goal::On)
            .map_err(|error| refused(engine, events, error))?;
        if let Some(error) = without_module(engine, events) {
            return Err(error);
        }
        // Attached after the hooks were tried, because the trials are not recorded.
        let session = engine.attachments.session_mut(InstanceId::TOP).ok_or_else(gone)?;
        stream.follow(NameEvents::attach(session.kernel_mut(), &facts).map_err(CommandError::from)?);
        let catalogue = engine.registry.events();
        let printers = events.iter().filter_map(|event| catalogue.printer(*event, &facts));
        printers.for_each(|printer| stream.show(printer));
        Ok(recorder)
    }

    fn session(&self) -> Option<&InstanceSession> {
        self.engine.attachments.session(InstanceId::TOP)
    }

    /// The facts of the kernel.
    pub fn facts(&self) -> &Arc<Facts> {
        &self.engine.facts
    }

    /// The number of attached events.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// Starts recording.
    pub fn go(&self) {
        if let Some(session) = self.session() {
            session.kernel().switches().set_tracing(true);
        }
    }

    /// Also looks up the process of each thread, for `print-tgid`.
    pub fn want_groups(&mut self) {
        self.stream.want_groups();
    }

    /// The waiter, to which callers can add descriptors.
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Waits until there is something to do, at most for `limit`.
    ///
    /// # Errors
    /// The error of waiting for the descriptors.
    pub fn wait(&mut self, limit: Duration) -> Result<Woken, Errno> {
        let period = self.period;
        self.period = (2 * period).min(PERIOD);
        self.waiter.wait(limit.min(period))
    }

    /// Passes on the records that can be passed on in order of time by now. Returns `Break` once the sink wants no more
    /// records.
    pub fn poll(&mut self, sink: &mut dyn RecordSink) -> ControlFlow<()> {
        let now = monotonic();
        self.begin(sink);
        self.pass_on(Some(now), sink)
    }

    /// Stops recording, passes on the remaining records, and finishes the sink. `status` is that of the command.
    pub fn finish(&mut self, sink: &mut dyn RecordSink, status: Option<ExitStatus>) -> Summary {
        if let Some(session) = self.session() {
            session.kernel().switches().set_tracing(false);
        }
        self.begin(sink);
        let start = Instant::now();
        loop {
            let _ = self.pass_on(None, sink);
            if self.stream.taken() >= self.recorded() || start.elapsed() > LAST_HITS {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (counts, lost) = self.read_counts();
        for (cpu, hits) in (0..).zip(lost).filter(|(_, hits)| *hits > 0) {
            sink.lost(cpu, hits);
        }
        let missed_together = self.session().map_or(0, |session| session.kernel().missed());
        let summary = Summary { counts, missed_together, status };
        sink.finish(&summary);
        summary
    }

    /// Passes the events and their hooks to the sink, once.
    pub fn begin(&mut self, sink: &mut dyn RecordSink) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let Some(session) = self.session() else { return };
        let recorded = |event: &EventId| {
            let format = self.engine.registry.events().known_format(*event)?;
            let hooks = session.table.hooks(*event);
            let hooks = hooks.map(|(point, reason)| EventHook { point, reason }).collect();
            Some(RecordedEvent { format, hooks })
        };
        let events: Vec<RecordedEvent<'_>> = self.events.iter().filter_map(recorded).collect();
        let facts = &self.engine.facts;
        sink.begin(&RecordStart { events: &events, cpus: facts.cpus(), kernel: facts.version() });
    }

    /// The number of records that programs made.
    fn recorded(&self) -> u64 {
        let Some(session) = self.session() else { return 0 };
        let of_events = (0..session.queue.cpus()).map(|cpu| session.counts(cpu).recorded);
        let counters = session.kernel().counters();
        let of_names = self.stream.names().slots().map(|slot| counters.total(slot).recorded);
        of_events.chain(of_names).sum()
    }

    fn pass_on(&mut self, now: Option<u64>, sink: &mut dyn RecordSink) -> ControlFlow<()> {
        let Engine { attachments, tasks, facts, .. } = &mut self.engine;
        let Some(session) = attachments.session_mut(InstanceId::TOP) else {
            return ControlFlow::Continue(());
        };
        #[cfg(feature = "bpf-log")]
        session.kernel_mut().show_logs();
        self.stream.pass_on((&mut session.queue.drain, Arc::make_mut(tasks)), now, facts, sink)
    }

    /// The counts of each event's hits so far.
    pub fn counts(&self) -> Vec<EventCounts> {
        self.read_counts().0
    }

    /// The counts of each event, and the dropped hits of all events by CPU, from one reading of the counters.
    fn read_counts(&self) -> (Vec<EventCounts>, Vec<u64>) {
        let Some(session) = self.session() else { return (Vec::new(), Vec::new()) };
        let mut lost = vec![0; session.queue.cpus() as usize];
        let count = |event: &EventId| {
            let (mut counters, mut missed) = (Counters::default(), 0);
            for part in session.table.of_event(*event) {
                missed += part.attached.missed();
                let Some(slot) = part.attached.slot() else { continue };
                for (cpu, lost) in (0..).zip(&mut lost) {
                    let of_cpu = session.kernel().counters().of(slot, cpu);
                    counters = counters.plus(of_cpu);
                    *lost += of_cpu.dropped;
                }
            }
            EventCounts {
                event: self.engine.registry.events().full_name(*event),
                hits: counters.hits(),
                filtered: counters.filtered,
                recorded: counters.recorded,
                dropped: counters.dropped,
                missed,
            }
        };
        let counts = self.events.iter().map(count).collect();
        (counts, lost)
    }

    /// Detaches all events and returns their perf events. These have no effect any more, but the kernel takes tens of
    /// milliseconds to close one ([`crate::attach::detach_all`]).
    pub fn end(mut self) -> Vec<OwnedFd> {
        self.engine.end()
    }
}

/// The error of the first event that is not attached.
fn refused(engine: &Engine, events: &[EventId], error: CommandError) -> StartError {
    let state = engine.instances.get(InstanceId::TOP);
    let event = events.iter().find(|event| !state.is_some_and(|state| state.is_enabled(**event)));
    StartError { event: event.map(|event| engine.registry.events().full_name(*event)), error }
}

/// The error of the first event with a probe whose module is not loaded. The mirror waits for modules; a recording
/// does not.
fn without_module(engine: &Engine, events: &[EventId]) -> Option<StartError> {
    let session = engine.attachments.session(InstanceId::TOP)?;
    let waits = |event: EventId| {
        session
            .table
            .get(event, ProgramRole::Probe)
            .is_some_and(|probes| probes.states().any(|(_, state)| state == ProbeState::Waits))
    };
    let event = events.iter().copied().find(|event| waits(*event))?;
    let probes = engine.registry.dynamic().probes_of(event).unwrap_or_default();
    let waiting = probes.iter().find(|one| probes::waits(&one.probe, &engine.facts) == Some(true))?;
    let mut tried = probes::candidates(&waiting.probe, &engine.facts).lacking;
    tried.add("module", "it is not loaded");
    Some(StartError { event: Some(engine.registry.events().full_name(event)), error: tried.into() })
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.engine.end());
    }
}
