//! The type of the tables' entries: a file with its name, its permissions and the functions behind read(2) and
//! write(2).

use rustix::io::Errno;

use crate::{
    engine::{
        Client, Command, Engine, Reply, Request,
        facts::Facts,
        instances::{Instance, Status},
        records::Mark,
    },
    event::{EventId, InstanceId, SystemId},
    kernel::Error,
    lang::facts::{FileRequest, Files},
};

/// The object that a file belongs to, in addition to its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Only the instance.
    Instance,
    System(SystemId),
    Event(EventId),
    Cpu(u32),
    /// The number of the option.
    Option(u32),
}

/// The instance and the object of a file, and its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) instance: InstanceId,
    pub(crate) subject: Subject,
    /// The client that opened the file or that writes now.
    pub(crate) client: Client,
}

impl At {
    /// The state of the instance; `ENODEV` if it is gone.
    pub(crate) fn state(self, engine: &Engine) -> Result<&Instance> {
        engine.instances.get(self.instance).ok_or(Errno::NODEV)
    }

    /// The instance joined with its programs in the kernel.
    pub(crate) fn status(self, engine: &Engine) -> Result<Status<'_>> {
        engine.status(self.instance).ok_or(Errno::NODEV)
    }

    /// The event of a file of an event; `ENODEV` for another file.
    pub(crate) fn event(self) -> Result<EventId> {
        let Subject::Event(event) = self.subject else { return Err(Errno::NODEV) };
        Ok(event)
    }

    /// The system of a file of a system; `ENODEV` for another file.
    pub(crate) fn system(self) -> Result<SystemId> {
        let Subject::System(system) = self.subject else { return Err(Errno::NODEV) };
        Ok(system)
    }

    /// The option of a file of an option; `ENODEV` for another file.
    pub(crate) fn option(self) -> Result<u32> {
        let Subject::Option(option) = self.subject else { return Err(Errno::NODEV) };
        Ok(option)
    }

    /// The CPU, for the files below `per_cpu`.
    pub(crate) fn cpu(self) -> Option<u32> {
        let Subject::Cpu(cpu) = self.subject else { return None };
        Some(cpu)
    }
}

/// The engine as a file sees it that changes something: commands of the file's client change it.
pub(crate) struct ClientEngine<'a> {
    engine: &'a mut Engine,
    pub(crate) at: At,
}

impl<'a> ClientEngine<'a> {
    pub(crate) fn new(engine: &'a mut Engine, at: At) -> Self {
        Self { engine, at }
    }

    /// The engine, to be looked at.
    pub(crate) fn view(&self) -> &Engine {
        self.engine
    }

    /// Executes a command on the file's instance.
    pub(crate) fn execute<'c>(&mut self, command: impl Into<Command<'c>>) -> Result<Reply> {
        let At { instance, client, .. } = self.at;
        Ok(self.engine.execute(&Request { client, instance, command: command.into() })?)
    }

    /// Executes a command that takes all written bytes. Returns their number.
    pub(crate) fn take<'c>(&mut self, data: &[u8], command: impl Into<Command<'c>>) -> Result<usize> {
        self.execute(command).map(|_| data.len())
    }
}

