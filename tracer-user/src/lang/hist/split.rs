//! Splits a text like `strsep()` and `strstrip()`, with spans instead of copies.

use memchr::{memchr, memmem};

use super::super::{Span, ctype};

/// The remaining part of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    text: &'a [u8],
    rest: Option<Span>,
}

impl<'a> Pieces<'a> {
    pub(super) fn of(text: &'a [u8], part: Span) -> Self {
        Self { text, rest: Some(part) }
    }

    /// Returns the piece before the next delimiter, or the whole rest. Returns `None` if the rest was already taken; an
    /// empty rest is a piece.
    pub(super) fn up_to(&mut self, delimiter: u8) -> Option<Span> {
        let rest = self.rest?;
        match memchr(delimiter, rest.of(self.text)) {
            Some(length) => {
                let at = rest.start + length;
                self.rest = Some(Span::new(at + 1, rest.end));
                Some(Span::new(rest.start, at))
            }
            None => self.rest.take(),
        }
    }

    /// The text after the last delimiter; `None` if the rest was already taken.
    pub(super) fn rest(&self) -> Option<Span> {
        self.rest
    }
}

/// Removes the white space around a part.
pub(super) fn strip(text: &[u8], part: Span) -> Span {
    let bytes = part.of(text);
    let start = ctype::skip_space(bytes, 0);
    let end = bytes.iter().rposition(|byte| !ctype::is_space(*byte)).map_or(start, |last| last + 1);
    Span::new(part.start + start, part.start + end)
}

/// Offset of the first occurrence of `needle` in a part of a text.
pub(super) fn find(text: &[u8], part: Span, needle: &[u8]) -> Option<usize> {
    memmem::find(part.of(text), needle).map(|at| part.start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_rest_is_a_piece() {
        let text = b"a,,b,";
        let mut pieces = Pieces::of(text, Span::new(0, 5));
        let mut seen = Vec::new();
        while let Some(piece) = pieces.up_to(b',') {
            seen.push(piece.of(text));
        }
        assert_eq!(seen, [&b"a"[..], b"", b"b", b""]);
        assert_eq!(pieces.rest(), None);
    }

    #[test]
    fn stripped() {
        let text = b"  a b ";
        assert_eq!(strip(text, Span::new(0, 6)).of(text), b"a b");
        assert!(strip(text, Span::new(0, 2)).is_empty());
        assert_eq!(find(text, Span::new(3, 6), b"b"), Some(4));
    }
}
