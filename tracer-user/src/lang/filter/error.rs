//! What can be wrong with a filter, in the kernel's words, with the kernel's errno and caret.
//!
//! A [`Fault`] is the finding; a [`FilterError`] is a fault with the text it was found in, and renders itself in
//! three forms: what the event's `filter` file shows after the failed write, the entry in `error_log`, and our
//! own command line's, which may say more (a whole span, the nearest field name).
//!
//! The kernel's position is not always the culprit's: within a term it counts one byte too far, and names the
//! end of some culprits. [`Fault::position`] is the kernel's number, [`Fault::span`] the culprit.

use std::fmt;

use rustix::io::Errno;

use super::super::{Span, caret};
use super::dialect::Dialect;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No operator behind the field, or one that `.function` does not take.
    InvalidOp,
    /// A parenthesis is not closed.
    TooManyOpen,
    /// A parenthesis was not opened.
    TooManyClose,
    /// A quote is not closed.
    MissingQuote,
    /// `CPUS` without `{`.
    MissingBraceOpen,
    /// `CPUS{` without `}`.
    MissingBraceClose,
    /// A number of 24 bytes or a text of 256 or more.
    OperandTooLong,
    /// A number for a field that is text (the kernel's wording says it the other way round).
    ExpectString,
    /// Text for a field that is none (likewise).
    ExpectDigit,
    /// An operator that the field or the value does not take.
    IllegalFieldOp,
    /// The event has no such field.
    FieldNotFound,
    /// A number that is none, has the wrong sign, or is too big.
    IllegalNumber,
    /// None of a subsystem's events took the filter.
    BadSubsystem,
    /// Something other than `&&`, `||` or the end behind a predicate.
    TooManyTerms,
    /// More terms than were counted.
    Miscounted,
    /// `&&` or `||` with nothing behind.
    InvalidFilter,
    /// `CPUS{...}` holds no list, or CPUs that the machine cannot have.
    InvalidCpulist,
    /// A field other than `ip` with the event ftrace:function.
    IpFieldOnly,
    /// The value is no number, text, or set of CPUs.
    InvalidValue,
    /// No such function.
    NoFunction,
    /// Nothing but `!`.
    NoFilter,
    /// No term at all. The kernel has no word for it.
    Empty,
    /// A term that does not start with a field's name. The kernel has no word for it.
    NoField,
    /// More parentheses than were counted. The kernel has no word for it.
    TooDeep,
    /// `||` and then `&&` with nothing behind, where a kernel lets a loose end pass as such: its program then
    /// has a branch to nowhere, which it notices. The kernel has no word for it.
    LooseBranch,
}

impl ErrorKind {
    /// The kernel's wording, behind `parse_error: `; None where it has none and says `Error: (0)`.
    pub fn wording(self) -> Option<&'static str> {
        Some(match self {
            Self::InvalidOp => "Invalid operator",
            Self::TooManyOpen => "Too many '('",
            Self::TooManyClose => "Too few '('",
            Self::MissingQuote => "Missing matching quote",
            Self::MissingBraceOpen => "Missing '{'",
            Self::MissingBraceClose => "Missing '}'",
            Self::OperandTooLong => "Operand too long",
            Self::ExpectString => "Expecting string field",
            Self::ExpectDigit => "Expecting numeric field",
            Self::IllegalFieldOp => "Illegal operation for field type",
            Self::FieldNotFound => "Field not found",
            Self::IllegalNumber => "Illegal integer value",
            Self::BadSubsystem => "Couldn't find or set field in one of a subsystem's events",
            Self::TooManyTerms | Self::Miscounted => "Too many terms in predicate expression",
            Self::InvalidFilter => "Meaningless filter expression",
            Self::InvalidCpulist => "Invalid cpulist",
            Self::IpFieldOnly => "Only 'ip' field is supported for function trace",
            Self::InvalidValue => "Invalid value (did you forget quotes)?",
            Self::NoFunction => "Function not found",
            Self::NoFilter => "No filter found",
            Self::Empty | Self::NoField | Self::TooDeep | Self::LooseBranch => return None,
        })
    }

    /// What our command line adds where the kernel's wording leaves the reader guessing.
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::InvalidOp => {
                Some("operators are == != < <= > >= & ~; .function fields take == and != only")
            }
            Self::ExpectString => Some("the field is text: put the value in quotes"),
            Self::ExpectDigit => Some("the field is no text: write a number without quotes"),
            Self::IllegalFieldOp => Some("text takes == != ~, numbers all but ~, CPUS{} takes == != &"),
            Self::TooManyTerms => Some("expected &&, || or the end here"),
            Self::InvalidFilter | Self::LooseBranch => Some("a term is missing behind the last && or ||"),
            Self::Empty => Some("the expression has no term"),
            Self::NoField => Some("expected a field's name here"),
            Self::TooDeep | Self::Miscounted => Some("a quote inside CPUS{} hides parts of the filter"),
            _ => None,
        }
    }
}

