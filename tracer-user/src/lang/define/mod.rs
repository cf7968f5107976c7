//! Definitions of dynamic events: the lines of `dynamic_events`, `kprobe_events` and `uprobe_events`.
//!
//! Every probe kind has a parser: [`fprobe`] for `f` and `t`, [`kprobe`] and [`uprobe`] for `p` and `r`, [`eprobe`] for
//! `e`. Each follows the order of checks in its kernel file (`kernel/trace/trace_*probe.c`), because the kernel reports
//! the first error. [`super::fetch`] parses the arguments. The result is a [`Probe`].
//!
//! [`Set`] decides whether a probe can join the existing events, deletes probes and lists them. [`request`] also
//! recognizes synthetic events (`s`) and user events (`u`), which [`super::synth`] and [`super::user`] parse.
//!
//! This layer is independent of attach points. `plan` starts from [`Probe::args`] (one program each),
//! [`Probe::saved_args`] and [`Probe::event`], whose `format()` describes the event to the other layers.

mod arguments;
mod eprobe;
mod error;
mod expand;
mod fprobe;
mod kprobe;
mod name;
mod probe;
mod register;
mod set;
#[cfg(test)]
mod tests;
mod uprobe;
mod words;

use rustix::io::Errno;

pub use error::{Finding, Refusal};
pub use probe::Probe;
pub use set::{Change, Defined, Named, NotApplied, Planned, Set, deletion};
pub use words::{LINE_MAX, Line, lines};

use self::probe::Read;
use super::Span;
use super::facts::{Facts, Feature, FileRequest};
use super::fetch::{ErrorKind, Stop};

/// Returns the files named in a write to a definition file, so that they can be opened before the lines are parsed.
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

/// The file that receives a line. It decides which kinds of events the line can define and delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `dynamic_events`
    Dynamic,
    /// `kprobe_events`
    Kprobe,
    /// `uprobe_events`
    Uprobe,
}

/// The request of a line, by its first letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An empty line.
    Nothing,
    /// Deletes events.
    Delete,
    /// Defines a probe.
    Probe,
    /// Defines a synthetic event (`lang::synth`).
    Synthetic,
    /// Defines a user event (`lang::user`).
    User,
    /// An unknown request.
    Unknown,
}

/// Classifies a line.
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
        Some(b's') if file == File::Dynamic && line.text().starts_with(b"s:") => Request::Synthetic,
        Some(b'u') if file == File::Dynamic && line.text().starts_with(b"u:") => Request::User,
        Some(_) => Request::Unknown,
    }
}

/// Checks a definition by itself: it ignores the existing definitions and does not register the probe.
fn read(line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Read, Refusal> {
    /// Returns `None` for a line of another kind of probe.
    type Reader = fn(&Line<'_>, &dyn Facts) -> Result<Option<Read>, Refusal>;
    let readers: [(Feature, File, Reader); 4] = [
        (Feature::Eprobes, File::Dynamic, eprobe::read),
        (Feature::Kprobes, File::Kprobe, kprobe::read),
        (Feature::Fprobes, File::Dynamic, fprobe::read),
        (Feature::Uprobes, File::Uprobe, uprobe::read),
    ];
    for (feature, own, reader) in readers {
        if (file == File::Dynamic || file == own)
            && facts.language().has(feature)
            && let Some(read) = reader(line, facts)?
        {
            return Ok(read);
        }
    }
    Err(unknown(line, file, facts))
}

/// The error for a line that defines no kind of event.
fn unknown(line: &Line<'_>, file: File, facts: &dyn Facts) -> Refusal {
    if file != File::Dynamic || !facts.language().has(Feature::RegistrationErrors) {
        return Refusal::unlogged(Errno::INVAL, line, ErrorKind::NoCommand);
    }
    let log = error::Log { parser: "dynevent", words: vec![line.text().to_vec()] };
    Refusal::in_word(line, &log, 0, &Stop::at(Errno::INVAL, ErrorKind::NoEventType, Span::default()))
}
