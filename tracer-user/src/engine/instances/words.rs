//! Parsers of writes, as in the kernel: one word of a list per write, and plain numbers.

use crate::{
    engine::command::error::{CommandError, ErrorKind},
    lang::ctype,
};

/// Maximum length of a word (`EVENT_BUF_SIZE`, `PID_BUF_SIZE`).
const WORD_MAX: usize = 127;

/// Parses the first word of a write (`trace_get_user()`). Returns the number of consumed bytes, and the word, if any.
/// The text after the first blank is left for the next write.
///
/// # Errors
/// `EINVAL` for a word that is too long.
pub fn word(data: &[u8]) -> Result<(usize, Option<&[u8]>), CommandError> {
    let blank = |byte: u8| ctype::is_space(byte);
    let start = data.iter().position(|byte| !blank(*byte)).unwrap_or(data.len());
    let rest = data.get(start..).unwrap_or_default();
    match rest.first() {
        None => return Ok((start, None)),
        Some(0) => return Ok((start + 1, None)),
        Some(_) => {}
    }
    let length = rest.iter().position(|byte| blank(*byte) || *byte == 0).unwrap_or(rest.len());
    if length > WORD_MAX {
        return Err(ErrorKind::Invalid.into());
    }
    // The blank is consumed too.
    let done = start + length + usize::from(length < rest.len());
    Ok((done, rest.get(..length)))
}

/// Maximum length of a number: the buffer of `kstrtoul_from_user()` without its NUL.
const NUMBER_MAX: usize = 1 + 64 + 1;

/// Parses a decimal number like `kstrtoul_from_user()`: an optional plus, digits, an optional newline.
///
/// # Errors
/// `EINVAL` for any other text, `ERANGE` for a number that exceeds 64 bits.
pub fn number(data: &[u8]) -> Result<u64, CommandError> {
    let text = data.get(..NUMBER_MAX).unwrap_or(data);
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.strip_suffix(b"\n").unwrap_or(text);
    if digits.is_empty() {
        return Err(ErrorKind::Invalid.into());
    }
    let mut value: u64 = 0;
    let mut fits = true;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return Err(ErrorKind::Invalid.into());
        }
        match value.checked_mul(10).and_then(|value| value.checked_add(u64::from(byte - b'0'))) {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    if fits { Ok(value) } else { Err(ErrorKind::Range.into()) }
}

/// Parses a number that must be 0 or 1.
///
/// # Errors
/// As [`number`], and `EINVAL` for other numbers.
pub fn flag(data: &[u8]) -> Result<bool, CommandError> {
    match number(data)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ErrorKind::Invalid.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_read_per_write() {
        let none: Option<&[u8]> = None;
        assert_eq!(word(b"a:b c:d\n"), Ok((4, Some(&b"a:b"[..]))));
        assert_eq!(word(b"  \ta\n"), Ok((5, Some(&b"a"[..]))));
        assert_eq!(word(b"a"), Ok((1, Some(&b"a"[..]))));
        assert_eq!(word(b" \n"), Ok((2, none)));
        assert_eq!(word(b"\0a"), Ok((1, none)));
        assert_eq!(word(b"a\0b"), Ok((2, Some(&b"a"[..]))));
        assert_eq!(word(&[b'x'; 127]).map(|(done, _)| done), Ok(127));
        assert_eq!(word(&[b'x'; 128]), Err(ErrorKind::Invalid.into()));
    }

    #[test]
    fn numbers() {
        for (text, value) in [
            ("1\n", Ok(1)),
            ("+07", Ok(7)),
            ("", Err(ErrorKind::Invalid.into())),
            ("\n", Err(ErrorKind::Invalid.into())),
            ("-1", Err(ErrorKind::Invalid.into())),
            (" 1", Err(ErrorKind::Invalid.into())),
            ("1 ", Err(ErrorKind::Invalid.into())),
            ("1\n\n", Err(ErrorKind::Invalid.into())),
            ("0x1", Err(ErrorKind::Invalid.into())),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(ErrorKind::Range.into())),
        ] {
            assert_eq!(number(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(flag(b"1"), Ok(true));
        assert_eq!(flag(b"2"), Err(ErrorKind::Invalid.into()));
    }
}