/// A finding: kind, errno and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: ErrorKind,
    /// What the write to the filter file fails with.
    pub errno: Errno,
    /// The kernel's position (`lasterr_pos`), which its carets are drawn from.
    pub position: usize,
    /// The culprit.
    pub span: Span,
}

impl Fault {
    /// What the whole text is told where it makes no tree.
    pub(crate) fn meaningless(text: &[u8]) -> Self {
        Self {
            kind: ErrorKind::InvalidFilter,
            errno: Errno::INVAL,
            position: 0,
            span: Span::new(0, text.len()),
        }
    }

    /// A fault within a term, EINVAL: `at` is the byte that the kernel's reader stood on, which it reports one
    /// too high.
    pub(crate) fn at(kind: ErrorKind, at: usize, span: Span) -> Self {
        Self { kind, errno: Errno::INVAL, position: at + 1, span }
    }
}

/// A filter that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    fault: Fault,
    text: Vec<u8>,
    suggestion: Option<String>,
    message_room: usize,
}

impl FilterError {
    /// The fault as found in `text`.
    pub fn new(fault: Fault, text: &[u8], dialect: &Dialect) -> Self {
        Self { fault, text: text.to_vec(), suggestion: None, message_room: dialect.message_room() }
    }

    /// Adds the name that was perhaps meant; only [`fmt::Display`] shows it.
    #[must_use]
    pub fn suggest(mut self, name: Option<String>) -> Self {
        self.suggestion = name;
        self
    }

