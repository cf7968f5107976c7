//! What is recorded, and of which threads.

use std::{path::PathBuf, process::Command, sync::Arc};

use super::{RecordError, Recording};
use crate::{
    attach::{AttachError, ids::ThreadId},
    engine::{
        facts::Facts,
        probes, programs,
        recorder::{Options, Recorder},
        selection::{self, Selected},
    },
    sys::process::held::HeldCommand,
};

/// Describes a recording. Nothing is looked up or attached before [`RecordingBuilder::start`].
#[derive(Debug, Default)]
#[must_use = "a builder does nothing before `start`"]
pub struct RecordingBuilder {
    events: Vec<String>,
    probes: Vec<String>,
    /// Whether the last thing that was named is an event or a probe.
    last: Last,
    stray_filter: Option<String>,
    programs: Vec<PathBuf>,
    comm: Option<String>,
    processes: Vec<u32>,
    command: Option<Command>,
    whole_system: bool,
    tgid: bool,
    options: Options,
}

#[derive(Clone, Copy, Debug, Default)]
enum Last {
    #[default]
    Nothing,
    Event,
    Probe,
}

impl RecordingBuilder {
    /// Records an event of the kernel or of a [program](Self::program): `system:name`, or globs as in `sched:*`. A filter
    /// may follow, as in `sched:sched_switch if prev_pid == 0`. If an event is named again, the later filter counts.
    pub fn event(mut self, event: impl Into<String>) -> Self {
        self.events.push(event.into());
        self.last = Last::Event;
        self
    }

    /// Sets the filter of the event or probe that was named last, in the kernel's filter language.
    pub fn filter(mut self, filter: &str) -> Self {
        let text = match self.last {
            Last::Event => self.events.last_mut(),
            Last::Probe => self.probes.last_mut(),
            Last::Nothing => None,
        };
        match text {
            Some(text) => text.extend([" if ", filter]),
            None => self.stray_filter = Some(filter.to_owned()),
        }
        self
    }

    /// Defines an event in the language of `dynamic_events`, and records it: `f:reads vfs_read count`. The definition
    /// exists for this recording only.
    pub fn probe(mut self, definition: impl Into<String>) -> Self {
        self.probes.push(definition.into());
        self.last = Last::Probe;
        self
    }

    /// Lets [`event`](Self::event) name the events of a program or library that were made with the crate `tracer-events`.
    /// If no event is named at all, all events of the programs are recorded.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.programs.push(path.into());
        self
    }

    /// Records only hits of threads with this name. The kernel's names have at most 15 bytes.
    pub fn comm(mut self, name: impl Into<String>) -> Self {
        self.comm = Some(name.into());
        self
    }

    /// Records only this process: its threads, and the children that it starts from now on. Several may be named.
    pub fn process(mut self, pid: u32) -> Self {
        self.processes.push(pid);
        self
    }

    /// Starts a command when everything is attached. The recording ends when the command does. Unless a
    /// [process](Self::process) or the [whole system](Self::whole_system) is named, only the command and its children
    /// are recorded. If the recording ends first, the command continues.
    pub fn command(mut self, command: Command) -> Self {
        self.command = Some(command);
        self
    }

    /// With a [command](Self::command), records all threads of the system.
    pub fn whole_system(mut self, on: bool) -> Self {
        self.whole_system = on;
        self
    }

    /// Whether threads of this process are recorded too. The default is no, because reading the records would itself
    /// cause events.
    pub fn own(mut self, on: bool) -> Self {
        self.options.own = on;
        self
    }

    /// Bytes of each CPU's ring buffer, rounded up to a power of two. The default is 2 MiB.
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.options.ring_bytes = bytes;
        self
    }

    /// Attaches to perf tracepoints only, never to raw ones, which cost less.
    pub fn perf_tracepoints_only(mut self, on: bool) -> Self {
        self.options.tracepoints_only = on;
        self
    }

    /// Looks up the process of each thread, for [`Event::tgid`](super::Event::tgid).
    pub fn tgid(mut self, on: bool) -> Self {
        self.tgid = on;
        self
    }

    /// Attaches everything, and starts to record.
    ///
    /// # Errors
    /// The first thing that is wrong, in this order: names, filters and definitions, processes, the command, the
    /// kernel's refusals. Nothing stays attached.
    pub fn start(self) -> Result<Recording, RecordError> {
        let mut recording = self.attach(Arc::new(Facts::running()?))?;
        recording.go().map_err(RecordError::command)?;
        Ok(recording)
    }

    /// Resolves all names.
    ///
    /// # Errors
    /// The first that is wrong.
    pub(crate) fn select(&self, facts: &Facts) -> Result<Vec<Selected>, RecordError> {
        if let Some(filter) = &self.stray_filter {
            return Err(RecordError::stray_filter(filter));
        }
        if self.events.is_empty() && self.probes.is_empty() && self.programs.is_empty() {
            return Err(RecordError::nothing());
        }
        let mut all: Vec<Selected> = Vec::new();
        let probed = probes::select(&self.probes, facts)?;
        let mut texts = self.events.clone();
        if !self.programs.is_empty() {
            (all, texts) = programs::select(&self.programs, &texts, probed.len(), facts)?;
        }
        for text in &texts {
            for event in selection::select(text, &facts.tracefs, facts)? {
                // As a later write to the event's filter file would.
                match all.iter_mut().find(|other| other.format.id == event.format.id) {
                    Some(other) => *other = event,
                    None => all.push(event),
                }
            }
        }
        all.extend(probed);
        if let Some(comm) = &self.comm {
            for event in &mut all {
                event.filter = Some(selection::and_comm(event.filter.take(), comm));
            }
        }
        Ok(all)
    }

    /// Attaches everything; [`Recording::go`] starts to record.
    ///
    /// # Errors
    /// As [`RecordingBuilder::start`].
    pub(crate) fn attach(self, facts: Arc<Facts>) -> Result<Recording, RecordError> {
        let selected = self.select(&facts)?;
        self.attach_selected(selected, facts)
    }

    /// As [`RecordingBuilder::attach`], with the events that [`RecordingBuilder::select`] found.
    ///
    /// # Errors
    /// As [`RecordingBuilder::start`].
    pub(crate) fn attach_selected(
        self,
        selected: Vec<Selected>,
        facts: Arc<Facts>,
    ) -> Result<Recording, RecordError> {
        let Self { mut options, command, processes, whole_system, tgid, .. } = self;
        let held = command.map(held).transpose()?;
        for pid in &processes {
            options.pids.extend(threads_of(*pid)?);
        }
        if let Some(held) = held.as_ref().filter(|_| !whole_system && processes.is_empty()) {
            options.pids.push(held.thread());
        }
        options.only_pids = !options.pids.is_empty();
        let mut recorder = Recorder::new(selected, &options, &facts)?;
        if tgid {
            recorder.want_groups();
        }
        Recording::new(recorder, facts, held)
    }
}

/// Starts the process of a command, which waits for [`Recording::go`].
fn held(command: Command) -> Result<HeldCommand, RecordError> {
    let id = ThreadId::prepare().map_err(|cause| AttachError::new("own process id", cause))?;
    HeldCommand::start(command, move || Ok(id.get()?)).map_err(RecordError::command)
}

/// The threads of a process.
fn threads_of(pid: u32) -> Result<Vec<u32>, RecordError> {
    let failed = |error| RecordError::no_process(pid, error);
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        let name = task.map_err(failed)?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(threads)
}
