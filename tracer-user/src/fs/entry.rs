//! What a file of the tree is made of.

use rustix::io::Errno;

use crate::{
    engine::instance::{Instance, Mirror, mark::Mark},
    event::{EventId, InstanceId, SystemId},
    kernel::Error,
    lang::facts::{FileRequest, Files},
};

/// What a file is about, beside its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Nothing else.
    Instance,
    /// A system of events.
    System(SystemId),
    /// An event.
    Event(EventId),
    /// A CPU.
    Cpu(u32),
    /// An option.
    Option(u32),
}

/// What an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    /// The instance.
    pub(super) instance: InstanceId,
    /// What the file is about.
    pub(super) subject: Subject,
    /// The thread that reads or writes.
    pub(super) who: u32,
}

impl At {
    /// The state of the instance.
    ///
    /// # Errors
    /// `ENODEV` if the instance is gone.
    pub(super) fn state(self, mirror: &Mirror) -> Result<&Instance> {
        mirror.get(self.instance).ok_or(Errno::NODEV)
    }

    /// The event of a file of an event.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(super) fn event(self) -> Result<EventId> {
        match self.subject {
            Subject::Event(event) => Ok(event),
            _ => Err(Errno::NODEV),
        }
    }

    /// The system of a file of a system.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(super) fn system(self) -> Result<SystemId> {
        match self.subject {
            Subject::System(system) => Ok(system),
            _ => Err(Errno::NODEV),
        }
    }

    /// The option of a file of an option.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(super) fn option(self) -> Result<u32> {
        match self.subject {
            Subject::Option(option) => Ok(option),
            _ => Err(Errno::NODEV),
        }
    }

    /// The CPU, for the files below `per_cpu`.
    pub(super) fn cpu(self) -> Option<u32> {
        match self.subject {
            Subject::Cpu(cpu) => Some(cpu),
            _ => None,
        }
    }
}

/// A result of the tree: an error is what the system call fails with.
pub(super) type Result<T> = std::result::Result<T, Errno>;

/// Makes a file's text from the text of the kernel's file, or from the error of reading that file.
pub(super) type MakeOfText = fn(std::result::Result<Option<String>, Error>) -> Result<Vec<u8>>;
/// Makes a file's text.
pub(super) type Make = fn(&mut Mirror, At) -> Result<Vec<u8>>;
/// Makes the text of a file that is the top's alone.
pub(super) type Make1 = fn(&mut Mirror) -> Result<Vec<u8>>;
/// Makes the page that is mapped.
pub(super) type MakePage = fn(&Mirror) -> Vec<u8>;
/// Takes what is written, and says how much of it.
pub(super) type Take = fn(&mut Mirror, At, &[u8]) -> Result<usize>;

/// How a file is written whose lines name files of users: which, as a function of the text alone, and what becomes of the write once
/// they were looked at.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) wanted: fn(&[u8]) -> Vec<FileRequest>,
    pub(super) takes: fn(&mut Mirror, At, &[u8], &Files) -> Result<usize>,
}

/// How a file is read.
#[derive(Clone, Copy)]
pub(super) enum Shows {
    /// Not at all.
    Nothing,
    /// Text that is made anew for every read (`simple_read_from_buffer()`).
    Text(Make),
    /// Text that is made once and read piece by piece (seq_file).
    Seq(Make),
    /// The same, of the kernel's own file of this name.
    Kernel(MakeOfText),
    /// The same, of histograms: who polls waits for hits.
    Hist(Make),
    /// Text whose first read gives what it asks for and whose second gives nothing.
    Once(Make),
    /// Records, which stay.
    Trace,
    /// Records of the snapshot.
    Snapshot,
    /// Records, which go.
    Pipe,
    /// Pages of records, which go.
    RawPipe,
    /// Pages of the snapshot's.
    RawSnapshot,
    /// Text to who reads it, one page of bytes to who maps it.
    Page(Make1, MakePage),
    /// Not at all: programs register user events by it and write records.
    UserEvents,
}

/// A file of the tree.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// Name.
    pub(super) name: &'static str,
    /// Permissions.
    pub(super) mode: u16,
    /// Whether only the top instance has it.
    pub(super) top: bool,
    /// How it is read.
    pub(super) shows: Shows,
    /// What becomes of a write, and how much of it is taken.
    pub(super) takes: Option<Take>,
    /// The same for one whose lines name files of users.
    pub(super) names: Option<Names>,
    /// What opening it for writing with `O_TRUNC` does.
    pub(super) truncates: Option<fn(&mut Mirror, At) -> Result<()>>,
    /// What closing it does.
    pub(super) closes: Option<fn(&mut Mirror, At)>,
    /// What writes to it are, where they are marks.
    pub(super) marks: Option<Mark>,
}

impl Entry {
    /// A file that can be read (`TRACE_MODE_READ`).
    pub(super) const fn read(name: &'static str, shows: Shows) -> Self {
        let (takes, names, truncates, closes, marks) = (None, None, None, None, None);
        Self { name, mode: 0o440, top: false, shows, takes, names, truncates, closes, marks }
    }

    /// A file that can be written too (`TRACE_MODE_WRITE`).
    pub(super) const fn write(name: &'static str, shows: Shows, takes: Take) -> Self {
        Self { mode: 0o640, takes: Some(takes), ..Self::read(name, shows) }
    }

    /// A file that can be written too, with lines that name files of users.
    pub(super) const fn names(name: &'static str, shows: Shows, names: Names) -> Self {
        Self { mode: 0o640, names: Some(names), ..Self::read(name, shows) }
    }

    /// The same, at the top only.
    pub(super) const fn top(self) -> Self {
        Self { top: true, ..self }
    }

    /// The same with other permissions.
    pub(super) const fn mode(self, mode: u16) -> Self {
        Self { mode, ..self }
    }

    /// The same, with something to do when it is emptied.
    pub(super) const fn truncates(self, truncates: fn(&mut Mirror, At) -> Result<()>) -> Self {
        Self { truncates: Some(truncates), ..self }
    }

    /// The same, where writes are marks.
    pub(super) const fn marks(self, mark: Mark) -> Self {
        Self { marks: Some(mark), ..self }
    }

    /// The same, with something to do when it is closed.
    pub(super) const fn closes(self, closes: fn(&mut Mirror, At)) -> Self {
        Self { closes: Some(closes), ..self }
    }
}

/// A write that a command takes as a whole.
pub(super) fn all(data: &[u8], done: Result<()>) -> Result<usize> {
    done.map(|()| data.len())
}

/// A line for each.
pub(super) fn lines<T: std::fmt::Display>(all: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut text = Vec::new();
    for one in all {
        text.extend(format!("{one}\n").bytes());
    }
    text
}