    /// The error that each event of a subsystem keeps whose fields a filter written to the subsystem's `filter`
    /// file does not fit, whatever the reason was.
    #[must_use]
    pub fn for_subsystem(mut self) -> Self {
        self.fault.kind = ErrorKind::BadSubsystem;
        self.fault.position = 0;
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> ErrorKind {
        self.fault.kind
    }

    /// The whole finding.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// What the write fails with.
    pub fn errno(&self) -> Errno {
        self.fault.errno
    }

    /// The culprit in [`Self::text`].
    pub fn span(&self) -> Span {
        self.fault.span
    }

    /// The filter.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The name that was perhaps meant.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }

    /// What the event's `filter` file reads after the failed write: the filter, a caret, the error. Lines that
    /// do not fit the kernel's message buffer are left out as `append_filter_err()` leaves them out.
    pub fn filter_file(&self) -> Vec<u8> {
        let mut message = Message::new(self.message_room);
        message.whole(&self.text);
        if let Some(wording) = self.fault.kind.wording() {
            let position = self.fault.position.min(self.text.len());
            message.formatted(format!("\n{}", caret::mark(position)).as_bytes());
            message.formatted(format!("\nparse_error: {wording}\n").as_bytes());
        } else {
            message.formatted(b"\nError: (0)\n");
        }
        let mut shown = Message::new(self.message_room);
        shown.formatted(&[&message.bytes[..], b"\n"].concat());
        shown.bytes
    }

    /// The entry in `error_log` behind its timestamp `[    1.234567] `.
    pub fn log_entry(&self) -> Vec<u8> {
        let (wording, position) = match self.fault.kind.wording() {
            Some(wording) => (wording, self.fault.position),
            None => ("Error", 0),
        };
        let mark = caret::mark("  Command: ".len() + position);
        let head = format!("event filter parse error: error: {wording}\n  Command: ");
        [head.as_bytes(), &self.text, format!("\n{mark}\n").as_bytes()].concat()
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.fault.kind;
        let wording = kind.wording().unwrap_or("Not a filter");
        write!(f, "{wording}\n{}", caret::excerpt(&self.text, self.fault.span))?;
        if let Some(name) = &self.suggestion {
            write!(f, "\n  did you mean `{name}`?")?;
        } else if let Some(hint) = kind.hint() {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FilterError {}

/// What an event's `filter` file reads while this filter is set: the filter and a newline, or nothing at all where
/// the two do not fit the kernel's message buffer (`print_event_filter()`).
pub fn shown(text: &[u8], dialect: &Dialect) -> Vec<u8> {
    let mut message = Message::new(dialect.message_room());
    message.formatted(&[text, b"\n"].concat());
    message.bytes
}

/// `struct trace_seq`: takes pieces whole or not at all, and nothing once a piece did not fit.
struct Message {
    bytes: Vec<u8>,
    room: usize,
    full: bool,
}

impl Message {
    fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room, full: false }
    }

    /// `trace_seq_puts()`
    fn whole(&mut self, piece: &[u8]) {
        self.add(piece, self.room);
    }

    /// `trace_seq_printf()`, which wants room for a NUL as well.
    fn formatted(&mut self, piece: &[u8]) {
        self.add(piece, self.room.saturating_sub(1));
    }

    fn add(&mut self, piece: &[u8], room: usize) {
        self.full |= self.bytes.len() + piece.len() > room;
        if !self.full {
            self.bytes.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind, position: usize, text: &str) -> FilterError {
        let fault = Fault { kind, errno: Errno::INVAL, position, span: Span::new(0, 3) };
        FilterError::new(fault, text.as_bytes(), &Dialect::newest())
    }

    #[test]
    fn the_three_forms() {
        let error = error(ErrorKind::FieldNotFound, 4, "foo == 1").suggest(Some("fooo".to_owned()));
        assert_eq!(
            String::from_utf8(error.filter_file()).unwrap(),
            "foo == 1\n    ^\nparse_error: Field not found\n\n"
        );
        assert_eq!(
            String::from_utf8(error.log_entry()).unwrap(),
            "event filter parse error: error: Field not found\n  Command: foo == 1\n               ^\n"
        );
        assert_eq!(error.to_string(), "Field not found\n  foo == 1\n  ^^^\n  did you mean `fooo`?");
    }

    #[test]
    fn no_words() {
        let error = error(ErrorKind::Empty, 0, "()");
        assert_eq!(error.filter_file(), b"()\nError: (0)\n\n");
        assert_eq!(
            String::from_utf8(error.log_entry()).unwrap(),
            "event filter parse error: error: Error\n  Command: ()\n           ^\n"
        );
    }

    #[test]
    fn long_filters_may_not_be_shown() {
        // Seen on Debian's 6.1.
        let text = [b' '; 4095];
        assert_eq!(shown(&text[1..], &Dialect::oldest()).len(), 4095);
        assert_eq!(shown(&text, &Dialect::oldest()), b"");
        assert_eq!(shown(&text, &Dialect::newest()).len(), 4096);
    }

    #[test]
    fn long_messages_lose_lines() {
        // Lengths seen on a 6.18 kernel: text, caret and error fit up to 8,155 bytes in all.
        for (spaces, length) in [(4050, 8139), (4060, 8129), (4080, 4085), (4090, 4095)] {
            let text = format!("{}a==1", " ".repeat(spaces));
            let error = error(ErrorKind::FieldNotFound, spaces + 2, &text);
            assert_eq!(error.filter_file().len(), length, "{spaces} spaces");
        }
    }
}
