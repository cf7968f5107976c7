//! Draws carets under a line of text for the errors of all languages.
//!
//! Two forms exist: [`mark`] draws the kernel's single `^` at a column, as in an entry of its log ([`log_entry`]).
//! [`excerpt`] underlines the whole span below the text.

use super::Span;

/// Returns `column` spaces and a caret.
pub fn mark(column: usize) -> String {
    " ".repeat(column) + "^"
}

/// Returns an entry of `error_log` without its leading timestamp `[    1.234567] `: the error of a parser, the command,
/// and a caret at a position in it.
pub fn log_entry(parser: &[u8], error: &str, command: &[u8], position: usize) -> Vec<u8> {
    let label = "  Command: ";
    let head = format!(": error: {error}\n{label}");
    let tail = format!("\n{}\n", mark(label.len() + position));
    [parser, head.as_bytes(), command, tail.as_bytes()].concat()
}

/// Returns two lines, indented by two: the text, and `^^^` under the span.
///
/// An empty span gets one caret. A span that starts at the end of the text or later gets one caret after the text.
/// Control characters are replaced by a space, because a terminal would not show them as one column.
pub fn excerpt(text: &[u8], span: Span) -> String {
    let shown = |start, end| -> String {
        let bytes = Span::new(start, end).of(text);
        String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    let start = span.start.min(text.len());
    let end = span.end.clamp(start, text.len());
    let (before, inside, behind) = (shown(0, start), shown(start, end), shown(end, text.len()));
    let carets = "^".repeat(inside.chars().count().max(1));
    let blanks = " ".repeat(before.chars().count());
    format!("  {before}{inside}{behind}\n  {blanks}{carets}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        assert_eq!(mark(0), "^");
        assert_eq!(mark(3), "   ^");
    }

    #[test]
    fn excerpts() {
        assert_eq!(excerpt(b"a == foo", Span::new(5, 8)), "  a == foo\n       ^^^");
        assert_eq!(excerpt(b"a ==", Span::empty(4)), "  a ==\n      ^");
        assert_eq!(excerpt("é\t== 1".as_bytes(), Span::new(3, 5)), "  é == 1\n    ^^");
        assert_eq!(excerpt(b"a", Span::new(7, 9)), "  a\n   ^");
        // `format!` panics at a width above 65,535.
        let long = vec![b'a'; 70_000];
        assert_eq!(mark(long.len()).len(), 70_001);
        assert_eq!(excerpt(&long, Span::empty(long.len())).len(), 2 * (2 + 70_000) + 2);
    }
}
