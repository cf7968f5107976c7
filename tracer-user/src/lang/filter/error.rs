//! Errors of a filter, with the kernel's text, errno and caret.
//!
//! A [`Fault`] is the kind and place of an error. A [`FilterError`] adds the text, and prints three forms: the content
//! of the event's `filter` file after the failed write, the entry in `error_log`, and the message of our command line.
//! The last one can contain more (a whole span, the most similar field name).
//!
//! The kernel's position can differ from the invalid text: within a term it is one byte too high, and for some errors
//! it is the end of the text. [`Fault::position`] is the kernel's number, [`Fault::span`] the place of the invalid
//! text.

use std::fmt;

use rustix::io::Errno;

use super::super::{Span, caret};
use super::dialect::Dialect;

/// Kinds of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The operator after the field is missing, or `.function` does not accept it.
    InvalidOp,
    /// A parenthesis is not closed.
    TooManyOpen,
    /// A closing parenthesis has no opening one.
    TooManyClose,
    /// A quote is not closed.
    MissingQuote,
    /// `CPUS` without `{`.
    MissingBraceOpen,
    /// `CPUS{` without `}`.
    MissingBraceClose,
    /// A number of 24 bytes or more, or a text of 256 bytes or more.
    OperandTooLong,
    /// A number for a text field (the kernel's text states the reverse).
    ExpectString,
    /// Text for a field that is not text (likewise).
    ExpectDigit,
    /// An operator that the field or the value does not accept.
    IllegalFieldOp,
    /// The event has no such field.
    FieldNotFound,
    /// An invalid number, or one with the wrong sign or out of range.
    IllegalNumber,
    /// No event of a subsystem accepted the filter.
    BadSubsystem,
    /// Text other than `&&`, `||` or the end after a predicate.
    TooManyTerms,
    /// More terms than the first pass counted.
    Miscounted,
    /// `&&` or `||` without a following term.
    InvalidFilter,
    /// `CPUS{...}` contains no valid list, or CPUs that are impossible on the machine.
    InvalidCpulist,
    /// A field other than `ip` with the event `ftrace:function`.
    IpFieldOnly,
    /// The value is not a number, a text or a set of CPUs.
    InvalidValue,
    /// The function does not exist.
    NoFunction,
    /// Only `!` without a term.
    NoFilter,
    /// No term. The kernel has no text for this error.
    Empty,
    /// A term that does not start with the name of a field. The kernel has no text for this error.
    NoField,
    /// More parentheses than the first pass counted. The kernel has no text for this error.
    TooDeep,
    /// A filter with `||` that ends with `&&`, on a kernel with [`super::Feature::LooseEnd`]. The kernel detects that
    /// its program then has an invalid branch target. It has no text for this error.
    LooseBranch,
}

impl ErrorKind {
    /// The kernel's text after `parse_error: `; `None` if the kernel has no text and reports `Error: (0)`.
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

    /// An addition by our command line where the kernel's text is unclear.
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::InvalidOp => {
                Some("operators are == != < <= > >= & ~; .function fields take == and != only")
            }
            Self::ExpectString => Some("the field is text: put the value in quotes"),
            Self::ExpectDigit => Some("the field is not text: write a number without quotes"),
            Self::IllegalFieldOp => Some("text takes == != ~, numbers all but ~, CPUS{} takes == != &"),
            Self::TooManyTerms => Some("expected &&, || or the end here"),
            Self::InvalidFilter | Self::LooseBranch => Some("a term is missing after the last && or ||"),
            Self::Empty => Some("the expression has no term"),
            Self::NoField => Some("expected a field's name here"),
            Self::TooDeep | Self::Miscounted => Some("a quote inside CPUS{} hides parts of the filter"),
            _ => None,
        }
    }
}

/// Kind, errno and place of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of error.
    pub kind: ErrorKind,
    /// Errno of the write to the filter file.
    pub errno: Errno,
    /// The kernel's position (`lasterr_pos`), which determines its caret.
    pub position: usize,
    /// Place of the invalid text.
    pub span: Span,
}

