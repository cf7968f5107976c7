//! Integers as the kernel's `kstrtoull()` family reads them with base 0 (lib/kstrtox.c): `0x` and a hex digit
//! is hex, another leading `0` octal, everything else decimal; one newline may follow, nothing else.

/// `kstrtoull(text, 0)`. None for what is no number or does not fit 64 bits.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    magnitude(text.strip_prefix(b"+").unwrap_or(text))
}

/// `kstrtoll(text, 0)`. None for what is no number or does not fit 64 bits with a sign.
pub fn signed(text: &[u8]) -> Option<i64> {
    if let Some(digits) = text.strip_prefix(b"-") {
        0i64.checked_sub_unsigned(magnitude(digits)?)
    } else {
        i64::try_from(unsigned(text)?).ok()
    }
}

fn magnitude(text: &[u8]) -> Option<u64> {
    let (radix, digits): (u32, &[u8]) = match text {
        [b'0', b'x' | b'X', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => (16, digits),
        [b'0', ..] => (8, text),
        _ => (10, text),
    };
    let digits = digits.strip_suffix(b"\n").unwrap_or(digits);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
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
}
