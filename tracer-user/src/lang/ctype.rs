//! The kernel's character classes: Latin-1, `include/linux/ctype.h`.
//!
//! They differ from ASCII: byte 0xa0 is a space, and accented letters are letters. A filter with such a letter in a
//! field name therefore fails with "Field not found" and not with a syntax error.

use super::Span;

/// `isspace()`: ASCII white space with the vertical tab, and the Latin-1 no-break space.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ' | 0xa0)
}

/// `isalnum()`: digits and letters, including the Latin-1 letters.
pub fn is_alnum(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || (byte >= 0xc0 && byte != 0xd7 && byte != 0xf7)
}

/// Cuts the text at the first NUL, then removes trailing white space.
///
/// The kernel treats a write to a control file as a C string and applies `strstrip()` in place.
pub fn trim_end(text: &[u8]) -> &[u8] {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let end = text.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

/// Removes leading white space.
pub fn trim_start(text: &[u8]) -> &[u8] {
    text.get(skip_space(text, 0)..).unwrap_or_default()
}

/// Returns the offset of the first byte at or after `at` that is not white space, or the end of the text.
pub fn skip_space(text: &[u8], at: usize) -> usize {
    text.iter().skip(at).position(|byte| !is_space(*byte)).map_or(text.len().max(at), |n| at + n)
}

/// Returns the text from `at` on, or an empty slice if `at` is past the end.
pub fn rest(text: &[u8], at: usize) -> &[u8] {
    text.get(at..).unwrap_or_default()
}

/// Splits at the first byte that matches `wanted`: the text before it and the text after it.
pub fn split_once(text: &[u8], wanted: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| wanted(*byte))?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// Splits after the leading run of bytes that match `wanted`.
pub fn split_run(text: &[u8], wanted: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !wanted(*byte)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, &[]))
}

/// Returns the places of the words between white space.
pub fn words(text: &[u8]) -> impl Iterator<Item = Span> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = skip_space(text, at);
        at = start + split_run(rest(text, start), |byte| !is_space(byte)).0.len();
        (start < at).then(|| Span::new(start, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming() {
        assert_eq!(trim_end(b" a \n\x0b\xa0"), b" a");
        assert_eq!(trim_end(b"a\0b"), b"a");
        assert_eq!(trim_end(b" \t"), b"");
        assert_eq!(trim_start(b" \t\xa0a b "), b"a b ");
        assert_eq!(trim_start(b" \n"), b"");
        assert_eq!(skip_space(b"a  b", 1), 3);
        assert_eq!(skip_space(b"a  ", 1), 3);
        assert_eq!(skip_space(b"a", 1), 1);
    }

    #[test]
    fn splitting() {
        assert_eq!((rest(b"ab", 1), rest(b"ab", 2), rest(b"ab", 3)), (&b"b"[..], &b""[..], &b""[..]));
        assert_eq!(split_once(b"a/b/", |byte| byte == b'/'), Some((&b"a"[..], &b"b/"[..])));
        assert_eq!(split_once(b"a/", |byte| byte == b'/'), Some((&b"a"[..], &b""[..])));
        assert_eq!(split_once(b"a", |byte| byte == b'/'), None);
        assert_eq!(split_run(b"a1 b", is_alnum), (&b"a1"[..], &b" b"[..]));
        assert_eq!(split_run(b"a1", is_alnum), (&b"a1"[..], &b""[..]));
        assert_eq!(split_run(b"", is_alnum), (&b""[..], &b""[..]));
    }
}
