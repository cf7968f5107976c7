//! Selects the events and threads of a recording.

use std::{path::PathBuf, process::Command, sync::Arc};

use super::{RecordError, Recording, error::Cause};
use crate::{
    attach::{AttachError, ids::ThreadId},
    engine::{
        facts::Facts,
        record::{Options, RecordRequest, Recorder, Selection},
    },
    sys::process::held::HeldCommand,
};

/// Describes a recording. Nothing is looked up before [`RecordingBuilder::start`] or [`RecordingBuilder::select`].
#[derive(Debug, Default)]
#[must_use = "a builder does nothing before `start`"]
pub struct RecordingBuilder {
    request: RecordRequest,
    /// The item that [`RecordingBuilder::filter`] applies to.
    last: Last,
    stray_filter: Option<String>,
    processes: Vec<u32>,
    command: Option<Command>,
    whole_system: bool,
    tgid: bool,
    pub(super) options: Options,
}

#[derive(Clone, Copy, Debug, Default)]
enum Last {
    #[default]
    Nothing,
    Event,
    Probe,
}

impl RecordingBuilder {
    /// Records an event of the kernel or of a [program](Self::program): `system:name`, or globs as in `sched:*`. A
    /// filter may follow, as in `sched:sched_switch if prev_pid == 0`. If an event is named again, the later filter
    /// replaces the earlier one.
    pub fn event(mut self, event: impl Into<String>) -> Self {
        self.request.events.push(event.into());
        self.last = Last::Event;
        self
    }

    /// Sets the filter of the event or probe that was named last, in the kernel's filter language.
    pub fn filter(mut self, filter: &str) -> Self {
        let text = match self.last {
            Last::Event => self.request.events.last_mut(),
            Last::Probe => self.request.probes.last_mut(),
            Last::Nothing => None,
        };
        match text {
            Some(text) => text.extend([" if ", filter]),
            None => self.stray_filter = Some(filter.to_owned()),
        }
        self
    }

    /// Defines an event in the language of `dynamic_events`, and records it: `f:reads vfs_read count`. The definition
    /// exists for this recording only. Several definitions can make one event. It then has one filter, the last.
    pub fn probe(mut self, definition: impl Into<String>) -> Self {
        self.request.probes.push(definition.into());
        self.last = Last::Probe;
        self
    }

    /// Lets [`event`](Self::event) name the events of a program or library that were made with the crate
    /// `tracer-events`. If no event is named at all, all events of the programs are recorded.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.request.programs.push(path.into());
        self
    }

    /// Records only hits of threads with this name. The kernel's names have at most 15 bytes.
    pub fn comm(mut self, name: impl Into<String>) -> Self {
        self.request.comm = Some(name.into());
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

    /// Bytes of each CPU's ring, rounded up to a power of two. The default is 2 MiB.
    pub fn ring_bytes(mut self, bytes: u32) -> Self {
        self.options.ring_bytes = bytes;
        self
    }

    /// Attaches to perf tracepoints only. Raw tracepoints, which cost less, are not used.
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
    /// The first error, in this order: names, filters and definitions, processes, the command, the kernel's refusals.
    /// Nothing stays attached.
    pub fn start(self) -> Result<Recording, RecordError> {
        let mut recording = self.select()?.attach()?;
        recording.start()?;
        Ok(recording)
    }

    /// Resolves all names, filters and definitions, and attaches nothing.
    ///
    /// # Errors
    /// The first wrong name, filter or definition.
    pub fn select(self) -> Result<SelectedRecording, RecordError> {
        if let Some(filter) = &self.stray_filter {
            return Err(Cause::StrayFilter(filter.clone()).into());
        }
        let RecordRequest { events, probes, programs, .. } = &self.request;
        if events.is_empty() && probes.is_empty() && programs.is_empty() {
            return Err(Cause::Nothing.into());
        }
        let selection = Selection::new(&self.request, Arc::new(Facts::running()?))?;
        Ok(SelectedRecording { builder: self, selection })
    }
}

/// A recording whose events are known and not attached yet ([`RecordingBuilder::select`]).
#[derive(Debug)]
#[must_use = "a selection does nothing before `attach`"]
pub struct SelectedRecording {
    pub(super) builder: RecordingBuilder,
    pub(super) selection: Selection,
}

impl SelectedRecording {
    /// Attaches everything, and starts the process of the command, which waits. [`Recording::start`] starts to record.
    ///
    /// # Errors
    /// The first error, in this order: processes, the command, the kernel's refusals. Nothing stays attached.
    pub fn attach(self) -> Result<Recording, RecordError> {
        let Self { builder, selection } = self;
        let RecordingBuilder { mut options, command, processes, whole_system, tgid, .. } = builder;
        for pid in &processes {
            options.pids.extend(threads_of(*pid)?);
        }
        let held = command.map(held).transpose()?;
        if let Some(held) = held.as_ref().filter(|_| !whole_system && processes.is_empty()) {
            options.pids.push(held.thread());
        }
        let mut recorder = Recorder::new(selection, &options)?;
        if tgid {
            recorder.want_groups();
        }
        Recording::new(recorder, held)
    }
}

/// Starts the process of a command, which waits for [`Recording::start`].
fn held(command: Command) -> Result<HeldCommand, RecordError> {
    let id = ThreadId::prepare().map_err(|cause| AttachError::new("own process id", cause))?;
    Ok(HeldCommand::start(command, move || Ok(id.get()?)).map_err(Cause::Command)?)
}

fn threads_of(pid: u32) -> Result<Vec<u32>, RecordError> {
    let failed = |error| Cause::NoProcess(pid, error);
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        let name = task.map_err(failed)?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(threads)
}
