//! Errors of a synthetic event's definition: errno, the entry in `error_log`, and the message of the command line.
//!
//! As with histograms, the kernel searches for the invalid text in the line and puts the caret at its first occurrence.

use std::fmt;

use rustix::io::Errno;

use super::super::{Span, caret};

/// Kinds of error: `SYNTH_ERR_*`, `kernel/trace/trace_events_synth.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the wording says what each of them is")]
pub enum ErrorKind {
    BadName,
    InvalidCommand,
    InvalidDynCommand,
    EventExists,
    TooManyFields,
    IncompleteType,
    InvalidType,
    InvalidField,
    InvalidArraySpec,
}

impl ErrorKind {
    /// The kernel's text.
    pub fn wording(self) -> &'static str {
        match self {
            Self::BadName => "Illegal name",
            Self::InvalidCommand => "Command must be of the form: <name> field[;field] ...",
            Self::InvalidDynCommand => {
                "Command must be of the form: s or -:[synthetic/]<name> field[;field] ..."
            }
            Self::EventExists => "Event already exists",
            Self::TooManyFields => "Too many fields",
            Self::IncompleteType => "Incomplete type",
            Self::InvalidType => "Invalid type",
            Self::InvalidField => "Invalid field",
            Self::InvalidArraySpec => "Invalid array specification",
        }
    }

    fn errno(self) -> Errno {
        if self == Self::EventExists { Errno::EXIST } else { Errno::INVAL }
    }
}

/// Why a line was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Box<Inside>);

/// Boxed, so that a `Result` with a refusal stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inside {
    errno: Errno,
    line: Vec<u8>,
    finding: Option<(ErrorKind, Span)>,
}

/// The line that is parsed.
pub(super) struct Reader<'a> {
    pub(super) line: &'a [u8],
}

impl Reader<'_> {
    /// An error of the whole line.
    pub(super) fn whole(&self, kind: ErrorKind) -> Refusal {
        self.at(kind, Span::empty(0))
    }

    pub(super) fn at(&self, kind: ErrorKind, span: Span) -> Refusal {
        let line = self.line.to_vec();
        Refusal(Box::new(Inside { errno: kind.errno(), line, finding: Some((kind, span)) }))
    }

    /// An error without an entry in the log.
    pub(super) fn unlogged(&self, errno: Errno) -> Refusal {
        Refusal(Box::new(Inside { errno, line: self.line.to_vec(), finding: None }))
    }
}

impl Refusal {
    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// Kind of error; `None` if the kernel returns only an errno.
    #[cfg(any(test, feature = "internals"))]
    pub fn kind(&self) -> Option<ErrorKind> {
        self.0.finding.map(|(kind, _)| kind)
    }

    /// Place in the line without its leading white space.
    pub fn span(&self) -> Option<Span> {
        self.0.finding.map(|(_, span)| span)
    }

    /// The entry in `error_log` without its leading timestamp `[    1.234567] `, if there is an entry.
    pub fn log_entry(&self) -> Option<Vec<u8>> {
        let (kind, span) = self.0.finding?;
        let line = &self.0.line;
        let needle = span.of(line);
        let found = line.windows(needle.len().max(1)).position(|window| window == needle).unwrap_or(0);
        let mark = caret::mark("  Command: ".len() + found);
        let head = format!("synthetic_events: error: {}\n  Command: ", kind.wording());
        Some([head.as_bytes(), line, format!("\n{mark}\n").as_bytes()].concat())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.finding {
            Some((kind, span)) => write!(f, "{}\n{}", kind.wording(), caret::excerpt(&self.0.line, span)),
            None => match self.0.errno {
                Errno::NOENT => f.write_str("no such synthetic event"),
                Errno::BUSY => f.write_str("the synthetic event is in use"),
                errno => write!(f, "not a definition of a synthetic event ({errno})"),
            },
        }
    }
}

impl std::error::Error for Refusal {}
