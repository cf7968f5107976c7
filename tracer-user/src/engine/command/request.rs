//! Requests: a client, an instance, and a command.

use crate::{
    buffer::PageSize,
    engine::{
        instances::{select::Selector, thread_lists::List},
        records::mark::Mark,
    },
    event::{EventId, InstanceId, SystemId, synthetic::Value},
    lang::{define::File, facts::Files},
};

/// The thread that requests something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its id in the daemon's pid namespace. Records from user space are its records.
    pub thread: u32,
    /// Its payer, whose quotas are charged.
    pub payer: u32,
}

impl Client {
    /// The process of the engine, whose definitions are charged to root.
    pub const OWN: Self = Self { thread: 0, payer: 0 };
}

/// A request for a change, or for a record from user space.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The client.
    pub client: Client,
    /// The instance of the command. Those on definitions and on instances themselves belong to none; their errors are
    /// in the top instance's `error_log`.
    pub instance: InstanceId,
    /// The command.
    pub command: Command<'a>,
}

impl<'a> Request<'a> {
    /// A request of the engine's own process.
    pub fn own(instance: InstanceId, command: impl Into<Command<'a>>) -> Self {
        Self { client: Client::OWN, instance, command: command.into() }
    }
}

/// A command of a request.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    /// Changes the instance.
    Instance(InstanceCommand<'a>),
    /// Makes a record.
    Record(RecordCommand<'a>),
    /// Takes or releases something for an open file.
    Hold(HoldCommand),
    /// Creates an instance.
    MakeInstance(&'a str),
    /// Removes an instance and everything that it has in the kernel.
    RemoveInstance(&'a str),
    /// Defines and deletes dynamic events, one per line.
    Define {
        /// The file that receives the write.
        file: File,
        /// The lines.
        text: &'a [u8],
        /// The opened files that the lines name ([`crate::lang::define::files`]).
        files: &'a Files,
    },
    /// Deletes all events of a file of dynamic events.
    Undefine(File),
    /// Defines and deletes synthetic events, one per line.
    DefineSynthetic(&'a [u8]),
    /// Deletes all synthetic events.
    UndefineSynthetic,
    /// Adds and removes the events of program files, one per line.
    DefinePrograms {
        /// The lines.
        text: &'a [u8],
        /// The opened files that the lines name ([`crate::engine::registry::program_files`]).
        files: &'a Files,
    },
    /// Removes the events of all program files.
    UndefinePrograms,
    /// Sets the maximum number of stored names of threads.
    SavedNames(usize),
}

/// A change of one instance.
#[derive(Clone, Debug)]
pub enum InstanceCommand<'a> {
    /// Enables or disables one event.
    Event {
        /// The event.
        event: EventId,
        /// Whether to enable it.
        on: bool,
    },
    /// Enables or disables all events that a selector selects.
    Events {
        /// The selector.
        which: Selector<'a>,
        /// Whether to enable them.
        on: bool,
    },
    /// Applies a write to an event's `filter` file.
    Filter {
        /// The event.
        event: EventId,
        /// The text.
        text: &'a [u8],
    },
    /// Applies a write to a system's `filter` file.
    SystemFilter {
        /// The system.
        system: SystemId,
        /// The text.
        text: &'a [u8],
    },
    /// Applies a write to an event's `trigger` file.
    Trigger {
        /// The event.
        event: EventId,
        /// The text.
        text: &'a [u8],
    },
    /// Applies a write to `set_event_pid` or `set_event_notrace_pid`.
    AddPids {
        /// The list.
        list: List,
        /// Numbers separated by blanks.
        text: &'a [u8],
    },
    /// Empties a list of threads, which is then no longer in force.
    ClearPids(List),
    /// Starts or stops recording.
    Tracing(bool),
    /// Empties the buffers of one CPU or of all.
    Clear(Option<u32>),
    /// Exchanges the buffers with those of the snapshot (1), frees these (0), or empties them (any other number).
    Snapshot {
        /// One CPU, or all.
        cpu: Option<u32>,
        /// The number written to `snapshot`.
        number: u64,
    },
    /// Changes the clock, and empties the buffers.
    Clock(&'a [u8]),
    /// Sets the size of one CPU's buffer, or of all.
    BufferSize {
        /// The CPU.
        cpu: Option<u32>,
        /// Size in bytes.
        bytes: usize,
    },
    /// Sets the size of a page of the buffers, and empties them.
    PageSize(PageSize),
    /// Sets an option by its number.
    Option {
        /// The option.
        option: u32,
        /// Its new value.
        on: bool,
    },
    /// Sets an option by a word such as `noraw`.
    OptionWord(&'a [u8]),
    /// Selects the tracer; `nop` is the only one.
    Tracer(&'a [u8]),
    /// Records only on these CPUs.
    Cpus(Vec<bool>),
    /// Clears `error_log`.
    ClearErrors,
    /// Grows the buffers from their initial size to their full size.
    Expand,
    /// Disables all events, and removes the words that wait for their module: `set_event` is emptied.
    DisableAll,
    /// Removes the histograms of an event: its `trigger` is emptied.
    ClearHistograms(EventId),
    /// Sets the percentage of a buffer that must be full before a reader of its pages is woken.
    WakePercent(u32),
    /// Sets the number of bytes of a system call's user memory that its record has at most.
    UserData(u32),
}

/// A record from user space. That of a user event can be made within the steps of a long change.
#[derive(Clone, Debug)]
pub enum RecordCommand<'a> {
    /// Applies a write to an event's `inject`.
    Inject {
        /// The event.
        event: EventId,
        /// The text.
        text: &'a [u8],
    },
    /// Emits a synthetic event.
    Emit {
        /// The event.
        event: EventId,
        /// The values of its fields.
        values: &'a [Value<'a>],
    },
    /// Records a write to `trace_marker` or `trace_marker_raw`.
    Mark {
        /// The kind of mark.
        mark: Mark,
        /// The written bytes.
        text: &'a [u8],
    },
    /// Records a write to an open `user_events_data`, in all instances that have the event enabled.
    UserEvent {
        /// The number of the file's table.
        file: u64,
        /// The written bytes: the index of an event in the table, and its record.
        record: &'a [u8],
    },
}

/// What an open file takes and releases. All can be taken, and instances and pipes released, within the steps of a long
/// change.
#[derive(Clone, Copy, Debug)]
pub enum HoldCommand {
    /// Takes a reference to the instance, which prevents its removal.
    Instance,
    /// Releases a reference to the instance.
    ReleaseInstance,
    /// Reserves the `trace_pipe` of one CPU, or of all, for one reader.
    Pipe(Option<u32>),
    /// Ends a reservation of a `trace_pipe`.
    ReleasePipe(Option<u32>),
    /// Stops recording for a reader (`pause-on-trace`), or resumes it.
    Pause(bool),
    /// Makes a table of user events, and charges the client for it.
    UserEvents,
    /// Removes a table of user events, and the events without another holder.
    ReleaseUserEvents(u64),
}

impl<'a> From<InstanceCommand<'a>> for Command<'a> {
    fn from(command: InstanceCommand<'a>) -> Self {
        Self::Instance(command)
    }
}

impl<'a> From<RecordCommand<'a>> for Command<'a> {
    fn from(command: RecordCommand<'a>) -> Self {
        Self::Record(command)
    }
}

impl From<HoldCommand> for Command<'_> {
    fn from(command: HoldCommand) -> Self {
        Self::Hold(command)
    }
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No result.
    Done,
    /// The created instance.
    Instance(InstanceId),
    /// The number of written bytes that were accepted.
    Written(usize),
    /// The number of a table of user events.
    UserEvents(u64),
}

impl Reply {
    /// The number of written bytes that were accepted; 0 for other results.
    pub fn written(self) -> usize {
        if let Self::Written(bytes) = self { bytes } else { 0 }
    }
}
