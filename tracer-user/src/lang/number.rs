//! Integer parsing as in the kernel's `kstrtoull()` family (`lib/kstrtox.c`).
//!
//! With base 0, `0x` and a hex digit select hexadecimal, another leading `0` octal, and all else decimal. Only a single
//! newline may follow the digits.

use super::ctype::split_run;

/// Why a text is not a valid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// Not a number; EINVAL.
    Invalid,
    /// Too large or too small; ERANGE, even if other characters follow the digits.
    Range,
}

/// `kstrtoull(text, 0)`. Returns `None` if the text is not a number or does not fit into 64 bits.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    read_unsigned(text, 0).ok()
}

/// `kstrtoll(text, 0)`. Returns `None` if the text is not a number or does not fit into signed 64 bits.
pub fn signed(text: &[u8]) -> Option<i64> {
    read_signed(text).ok()
}

/// `kstrtoull(text, base)`, with base 0 or 10.
///
/// # Errors
/// If the text is not a number or does not fit into 64 bits.
pub fn read_unsigned(text: &[u8], base: u32) -> Result<u64, NumberError> {
    magnitude(text.strip_prefix(b"+").unwrap_or(text), base)
}

/// `kstrtoll(text, 0)`.
///
/// # Errors
/// If the text is not a number or does not fit into signed 64 bits.
pub fn read_signed(text: &[u8]) -> Result<i64, NumberError> {
    if let Some(digits) = text.strip_prefix(b"-") {
        0i64.checked_sub_unsigned(magnitude(digits, 0)?).ok_or(NumberError::Range)
    } else {
        i64::try_from(read_unsigned(text, 0)?).map_err(|_| NumberError::Range)
    }
}

/// `simple_strtoul(text, base)`: returns the value of the leading digits, wrapped to 64 bits, and the text after them.
///
/// Without digits it returns 0 and the whole text.
pub fn prefix(text: &[u8], base: u32) -> (u64, &[u8]) {
    let (radix, digits) = radix(text, base);
    let digit = |byte: &u8| char::from(*byte).to_digit(radix).map(u64::from);
    let count = digits.iter().take_while(|byte| digit(byte).is_some()).count();
    if count == 0 {
        return (0, text);
    }
    let (digits, rest) = digits.split_at(count);
    let value = digits.iter().filter_map(digit);
    (value.fold(0, |value, digit| value.wrapping_mul(u64::from(radix)).wrapping_add(digit)), rest)
}

fn radix(text: &[u8], base: u32) -> (u32, &[u8]) {
    match text {
        _ if base != 0 => (base, text),
        [b'0', b'x' | b'X', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => (16, digits),
        [b'0', ..] => (8, text),
        _ => (10, text),
    }
}

fn magnitude(text: &[u8], base: u32) -> Result<u64, NumberError> {
    let (radix, digits) = radix(text, base);
    let (digits, behind) = split_run(digits, |byte| char::from(byte).is_digit(radix));
    let mut value = 0u64;
    for byte in digits {
        let digit = char::from(*byte).to_digit(radix).unwrap_or(0);
        let next = value.checked_mul(u64::from(radix)).and_then(|value| value.checked_add(u64::from(digit)));
        value = next.ok_or(NumberError::Range)?;
    }
    match (digits, behind) {
        ([], _) => Err(NumberError::Invalid),
        (_, b"" | b"\n") => Ok(value),
        _ => Err(NumberError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers() {
        for (text, value) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("012", Some(10)),
            ("0x1F", Some(31)),
            ("0X1f", Some(31)),
            ("1\n", Some(1)),
            ("+1", Some(1)),
            ("0xffffffffffffffff", Some(u64::MAX)),
            ("0x10000000000000000", None),
            ("18446744073709551616", None),
            ("08", None),
            ("0x", None),
            ("0xg", None),
            ("1a", None),
            ("", None),
            ("-1", None),
            ("1 ", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn signed_numbers() {
        for (text, value) in [
            ("-1", Some(-1)),
            ("-0x10", Some(-16)),
            ("-010", Some(-8)),
            ("-0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("0xffffffffffffffff", None),
            ("-", None),
            ("--1", None),
            ("-+1", None),
        ] {
            assert_eq!(signed(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn errors_and_prefixes() {
        assert_eq!(read_unsigned(b"99999999999999999999x", 0), Err(NumberError::Range));
        assert_eq!(read_unsigned(b"12x", 0), Err(NumberError::Invalid));
        assert_eq!(read_unsigned(b"0x10", 10), Err(NumberError::Invalid));
        assert_eq!(read_unsigned(b"010", 10), Ok(10));
        assert_eq!(read_signed(b"-9223372036854775809"), Err(NumberError::Range));
        assert_eq!(prefix(b"12@3", 0), (12, &b"@3"[..]));
        assert_eq!(prefix(b"0x1f/", 0), (31, &b"/"[..]));
        assert_eq!(prefix(b"0xg", 0), (0, &b"xg"[..]));
        assert_eq!(prefix(b"@", 0), (0, &b"@"[..]));
        assert_eq!(prefix(b"18446744073709551617", 10), (1, &b""[..]));
    }
}
