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
pub(in crate::fs) enum Subject {
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
pub(in crate::fs) struct At {
    /// The instance.
    pub(in crate::fs) instance: InstanceId,
    /// What the file is about.
    pub(in crate::fs) subject: Subject,
    /// The thread that reads or writes.
    pub(in crate::fs) who: u32,
}

impl At {
    /// The state of the instance.
    ///
    /// # Errors
    /// `ENODEV` if the instance is gone.
    pub(in crate::fs) fn state(self, mirror: &Mirror) -> Result<&Instance> {
        mirror.get(self.instance).ok_or(Errno::NODEV)
    }

    /// The event of a file of an event.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(in crate::fs) fn event(self) -> Result<EventId> {
        match self.subject {
            Subject::Event(event) => Ok(event),
            _ => Err(Errno::NODEV),
        }
    }

    /// The system of a file of a system.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(in crate::fs) fn system(self) -> Result<SystemId> {
        match self.subject {
            Subject::System(system) => Ok(system),
            _ => Err(Errno::NODEV),
        }
    }

    /// The option of a file of an option.
    ///
    /// # Errors
    /// `ENODEV` for another file.
    pub(in crate::fs) fn option(self) -> Result<u32> {
        match self.subject {
            Subject::Option(option) => Ok(option),
            _ => Err(Errno::NODEV),
        }
    }

    /// The CPU, for the files below `per_cpu`.
    pub(in crate::fs) fn cpu(self) -> Option<u32> {
        match self.subject {
            Subject::Cpu(cpu) => Some(cpu),
            _ => None,
        }
    }
}

/// A result of the tree: an error is what the system call fails with.
pub(in crate::fs) type Result<T> = std::result::Result<T, Errno>;

/// Makes a file's text from the text of the kernel's file, or from the error of reading that file.
pub(in crate::fs) type MakeOfText = fn(std::result::Result<Option<String>, Error>) -> Result<Vec<u8>>;
/// Makes a file's text.
pub(in crate::fs) type Make = fn(&mut Mirror, At) -> Result<Vec<u8>>;
/// Makes the text of a file that is the top's alone.
pub(in crate::fs) type Make1 = fn(&mut Mirror) -> Result<Vec<u8>>;
/// Makes the page that is mapped.
pub(in crate::fs) type MakePage = fn(&Mirror) -> Vec<u8>;
/// Takes what is written, and says how much of it.
pub(in crate::fs) type Take = fn(&mut Mirror, At, &[u8]) -> Result<usize>;

/// How a file is written whose lines name files of users: which, as a function of the text alone, and what becomes of the write once
/// they were looked at.
#[derive(Clone, Copy)]
pub(in crate::fs) struct Names {
    pub(in crate::fs) wanted: fn(&[u8]) -> Vec<FileRequest>,
    pub(in crate::fs) takes: fn(&mut Mirror, At, &[u8], &Files) -> Result<usize>,
}

/// How a file is read.
#[derive(Clone, Copy)]
pub(in crate::fs) enum Shows {
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
pub(in crate::fs) struct Entry {
    /// Name.
    pub(in crate::fs) name: &'static str,
    /// Permissions.
    pub(in crate::fs) mode: u16,
    /// Whether only the top instance has it.
    pub(in crate::fs) top: bool,
    /// How it is read.
    pub(in crate::fs) shows: Shows,
    /// What becomes of a write, and how much of it is taken.
    pub(in crate::fs) takes: Option<Take>,
    /// The same for one whose lines name files of users.
    pub(in crate::fs) names: Option<Names>,
    /// What opening it for writing with `O_TRUNC` does.
    pub(in crate::fs) truncates: Option<fn(&mut Mirror, At) -> Result<()>>,
    /// What closing it does.
    pub(in crate::fs) closes: Option<fn(&mut Mirror, At)>,
    /// What writes to it are, where they are marks.
    pub(in crate::fs) marks: Option<Mark>,
}

impl Entry {
    /// A file that can be read (`TRACE_MODE_READ`).
    pub(in crate::fs) const fn read(name: &'static str, shows: Shows) -> Self {
        let (takes, names, truncates, closes, marks) = (None, None, None, None, None);
        Self { name, mode: 0o440, top: false, shows, takes, names, truncates, closes, marks }
    }

    /// A file that can be written too (`TRACE_MODE_WRITE`).
    pub(in crate::fs) const fn write(name: &'static str, shows: Shows, takes: Take) -> Self {
        Self { mode: 0o640, takes: Some(takes), ..Self::read(name, shows) }
    }

    /// A file that can be written too, with lines that name files of users.
    pub(in crate::fs) const fn names(name: &'static str, shows: Shows, names: Names) -> Self {
        Self { mode: 0o640, names: Some(names), ..Self::read(name, shows) }
    }

    /// The same, at the top only.
    pub(in crate::fs) const fn top(self) -> Self {
        Self { top: true, ..self }
    }

    /// The same with other permissions.
    pub(in crate::fs) const fn mode(self, mode: u16) -> Self {
        Self { mode, ..self }
    }

    /// The same, with something to do when it is emptied.
    pub(in crate::fs) const fn truncates(self, truncates: fn(&mut Mirror, At) -> Result<()>) -> Self {
        Self { truncates: Some(truncates), ..self }
    }

    /// The same, where writes are marks.
    pub(in crate::fs) const fn marks(self, mark: Mark) -> Self {
        Self { marks: Some(mark), ..self }
    }

    /// The same, with something to do when it is closed.
    pub(in crate::fs) const fn closes(self, closes: fn(&mut Mirror, At)) -> Self {
        Self { closes: Some(closes), ..self }
    }
}

/// A write that a command takes as a whole.
pub(in crate::fs) fn all(data: &[u8], done: Result<()>) -> Result<usize> {
    done.map(|()| data.len())
}

/// A line for each.
pub(in crate::fs) fn lines<T: std::fmt::Display>(all: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut text = Vec::new();
    for one in all {
        text.extend(format!("{one}\n").bytes());
    }
    text
}
