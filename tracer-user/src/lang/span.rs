//! A range of bytes in a source text.

/// A byte range `start..end` in a source text, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
}

impl Span {
    /// Creates the span `start..end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Creates an empty span at `at`.
    pub fn empty(at: usize) -> Self {
        Self { start: at, end: at }
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the span is empty.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the smallest span that covers both.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the bytes of `text` in the span, clipped to the end of the text.
    pub fn of(self, text: &[u8]) -> &[u8] {
        let end = self.end.min(text.len());
        text.get(self.start..end).unwrap_or_default()
    }
}
