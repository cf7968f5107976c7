//! A run of bytes of a source text.

/// Where something stands in a source text: bytes `start..end`, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// First byte behind it.
    pub end: usize,
}

impl Span {
    /// The bytes `start..end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// No byte at all, at `at`.
    pub fn empty(at: usize) -> Self {
        Self { start: at, end: at }
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The smallest span that holds both.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The bytes of `text` that it names; what lies behind the text's end is left out.
    pub fn of(self, text: &[u8]) -> &[u8] {
        let end = self.end.min(text.len());
        text.get(self.start..end).unwrap_or_default()
    }
}