/// The result of an operation on a file. The system call returns the error.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Makes a file's text from the text of the kernel's file of the same name, or from the error of reading it.
pub(crate) type MakeOfText = fn(std::result::Result<Option<String>, Error>) -> Result<Vec<u8>>;
/// Makes a file's text.
pub(crate) type Make = fn(&Engine, At) -> Result<Vec<u8>>;
/// Makes the text of histograms. Other requests are served meanwhile.
pub(crate) type MakeOfHists = fn(&mut Engine, At) -> Result<Vec<u8>>;
/// Makes the text of a file that only the top instance has.
pub(crate) type Make1 = fn(&Engine) -> Result<Vec<u8>>;
/// Makes the page that a mapping shows.
pub(crate) type MakePage = fn(&Engine) -> Vec<u8>;
/// Executes a write and returns how many bytes it took.
pub(crate) type WriteFn = fn(&mut ClientEngine<'_>, &[u8]) -> Result<usize>;
/// The command of an open for writing with `O_TRUNC`.
pub(crate) type TruncateFn = fn(At) -> Result<Command<'static>>;
pub(crate) type CloseFn = fn(&mut ClientEngine<'_>);

/// State outside the engine's settings that a text shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Update {
    /// The records of the instance.
    Records,
    /// The records of all instances.
    AllRecords,
    /// The lists of threads, which change by forks and exits.
    Pids,
}

/// The functions behind writes that name user files. `wanted` finds the names in the text alone; `write` executes the
/// write after the files were opened.
#[derive(Clone, Copy)]
pub(crate) struct FileNames {
    pub(crate) wanted: fn(&[u8]) -> Vec<FileRequest>,
    pub(crate) write: fn(&mut ClientEngine<'_>, &[u8], &Files) -> Result<usize>,
}

/// How a file is read.
#[derive(Clone, Copy)]
pub(crate) enum ReadKind {
    /// It cannot be read.
    Nothing,
    /// Text that each read makes again (`simple_read_from_buffer()`).
    Text(Make),
    /// Text that a read at offset 0 makes and later reads continue (seq_file).
    Seq(Make),
    /// As [`ReadKind::Seq`], from the text of the kernel's file of the same name and event.
    Kernel(MakeOfText),
    /// As [`ReadKind::Seq`], for histograms: poll(2) waits for hits.
    Hist(MakeOfHists),
    /// Text for a read at offset 0; a read at another offset returns nothing.
    Once(Make),
    /// Records, which a read does not consume.
    Trace,
    /// Records of the snapshot, which a read does not consume.
    Snapshot,
    /// Records, which a read consumes.
    Pipe,
    /// Pages of records, which a read consumes.
    RawPipe,
    /// Pages of records of the snapshot.
    RawSnapshot,
    /// Text for reads, a page of bytes for mappings.
    Page(Make1, MakePage),
    /// It cannot be read: programs register user events by ioctl(2) and write records.
    UserEvents,
}

/// A file of a table.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) mode: u16,
    /// Whether only the top instance has it.
    pub(crate) top: bool,
    /// Whether the running kernel has a file of this name; `None` for a file that the mirror always has.
    pub(crate) in_kernel: Option<fn(&Facts) -> bool>,
    pub(crate) read_kind: ReadKind,
    /// What is updated before its text is made.
    pub(crate) updates: Option<Update>,
    pub(crate) write: Option<WriteFn>,
    /// Executes a write, in a file whose writes name user files.
    pub(crate) names: Option<FileNames>,
    pub(crate) truncates: Option<TruncateFn>,
    pub(crate) closes: Option<CloseFn>,
    /// The kind of marks that writes make, if they make marks.
    pub(crate) marks: Option<Mark>,
}

impl Entry {
    /// A file that can only be read (`TRACE_MODE_READ`).
    pub(crate) const fn read(name: &'static str, read_kind: ReadKind) -> Self {
        let (updates, write, names, truncates, closes, marks) = (None, None, None, None, None, None);
        let (mode, top, in_kernel) = (0o440, false, None);
        Self { name, mode, top, in_kernel, read_kind, updates, write, names, truncates, closes, marks }
    }

    /// A file that can also be written (`TRACE_MODE_WRITE`).
    pub(crate) const fn write(name: &'static str, read_kind: ReadKind, write: WriteFn) -> Self {
        Self { mode: 0o640, write: Some(write), ..Self::read(name, read_kind) }
    }

    /// A file whose writes name user files.
    pub(crate) const fn names(name: &'static str, read_kind: ReadKind, names: FileNames) -> Self {
        Self { mode: 0o640, names: Some(names), ..Self::read(name, read_kind) }
    }

    /// Restricts the file to the top instance.
    pub(crate) const fn top(self) -> Self {
        Self { top: true, ..self }
    }

    /// Omits the file if the running kernel has none of this name.
    pub(crate) const fn in_kernel(self, has: fn(&Facts) -> bool) -> Self {
        Self { in_kernel: Some(has), ..self }
    }

    /// Whether an instance has the file.
    pub(crate) fn is_in(&self, instance: InstanceId, engine: &Engine) -> bool {
        (!self.top || instance == InstanceId::TOP) && self.in_kernel.is_none_or(|has| has(&engine.facts))
    }

    pub(crate) const fn mode(self, mode: u16) -> Self {
        Self { mode, ..self }
    }

    pub(crate) const fn updates(self, updates: Update) -> Self {
        Self { updates: Some(updates), ..self }
    }

    pub(crate) const fn truncates(self, truncates: TruncateFn) -> Self {
        Self { truncates: Some(truncates), ..self }
    }

    pub(crate) const fn marks(self, mark: Mark) -> Self {
        Self { marks: Some(mark), ..self }
    }

    pub(crate) const fn closes(self, closes: CloseFn) -> Self {
        Self { closes: Some(closes), ..self }
    }
}

/// Formats each value as a line.
pub(crate) fn lines<T: std::fmt::Display>(all: impl IntoIterator<Item = T>) -> Vec<u8> {
    all.into_iter().flat_map(|one| format!("{one}\n").into_bytes()).collect()
}
