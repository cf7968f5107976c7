//! Errors of a synthetic event's definition: errno, the entry in `error_log`, and the message of the command line.
//!
//! As with histograms, the kernel searches for the invalid text in the line and puts the caret at its first occurrence.

use std::fmt;

use memchr::memmem;
use rustix::io::Errno;

use super::super::error_kinds::error_kinds;
use super::super::{Span, caret};

// `SYNTH_ERR_*`, `kernel/trace/trace_events_synth.c`.
error_kinds! {
    BadName => "Illegal name",
    InvalidCommand => "Command must be of the form: <name> field[;field] ...",
    InvalidDynCommand => "Command must be of the form: s or -:[synthetic/]<name> field[;field] ...",
    EventExists => "Event already exists",
    TooManyFields => "Too many fields",
    IncompleteType => "Incomplete type",
    InvalidType => "Invalid type",
    InvalidField => "Invalid field",
    InvalidArraySpec => "Invalid array specification",
}

/// Why a line was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    errno: Errno,
    line: Vec<u8>,
    finding: Option<(ErrorKind, Span)>,
}

impl Refusal {
    pub(super) fn new(line: &[u8], kind: ErrorKind, span: Span) -> Self {
        let errno = if kind == ErrorKind::EventExists { Errno::EXIST } else { Errno::INVAL };
        Self { errno, line: line.to_vec(), finding: Some((kind, span)) }
    }

    /// An error of the whole line.
    pub(super) fn whole(line: &[u8], kind: ErrorKind) -> Self {
        Self::new(line, kind, Span::empty(0))
    }

    /// An error without an entry in the log.
    pub(super) fn unlogged(line: &[u8], errno: Errno) -> Self {
        Self { errno, line: line.to_vec(), finding: None }
    }

    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Kind of error; `None` if the kernel returns only an errno.
    #[cfg(any(test, feature = "internals"))]
    pub fn kind(&self) -> Option<ErrorKind> {
        self.finding.map(|(kind, _)| kind)
    }

    /// Place in the line without its leading white space.
    pub fn span(&self) -> Option<Span> {
        self.finding.map(|(_, span)| span)
    }

    /// The entry in `error_log` without its leading timestamp `[    1.234567] `, if there is an entry.
    pub fn log_entry(&self) -> Option<Vec<u8>> {
        let (kind, span) = self.finding?;
        let position = memmem::find(&self.line, span.of(&self.line)).unwrap_or(0);
        Some(caret::log_entry(b"synthetic_events", kind.text(), &self.line, position))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.finding {
            Some((kind, span)) => write!(f, "{}\n{}", kind.text(), caret::excerpt(&self.line, span)),
            None => match self.errno {
                Errno::NOENT => f.write_str("no such synthetic event"),
                Errno::BUSY => f.write_str("the synthetic event is in use"),
                errno => write!(f, "not a definition of a synthetic event ({errno})"),
            },
        }
    }
}

impl std::error::Error for Refusal {}
