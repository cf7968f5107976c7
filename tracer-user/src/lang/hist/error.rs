//! Errors of a histogram command with the kernel's text, and its entries in `error_log`.
//!
//! The kernel does not track its position in the text. To log an error, it searches for the invalid text in the command
//! and puts the caret at the first occurrence, which can be the wrong one. [`Log::add`] does the same. It also stores
//! the actual place for our command line.

use std::fmt;

use rustix::io::Errno;

use super::super::filter::FilterError;
use super::super::{Span, caret};

/// Kinds of error: `HIST_ERR_*`, `kernel/trace/trace_events_hist.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the wording says what each of them is")]
pub enum ErrorKind {
    DuplicateVar,
    VarNotUnique,
    TooManyVars,
    MalformedAssignment,
    NamedMismatch,
    TriggerExists,
    NothingToClear,
    SetClockFailed,
    BadFieldModifier,
    TooManySubexpressions,
    TimestampMismatch,
    TooManyFieldVars,
    EventFileNotFound,
    HistNotFound,
    HistCreateFailed,
    SynthVarNotFound,
    SynthEventNotFound,
    SynthTypeMismatch,
    SynthCountMismatch,
    FieldVarParseFailed,
    VarCreateFindFailed,
    OnxNotVar,
    OnxVarNotFound,
    OnxVarCreateFailed,
    FieldVarCreateFailed,
    TooManyParams,
    ParamNotFound,
    InvalidParam,
    ActionNotFound,
    NoSaveParams,
    TooManySaveActions,
    ActionMismatch,
    NoClosingParen,
    SubsystemNotFound,
    InvalidSubsystemEvent,
    InvalidRefKey,
    VarNotFound,
    FieldNotFound,
    EmptyAssignment,
    InvalidSortModifier,
    EmptySortField,
    TooManySortFields,
    InvalidSortField,
    InvalidStrOperand,
    ExpectNumber,
    UnaryMinusSubexpression,
    DivisionByZero,
    NeedValue,
}

impl ErrorKind {
    /// The kernel's text.
    pub fn wording(self) -> &'static str {
        match self {
            Self::DuplicateVar => "Variable already defined",
            Self::VarNotUnique => {
                "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable"
            }
            Self::TooManyVars => "Too many variables defined",
            Self::MalformedAssignment => "Malformed assignment",
            Self::NamedMismatch => {
                "Named hist trigger doesn't match existing named trigger (includes variables)"
            }
            Self::TriggerExists => "Hist trigger already exists",
            Self::NothingToClear => "Can't clear or continue a nonexistent hist trigger",
            Self::SetClockFailed => "Couldn't set trace_clock",
            Self::BadFieldModifier => "Invalid field modifier",
            Self::TooManySubexpressions => "Too many subexpressions (3 max)",
            Self::TimestampMismatch => "Timestamp units in expression don't match",
            Self::TooManyFieldVars => "Too many field variables defined",
            Self::EventFileNotFound => "Event file not found",
            Self::HistNotFound => "Matching event histogram not found",
            Self::HistCreateFailed => "Couldn't create histogram for field",
            Self::SynthVarNotFound => "Couldn't find synthetic variable",
            Self::SynthEventNotFound => "Couldn't find synthetic event",
            Self::SynthTypeMismatch => "Param type doesn't match synthetic event field type",
            Self::SynthCountMismatch => "Param count doesn't match synthetic event field count",
            Self::FieldVarParseFailed => "Couldn't parse field variable",
            Self::VarCreateFindFailed => "Couldn't create or find variable",
            Self::OnxNotVar => "For onmax(x) or onchange(x), x must be a variable",
            Self::OnxVarNotFound => "Couldn't find onmax or onchange variable",
            Self::OnxVarCreateFailed => "Couldn't create onmax or onchange variable",
            Self::FieldVarCreateFailed => "Couldn't create field variable",
            Self::TooManyParams => "Too many action params",
            Self::ParamNotFound => "Couldn't find param",
            Self::InvalidParam => "Invalid action param",
            Self::ActionNotFound => "No action found",
            Self::NoSaveParams => "No params found for save()",
            Self::TooManySaveActions => "Can't have more than one save() action per hist",
            Self::ActionMismatch => "Handler doesn't support action",
            Self::NoClosingParen => "No closing paren found",
            Self::SubsystemNotFound => "Missing subsystem",
            Self::InvalidSubsystemEvent => "Invalid subsystem or event name",
            Self::InvalidRefKey => "Using variable references in keys not supported",
            Self::VarNotFound => "Couldn't find variable",
            Self::FieldNotFound => "Couldn't find field",
            Self::EmptyAssignment => "Empty assignment",
            Self::InvalidSortModifier => "Invalid sort modifier",
            Self::EmptySortField => "Empty sort field",
            Self::TooManySortFields => "Too many sort fields (Max = 2)",
            Self::InvalidSortField => "Sort field must be a key or a val",
            Self::InvalidStrOperand => "String type can not be an operand in expression",
            Self::ExpectNumber => "Expecting numeric literal",
            Self::UnaryMinusSubexpression => "Unary minus not supported in sub-expressions",
            Self::DivisionByZero => "Division by zero",
            Self::NeedValue => "Non-hitcount value is required for 'nohitcount'",
        }
    }
}

