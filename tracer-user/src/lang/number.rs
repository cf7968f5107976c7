//! Integer parsing as in the kernel's `kstrtoull()` family (`lib/kstrtox.c`).
//!
//! With base 0, `0x` and a hex digit select hexadecimal, another leading `0` octal, and all else decimal. Only a single
//! newline may follow the digits. A number that does not fit is ERANGE, even if other characters follow the digits; any
//! other invalid text is EINVAL.

use rustix::io::Errno;

use super::ctype::split_run;

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
/// `EINVAL` if the text is not a number, `ERANGE` if it does not fit into 64 bits.
pub fn read_unsigned(text: &[u8], base: u32) -> Result<u64, Errno> {
    magnitude(text.strip_prefix(b"+").unwrap_or(text), base)
}

/// `kstrtoll(text, 0)`.
///
/// # Errors
/// `EINVAL` if the text is not a number, `ERANGE` if it does not fit into signed 64 bits.
pub fn read_signed(text: &[u8]) -> Result<i64, Errno> {
    if let Some(digits) = text.strip_prefix(b"-") {
        0i64.checked_sub_unsigned(magnitude(digits, 0)?).ok_or(Errno::RANGE)
    } else {
        i64::try_from(read_unsigned(text, 0)?).map_err(|_| Errno::RANGE)
    }
}

/// `simple_strtoul(text, base)`: returns the value of the leading digits, wrapped to 64 bits, and the text after them.
///
/// Without digits it returns 0 and the whole text.
pub fn prefix(text: &[u8], base: u32) -> (u64, &[u8]) {
    let (radix, digits, rest) = digits(text, base);
    if digits.is_empty() {
        return (0, text);
    }
    let add = |value: u64, digit: u32| value.wrapping_mul(radix.into()).wrapping_add(u64::from(digit));
    (values(digits, radix).fold(0, add), rest)
}

/// Splits a text into its base, its leading digits and the rest.
fn digits(text: &[u8], base: u32) -> (u32, &[u8], &[u8]) {
    let (radix, text) = match text {
        _ if base != 0 => (base, text),
        [b'0', b'x' | b'X', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => (16, digits),
        [b'0', ..] => (8, text),
        _ => (10, text),
    };
    let (digits, rest) = split_run(text, |byte| char::from(byte).is_digit(radix));
    (radix, digits, rest)
}

fn values(digits: &[u8], radix: u32) -> impl Iterator<Item = u32> {
    digits.iter().filter_map(move |byte| char::from(*byte).to_digit(radix))
}

fn magnitude(text: &[u8], base: u32) -> Result<u64, Errno> {
    let (radix, digits, rest) = digits(text, base);
    let add = |value: u64, digit: u32| value.checked_mul(radix.into())?.checked_add(u64::from(digit));
    let value = values(digits, radix).try_fold(0, add).ok_or(Errno::RANGE)?;
    let is_number = !digits.is_empty() && matches!(rest, b"" | b"\n");
    if is_number { Ok(value) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers() {
        let numbers = [
            ("0", 0),
            ("12", 12),
            ("012", 10),
            ("0x1F", 31),
            ("0X1f", 31),
            ("1\n", 1),
            ("+1", 1),
            ("0xffffffffffffffff", u64::MAX),
        ];
        for (text, value) in numbers {
            assert_eq!(unsigned(text.as_bytes()), Some(value), "{text:?}");
        }
        let too_large = ["0x10000000000000000", "18446744073709551616"];
        for text in ["08", "0x", "0xg", "1a", "", "-1", "1 "].into_iter().chain(too_large) {
            assert_eq!(unsigned(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn signed_numbers() {
        let numbers = [
            ("-1", -1),
            ("-0x10", -16),
            ("-010", -8),
            ("-0", 0),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ];
        for (text, value) in numbers {
            assert_eq!(signed(text.as_bytes()), Some(value), "{text:?}");
        }
        let too_large = ["9223372036854775808", "-9223372036854775809", "0xffffffffffffffff"];
        for text in ["-", "--1", "-+1"].into_iter().chain(too_large) {
            assert_eq!(signed(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn errors_and_prefixes() {
        assert_eq!(read_unsigned(b"99999999999999999999x", 0), Err(Errno::RANGE));
        assert_eq!(read_unsigned(b"12x", 0), Err(Errno::INVAL));
        assert_eq!(read_unsigned(b"0x10", 10), Err(Errno::INVAL));
        assert_eq!(read_unsigned(b"010", 10), Ok(10));
        assert_eq!(read_signed(b"-9223372036854775809"), Err(Errno::RANGE));
        assert_eq!(prefix(b"12@3", 0), (12, &b"@3"[..]));
        assert_eq!(prefix(b"0x1f/", 0), (31, &b"/"[..]));
        assert_eq!(prefix(b"0xg", 0), (0, &b"xg"[..]));
        assert_eq!(prefix(b"@", 0), (0, &b"@"[..]));
        assert_eq!(prefix(b"18446744073709551617", 10), (1, &b""[..]));
    }
}