impl Fault {
    pub(super) fn new(kind: ErrorKind, errno: Errno, position: usize, span: Span) -> Self {
        Self { kind, errno, position, span }
    }

    /// The fault of a text that has no tree.
    pub(crate) fn meaningless(text: &[u8]) -> Self {
        Self::new(ErrorKind::InvalidFilter, Errno::INVAL, 0, Span::new(0, text.len()))
    }

    /// A fault within a term, with EINVAL. `at` is the position of the kernel's parser, which reports one byte more.
    pub(crate) fn at(kind: ErrorKind, at: usize, span: Span) -> Self {
        Self::new(kind, Errno::INVAL, at + 1, span)
    }
}

/// An invalid filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    fault: Fault,
    text: Vec<u8>,
    suggestion: Option<String>,
    message_max: usize,
}

impl FilterError {
    /// Creates the error for a fault in `text`.
    pub fn new(fault: Fault, text: &[u8], dialect: &Dialect) -> Self {
        Self { fault, text: text.to_vec(), suggestion: None, message_max: dialect.message_max() }
    }

    /// Adds a suggested name; only [`fmt::Display`] shows it.
    #[must_use]
    pub fn suggest(mut self, name: Option<String>) -> Self {
        self.suggestion = name;
        self
    }

    /// Returns the error for the `filter` file of an event whose subsystem received the filter. The kernel stores it
    /// for every event whose fields do not match, for any reason.
    #[must_use]
    pub fn for_subsystem(mut self) -> Self {
        self.fault.kind = ErrorKind::BadSubsystem;
        self.fault.position = 0;
        self
    }

    /// Kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.fault.kind
    }

    /// The fault.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.fault.errno
    }

    /// Place of the invalid text in [`Self::text`].
    pub fn span(&self) -> Span {
        self.fault.span
    }

    /// Text of the filter.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The suggested name.
    pub fn suggestion(&self) -> Option<&str> {
        self.suggestion.as_deref()
    }

    /// Content of the event's `filter` file after the failed write: the filter, a caret and the error. Lines that do
    /// not fit into the kernel's message buffer are omitted as in `append_filter_err()`.
    pub fn filter_file(&self) -> Vec<u8> {
        let mut message = Message::new(self.message_max);
        message.whole(&self.text);
        if let Some(wording) = self.fault.kind.wording() {
            let position = self.fault.position.min(self.text.len());
            message.formatted(format!("\n{}", caret::mark(position)).as_bytes());
            message.formatted(format!("\nparse_error: {wording}\n").as_bytes());
        } else {
            message.formatted(b"\nError: (0)\n");
        }
        let mut shown = Message::new(self.message_max);
        shown.formatted(&[&message.bytes[..], b"\n"].concat());
        shown.bytes
    }

    /// The entry in `error_log` without its leading timestamp `[    1.234567] `.
    pub fn log_entry(&self) -> Vec<u8> {
        let (wording, position) = match self.fault.kind.wording() {
            Some(wording) => (wording, self.fault.position),
            None => ("Error", 0),
        };
        caret::log_entry(b"event filter parse error", wording, &self.text, position)
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

/// Content of an event's `filter` file while this filter is set: the filter and a newline. It is empty if both do not
/// fit into the kernel's message buffer (`print_event_filter()`).
pub fn shown(text: &[u8], dialect: &Dialect) -> Vec<u8> {
    let mut message = Message::new(dialect.message_max());
    message.formatted(&[text, b"\n"].concat());
    message.bytes
}

/// `struct trace_seq`: adds a piece as a whole, and nothing after a piece that did not fit.
struct Message {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Message {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, full: false }
    }

    /// `trace_seq_puts()`
    fn whole(&mut self, piece: &[u8]) {
        self.add(piece, self.limit);
    }

    /// `trace_seq_printf()`, which also needs space for a NUL.
    fn formatted(&mut self, piece: &[u8]) {
        self.add(piece, self.limit.saturating_sub(1));
    }

    fn add(&mut self, piece: &[u8], limit: usize) {
        self.full |= self.bytes.len() + piece.len() > limit;
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
