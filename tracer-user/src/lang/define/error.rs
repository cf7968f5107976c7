//! Errors of a definition: the errno of the write, the entries in `error_log`, and the message of the command line.

use std::fmt;

use rustix::io::Errno;

use super::super::fetch::{ErrorKind, Fault, Stop};
use super::super::filter::FilterError;
use super::super::{Span, caret};
use super::words::Line;

/// Why a line was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Box<Inside>);

/// Boxed, so that a `Result` with a refusal stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inside {
    errno: Errno,
    line: Vec<u8>,
    log: Log,
    findings: Vec<Finding>,
    filter: Option<FilterError>,
}

/// A fault and the word that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of error.
    pub kind: ErrorKind,
    /// Number of the word in the kernel's count, which includes the expansion of `$arg*`.
    pub word: usize,
    /// The kernel's position in the word.
    pub offset: usize,
    /// Whether the kernel's position is undefined ([`Fault::astray`]).
    pub astray: bool,
    /// The invalid text in the line.
    pub span: Span,
}

/// The line in the kernel's log: the name of the parser, and the words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) parser: &'static str,
    /// The words. The kernel overwrites them with the expansion of `%pd`.
    pub(super) words: Vec<Vec<u8>>,
}

impl Log {
    pub(super) fn new(parser: &'static str, line: &Line<'_>) -> Self {
        Self { parser, words: line.words().map(<[u8]>::to_vec).collect() }
    }

    /// Column of a position. For a missing word it is after the last word.
    fn column(&self, word: usize, offset: usize) -> usize {
        let width = |words: &[Vec<u8>]| words.iter().map(|word| word.len() + 1).sum::<usize>();
        let column = match self.words.get(..word) {
            Some(before) if word < self.words.len() => width(before) + offset,
            _ => width(&self.words),
        };
        // The kernel stores it in 16 bits.
        column & 0xffff
    }
}

impl Refusal {
    pub(super) fn new(errno: Errno, line: &Line<'_>, log: &Log) -> Self {
        let (line, log) = (line.text().to_vec(), log.clone());
        Self(Box::new(Inside { errno, line, log, findings: Vec::new(), filter: None }))
    }

    /// An error without an entry in the log.
    pub(super) fn unlogged(errno: Errno, line: &Line<'_>, kind: ErrorKind) -> Self {
        let refusal = Self::new(errno, line, &Log::default());
        let span = Span::new(0, line.text().len());
        refusal.with(Finding { kind, word: 0, offset: 0, astray: false, span })
    }

    pub(super) fn with(mut self, finding: Finding) -> Self {
        self.0.findings.push(finding);
        self
    }

    /// The faults in a word of the line.
    pub(super) fn in_word(line: &Line<'_>, log: &Log, word: usize, stop: &Stop) -> Self {
        Self::in_expanded_word(line, log, word, word, true, stop)
    }

    /// The faults in a word created from word `origin` of the line. `word` is its new number. `own` marks a word that
    /// still has the original text.
    pub(super) fn in_expanded_word(
        line: &Line<'_>,
        log: &Log,
        word: usize,
        origin: usize,
        own: bool,
        stop: &Stop,
    ) -> Self {
        let place = line.spans().get(origin).copied().unwrap_or(Span::empty(line.text().len()));
        let mut refusal = Self::new(stop.errno, line, log);
        for Fault { kind, offset, span, astray } in stop.faults.iter().copied() {
            let span = if own {
                let start = (place.start + span.start).min(place.end);
                Span::new(start, (place.start + span.end).clamp(start, place.end))
            } else {
                place
            };
            refusal = refusal.with(Finding { kind, word, offset, astray, span });
        }
        refusal
    }

    pub(super) fn with_filter(mut self, error: FilterError) -> Self {
        self.0.filter = Some(error);
        self
    }

    /// Errno of the write.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The findings, in the order in which the kernel logs them.
    pub fn findings(&self) -> &[Finding] {
        &self.0.findings
    }

    /// Kind of the first finding.
    pub fn kind(&self) -> Option<ErrorKind> {
        self.0.findings.first().map(|finding| finding.kind)
    }

    /// The filter's error, for an event probe with an invalid filter.
    pub fn filter(&self) -> Option<&FilterError> {
        self.0.filter.as_ref()
    }

    /// The entries in `error_log`, each without its leading timestamp `[    1.234567] `.
    pub fn log_entries(&self) -> Vec<Vec<u8>> {
        let logged = self.0.findings.iter().filter_map(|finding| {
            let Log { parser, words } = &self.0.log;
            let column = self.0.log.column(finding.word, finding.offset);
            Some(caret::log_entry(parser.as_bytes(), finding.kind.wording()?, &words.join(&b' '), column))
        });
        self.0.filter.iter().map(FilterError::log_entry).chain(logged).collect()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(filter) = &self.0.filter {
            return write!(f, "{filter}");
        }
        for (at, finding) in self.0.findings.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            let reason = finding.kind.text();
            write!(f, "{newline}{reason}\n{}", caret::excerpt(&self.0.line, finding.span))?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
