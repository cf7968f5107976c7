//! Definitions of dynamic events: the lines of `dynamic_events`, `kprobe_events` and `uprobe_events`.
//!
//! One file a kind of probe: [`fprobe`] reads `f` and `t`, [`kprobe`] and [`uprobe`] `p` and `r`, [`eprobe`] `e`,
//! each in the order in which its kernel file (kernel/trace/trace_*probe.c) looks at things, because the first error
//! is the one that counts. Their arguments are [`super::fetch`]'s. What they make is a [`Probe`]; whether it may
//! join the events that are there is [`Set`]'s to say, which also deletes and lists. Synthetic events (`s`) and user
//! events (`u`) will be kinds like these: [`request`] already tells them apart.
//!
//! No hook is known here. `plan` starts from [`Probe::args`] (a program each), [`Probe::kept`] and
//! [`Probe::event`], whose `format()` is what the rest of the program knows events by.

mod arguments;
mod eprobe;
mod error;
mod expand;
mod fprobe;
mod kprobe;
mod name;
mod register;
mod set;
#[cfg(test)]
mod tests;
mod uprobe;
mod words;

use rustix::io::Errno;

pub use error::{Finding, Refusal};
pub use set::{Change, Defined, Named, Set, deletion};
pub use words::{LINE_MAX, Line, lines};

use self::error::Log;
use super::facts::{Facts, Feature, FileFact, FileRequest};
use super::fetch::{At, Checked, ErrorKind};
use crate::event::dynamic::Event;

/// A checked definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The event that it becomes.
    pub event: Event,
    /// Where it sits, as its arguments see it.
    pub at: At,
    /// Its arguments and how they are fetched; [`Event::args`] in the same order.
    pub args: Vec<Checked>,
    /// The function's arguments, counted from 0, that are kept at its entry for its return.
    pub kept: Vec<u32>,
    /// The function whose types the arguments have.
    pub function: Option<String>,
    /// The probed file.
    pub file: Option<FileFact>,
}

impl Probe {
    /// Device and inode of the probed file.
    fn file_identity(&self) -> Option<(u64, u64)> {
        self.file.as_ref().map(|file| file.identity)
    }
}

/// The files that lines written to a file of definitions name, to be looked at before they are taken.
pub fn files(file: File, written: &[u8]) -> Vec<FileRequest> {
    if file == File::Kprobe {
        return Vec::new();
    }
    let wanted = |text| {
        let line = Line::split(text);
        if request(&line, file) == Request::Probe { uprobe::names(&line) } else { None }
    };
    lines(written).map_while(Result::ok).filter_map(wanted).collect()
}

/// The file a line is written to, which decides which kinds it may define and delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `dynamic_events`
    Dynamic,
    /// `kprobe_events`
    Kprobe,
    /// `uprobe_events`
    Uprobe,
}

/// What a line asks for, by its first letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing: the line is empty.
    Nothing,
    /// Events are to go.
    Delete,
    /// A probe.
    Probe,
    /// A synthetic event, which is not this module's.
    Synthetic,
    /// A user event (`lang::user`).
    User,
    /// Nothing that is known.
    Unknown,
}

/// What a line asks for.
pub fn request(line: &Line<'_>, file: File) -> Request {
    let deletes = match file {
        File::Dynamic => matches!(line.text().first(), Some(b'-' | b'!')),
        File::Kprobe | File::Uprobe => line.text().first() == Some(&b'-'),
    };
    match line.word(0).first() {
        _ if deletes => Request::Delete,
        None => Request::Nothing,
        Some(b'p' | b'r') => Request::Probe,
        Some(b'f' | b't' | b'e') if file == File::Dynamic => Request::Probe,
        Some(b's') if file == File::Dynamic => Request::Synthetic,
        Some(b'u') if file == File::Dynamic && line.text().starts_with(b"u:") => Request::User,
        Some(_) => Request::Unknown,
    }
}

/// Why a kind of probe did not take a line.
enum Rejected {
    /// It is for another kind.
    NotMine,
    /// It is wrong.
    Refused(Refusal),
}

impl From<Refusal> for Rejected {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A probe that was read, with what its parser would write into the log from here on.
struct Read {
    probe: Probe,
    log: Log,
}

/// Checks a definition by itself, without looking at what is defined already and without registering it.
///
/// # Errors
/// When the kernel would refuse it.
pub fn define(line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Probe, Refusal> {
    read(line, file, facts).map(|read| read.probe)
}

fn read(line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Read, Refusal> {
    type Reader = fn(&Line<'_>, &dyn Facts) -> Result<Read, Rejected>;
    let readers: [(Feature, File, Reader); 4] = [
        (Feature::Eprobes, File::Dynamic, eprobe::read),
        (Feature::Kprobes, File::Kprobe, kprobe::read),
        (Feature::Fprobes, File::Dynamic, fprobe::read),
        (Feature::Uprobes, File::Uprobe, uprobe::read),
    ];
    for (feature, own, reader) in readers {
        if (file != File::Dynamic && file != own) || !facts.language().has(feature) {
            continue;
        }
        match reader(line, facts) {
            Ok(read) => return Ok(read),
            Err(Rejected::Refused(refusal)) => return Err(refusal),
            Err(Rejected::NotMine) => {}
        }
    }
    Err(Refusal::untold(Errno::INVAL, line, ErrorKind::NoCommand))
}
