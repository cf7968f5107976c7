//! Errors of a histogram command with the kernel's text, and its entries in `error_log`.
//!
//! The kernel does not track its position in the text. To log an error, it searches for the invalid text in the command
//! and puts the caret at the first occurrence, which can be the wrong one. [`Log::add`] does the same. It also stores
//! the actual place for our command line.

use std::fmt;

use memchr::memmem;
use rustix::io::Errno;

use super::super::error_kinds::error_kinds;
use super::super::filter::FilterError;
use super::super::{Span, caret};

// `HIST_ERR_*`, `kernel/trace/trace_events_hist.c`.
error_kinds! {
    DuplicateVar => "Variable already defined",
    VarNotUnique => "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable",
    TooManyVars => "Too many variables defined",
    MalformedAssignment => "Malformed assignment",
    NamedMismatch => "Named hist trigger doesn't match existing named trigger (includes variables)",
    TriggerExists => "Hist trigger already exists",
    NothingToClear => "Can't clear or continue a nonexistent hist trigger",
    SetClockFailed => "Couldn't set trace_clock",
    BadFieldModifier => "Invalid field modifier",
    TooManySubexpressions => "Too many subexpressions (3 max)",
    TimestampMismatch => "Timestamp units in expression don't match",
    TooManyFieldVars => "Too many field variables defined",
    EventFileNotFound => "Event file not found",
    HistNotFound => "Matching event histogram not found",
    HistCreateFailed => "Couldn't create histogram for field",
    SynthVarNotFound => "Couldn't find synthetic variable",
    SynthEventNotFound => "Couldn't find synthetic event",
    SynthTypeMismatch => "Param type doesn't match synthetic event field type",
    SynthCountMismatch => "Param count doesn't match synthetic event field count",
    FieldVarParseFailed => "Couldn't parse field variable",
    VarCreateFindFailed => "Couldn't create or find variable",
    OnxNotVar => "For onmax(x) or onchange(x), x must be a variable",
    OnxVarNotFound => "Couldn't find onmax or onchange variable",
    OnxVarCreateFailed => "Couldn't create onmax or onchange variable",
    FieldVarCreateFailed => "Couldn't create field variable",
    TooManyParams => "Too many action params",
    ParamNotFound => "Couldn't find param",
    InvalidParam => "Invalid action param",
    ActionNotFound => "No action found",
    NoSaveParams => "No params found for save()",
    TooManySaveActions => "Can't have more than one save() action per hist",
    ActionMismatch => "Handler doesn't support action",
    NoClosingParen => "No closing paren found",
    SubsystemNotFound => "Missing subsystem",
    InvalidSubsystemEvent => "Invalid subsystem or event name",
    InvalidRefKey => "Using variable references in keys not supported",
    VarNotFound => "Couldn't find variable",
    FieldNotFound => "Couldn't find field",
    EmptyAssignment => "Empty assignment",
    InvalidSortModifier => "Invalid sort modifier",
    EmptySortField => "Empty sort field",
    TooManySortFields => "Too many sort fields (Max = 2)",
    InvalidSortField => "Sort field must be a key or a val",
    InvalidStrOperand => "String type can not be an operand in expression",
    ExpectNumber => "Expecting numeric literal",
    UnaryMinusSubexpression => "Unary minus not supported in sub-expressions",
    DivisionByZero => "Division by zero",
    NeedValue => "Non-hitcount value is required for 'nohitcount'",
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
    pub(super) fn new(system: &str, event: &str, command: &[u8]) -> Self {
        use crate::event::dynamic::raw;
        Self {
            location: [PREFIX, &raw(system), b":", &raw(event)].concat(),
            command: [PREFIX, command].concat(),
            entries: Vec::new(),
        }
    }

    /// Logs an error about a text, for which the kernel searches in the command (`err_pos()`). Returns EINVAL, the
    /// errno of most errors.
    pub(super) fn add(&mut self, kind: ErrorKind, needle: &[u8], span: Option<Span>) -> Errno {
        // The kernel stores the position in 16 bits.
        let position = memmem::find(&self.command, needle).unwrap_or(0) & 0xffff;
        self.entries.push(Entry::Hist { kind, position, span });
        Errno::INVAL
    }

    /// Logs an error without a position. Returns EINVAL.
    pub(super) fn add_anywhere(&mut self, kind: ErrorKind) -> Errno {
        self.entries.push(Entry::Hist { kind, position: 0, span: None });
        Errno::INVAL
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
                caret::log_entry(&self.location, kind.text(), &self.command, *position)
            }
        };
        self.entries.iter().map(text).collect()
    }
}

/// A rejected command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    errno: Errno,
    /// Boxed, so that a `Result` with a refusal stays small.
    log: Box<Log>,
}

impl Refusal {
    pub(super) fn new(errno: Errno, log: Log) -> Self {
        Self { errno, log: Box::new(log) }
    }

    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The log, which is empty for many errors.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, log } = self;
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
                    write!(f, "{newline}{}\n{}", kind.text(), caret::excerpt(command, span))?;
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