/// Prefix of the command in the kernel's log.
pub(super) const PREFIX: &[u8] = b"hist:";

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An error of the histogram.
    Hist {
        /// Kind of error.
        kind: ErrorKind,
        /// The kernel's position in the logged command.
        position: usize,
        /// Place of the invalid text in the original command, if it is part of the command.
        span: Option<Span>,
    },
    /// An error of the filter.
    Filter(FilterError),
}

/// The log of a command, with the data to print it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// `hist:SYSTEM:EVENT`; empty without a command.
    location: Vec<u8>,
    /// `hist:` and the original command.
    command: Vec<u8>,
    entries: Vec<Entry>,
}

impl Log {
    /// Creates the log of a command at an event.
    pub(super) fn new(system: &str, event: &str, command: &[u8]) -> Self {
        use crate::event::dynamic::raw;
        Self {
            location: [PREFIX, &raw(system), b":", &raw(event)].concat(),
            command: [PREFIX, command].concat(),
            entries: Vec::new(),
        }
    }

    /// Logs an error about a text, for which the kernel searches in the command.
    pub(super) fn add(&mut self, kind: ErrorKind, needle: &[u8], span: Option<Span>) {
        // The kernel stores the position in 16 bits.
        let position = find(&self.command, needle) & 0xffff;
        self.entries.push(Entry::Hist { kind, position, span });
    }

    /// Logs an error without a position.
    pub(super) fn add_anywhere(&mut self, kind: ErrorKind) {
        self.entries.push(Entry::Hist { kind, position: 0, span: None });
    }

    pub(super) fn add_filter(&mut self, error: FilterError) {
        self.entries.push(Entry::Filter(error));
    }

    /// The entries, in the order in which they were logged.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Kind of the first error of the histogram.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Hist { kind, .. } => Some(*kind),
            Entry::Filter(_) => None,
        })
    }

    /// The entries as in `error_log`, each without its leading timestamp `[    1.234567] `.
    pub fn texts(&self) -> Vec<Vec<u8>> {
        let text = |entry: &Entry| match entry {
            Entry::Filter(error) => error.log_entry(),
            Entry::Hist { kind, position, .. } => {
                let mark = caret::mark("  Command: ".len() + position);
                let wording = kind.wording().as_bytes();
                let tail = format!("\n{mark}\n");
                [&self.location[..], b": error: ", wording, b"\n  Command: ", &self.command, tail.as_bytes()]
                    .concat()
            }
        };
        self.entries.iter().map(text).collect()
    }
}

/// Offset of the first `needle` in `text`; 0 if it does not occur (`err_pos()`).
fn find(text: &[u8], needle: &[u8]) -> usize {
    if needle.is_empty() {
        return 0;
    }
    text.windows(needle.len()).position(|window| window == needle).unwrap_or(0)
}

/// A rejected command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Box<Inside>);

/// Boxed, so that a `Result` with a refusal stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inside {
    errno: Errno,
    log: Log,
}

impl Refusal {
    pub(super) fn new(errno: Errno, log: Log) -> Self {
        Self(Box::new(Inside { errno, log }))
    }

    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The log, which is empty for many errors.
    pub fn log(&self) -> &Log {
        &self.0.log
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inside { errno, log } = &*self.0;
        if log.entries.is_empty() {
            return write!(f, "not a histogram command ({errno})");
        }
        for (at, entry) in log.entries.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            match entry {
                Entry::Filter(error) => write!(f, "{newline}{error}")?,
                Entry::Hist { kind, position, span } => {
                    let own = PREFIX.len();
                    let span = span.unwrap_or(Span::empty(position.saturating_sub(own)));
                    let command = log.command.get(own..).unwrap_or_default();
                    write!(f, "{newline}{}\n{}", kind.wording(), caret::excerpt(command, span))?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_occurrence_gets_the_caret() {
        let mut log = Log::new("sched", "sched_switch", b"keys=a:vals=a");
        log.add(ErrorKind::FieldNotFound, b"a", Some(Span::new(12, 13)));
        log.add(ErrorKind::FieldNotFound, b"not there", None);
        let text = String::from_utf8(log.texts().concat()).unwrap();
        assert_eq!(
            text,
            "hist:sched:sched_switch: error: Couldn't find field\n  Command: hist:keys=a:vals=a\n                     \
             ^\nhist:sched:sched_switch: error: Couldn't find field\n  Command: hist:keys=a:vals=a\n           ^\n"
        );
        let refusal = Refusal::new(Errno::INVAL, log);
        assert!(refusal.to_string().starts_with("Couldn't find field\n  keys=a:vals=a\n              ^\n"));
    }
}
