//! What writers hand in, read as the kernel reads it: words of a list, one a write, and plain numbers.

use rustix::io::Errno;

use crate::lang::ctype;

/// Bytes of a word at most (`EVENT_BUF_SIZE`, `PID_BUF_SIZE`).
const WORD_MAX: usize = 127;

/// Reads the first word of a write (`trace_get_user()`): how many bytes are done with, and the word, if there is one.
/// What stands behind the first blank is for the next write.
///
/// # Errors
/// `EINVAL` for a word that is too long.
pub fn word(data: &[u8]) -> Result<(usize, Option<&[u8]>), Errno> {
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
        return Err(Errno::INVAL);
    }
    // The blank itself is read as well.
    let done = start + length + usize::from(length < rest.len());
    Ok((done, rest.get(..length)))
}

/// Bytes of a number at most: the buffer of `kstrtoul_from_user()` less its NUL.
const NUMBER_MAX: usize = 1 + 64 + 1;

/// A decimal number as `kstrtoul_from_user()` takes it: perhaps a plus, digits, perhaps one newline.
///
/// # Errors
/// `EINVAL` for anything else, `ERANGE` for one that does not fit 64 bits.
pub fn number(data: &[u8]) -> Result<u64, Errno> {
    let text = data.get(..NUMBER_MAX).unwrap_or(data);
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.strip_suffix(b"\n").unwrap_or(text);
    if digits.is_empty() {
        return Err(Errno::INVAL);
    }
    let mut value: u64 = 0;
    let mut fits = true;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return Err(Errno::INVAL);
        }
        match value.checked_mul(10).and_then(|value| value.checked_add(u64::from(byte - b'0'))) {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    if fits { Ok(value) } else { Err(Errno::RANGE) }
}

/// A number that must be 0 or 1.
///
/// # Errors
/// As [`number`], and `EINVAL` for other numbers.
pub fn flag(data: &[u8]) -> Result<bool, Errno> {
    match number(data)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_a_write() {
        let none: Option<&[u8]> = None;
        assert_eq!(word(b"a:b c:d\n"), Ok((4, Some(&b"a:b"[..]))));
        assert_eq!(word(b"  \ta\n"), Ok((5, Some(&b"a"[..]))));
        assert_eq!(word(b"a"), Ok((1, Some(&b"a"[..]))));
        assert_eq!(word(b" \n"), Ok((2, none)));
        assert_eq!(word(b"\0a"), Ok((1, none)));
        assert_eq!(word(b"a\0b"), Ok((2, Some(&b"a"[..]))));
        assert_eq!(word(&[b'x'; 127]).map(|(done, _)| done), Ok(127));
        assert_eq!(word(&[b'x'; 128]), Err(Errno::INVAL));
    }

    #[test]
    fn numbers() {
        for (text, value) in [
            ("1\n", Ok(1)),
            ("+07", Ok(7)),
            ("", Err(Errno::INVAL)),
            ("\n", Err(Errno::INVAL)),
            ("-1", Err(Errno::INVAL)),
            (" 1", Err(Errno::INVAL)),
            ("1 ", Err(Errno::INVAL)),
            ("1\n\n", Err(Errno::INVAL)),
            ("0x1", Err(Errno::INVAL)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(Errno::RANGE)),
        ] {
            assert_eq!(number(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(flag(b"1"), Ok(true));
        assert_eq!(flag(b"2"), Err(Errno::INVAL));
    }
}
