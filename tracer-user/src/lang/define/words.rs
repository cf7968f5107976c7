//! Splits a line of `dynamic_events` into words like the kernel's `argv_split()`, and a write into lines
//! (`trace_parse_run_command()`, `kernel/trace/trace.c`).

use super::super::{Span, ctype};

/// Maximum length of a line in bytes, with the newline: the kernel's `WRITE_BUFSIZE` less the NUL.
pub const LINE_MAX: usize = 4095;

/// A line and the places of its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    text: &'a [u8],
    words: Vec<Span>,
}

impl<'a> Line<'a> {
    /// Splits a line. Ignores the text after a NUL or `#`.
    pub fn split(text: &'a [u8]) -> Self {
        let text = text.split(|byte| matches!(byte, 0 | b'#')).next().unwrap_or_default();
        Self { text, words: ctype::words(text).collect() }
    }

    /// The text of the line.
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Places of the words.
    pub fn spans(&self) -> &[Span] {
        &self.words
    }

    /// The words.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.words.iter().map(|span| span.of(self.text))
    }

    /// Returns a word, or an empty slice after the last word.
    pub fn word(&self, at: usize) -> &'a [u8] {
        self.words.get(at).map_or(&[], |span| span.of(self.text))
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether the line has no words.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// Splits a write into lines. The last line needs no newline.
///
/// An item is an error if its line exceeds the kernel's limit; the iteration ends after it.
pub fn lines(written: &[u8]) -> impl Iterator<Item = Result<&[u8], &[u8]>> {
    let mut rest = written;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, behind) = ctype::split_once(rest, |byte| byte == b'\n').unwrap_or((rest, &[]));
        if rest.len() - behind.len() > LINE_MAX {
            rest = &[];
            return Some(Err(line));
        }
        rest = behind;
        Some(Ok(line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_lines() {
        let line = Line::split(b" p:x  do_it\ta=1 # b");
        assert_eq!(line.words().collect::<Vec<_>>(), [&b"p:x"[..], b"do_it", b"a=1"]);
        assert_eq!((line.len(), line.word(1), line.word(3)), (3, &b"do_it"[..], &b""[..]));
        assert!(Line::split(b" # p:x").is_empty());
        assert_eq!(Line::split(b"a\xa0b\0c").len(), 2);
        let read: Vec<_> = lines(b"a\n\nb").collect();
        assert_eq!(read, [Ok(&b"a"[..]), Ok(b""), Ok(b"b")]);
        let long = [b'x'; LINE_MAX + 1];
        assert_eq!(lines(&long).collect::<Vec<_>>(), [Err(&long[..])]);
        assert_eq!(lines(&long[1..]).count(), 1);
    }
}
