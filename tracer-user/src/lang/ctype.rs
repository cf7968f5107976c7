//! Character classes as the kernel has them: Latin-1, include/linux/ctype.h.
//!
//! They differ from ASCII: byte 0xa0 is a space, and letters with accents are letters, so that a filter whose
//! field name holds one fails with "Field not found" and not as junk.

/// `isspace()`: the ASCII white space with vertical tab, and the Latin-1 no-break space.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ' | 0xa0)
}

/// `isalnum()`: digits and letters, the letters of Latin-1 included.
pub fn is_alnum(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || (byte >= 0xc0 && byte != 0xd7 && byte != 0xf7)
}

/// The text without the white space at its end, and without what follows a NUL: what is left of a write to a
/// control file once the kernel has taken it as a string and `strstrip()` has cut it in place.
pub fn trim_end(text: &[u8]) -> &[u8] {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let end = text.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

/// The text without the white space in front of it.
pub fn trim_start(text: &[u8]) -> &[u8] {
    text.get(skip_space(text, 0)..).unwrap_or_default()
}

/// The first byte at or behind `at` that is no white space; the text's end if there is none.
pub fn skip_space(text: &[u8], at: usize) -> usize {
    text.iter().skip(at).position(|byte| !is_space(*byte)).map_or(text.len().max(at), |n| at + n)
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
}
