//! Numbers and padded text in the format of lib/vsprintf.c.

use super::hex::{LOWER, hex_pair};
use super::spec::{Number, Spec};
use crate::render::fmt::CType;

const UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// Digits of a number at the end of a buffer; at most 22, for octal.
struct Digits {
    buffer: [u8; 24],
    start: usize,
}

impl Digits {
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "64 bits have at most 22 digits; the hottest loop of all text"
    )]
    fn of(mut value: u64, base: u8, lower: bool) -> Self {
        let mut digits = Self { buffer: [0; 24], start: 24 };
        if base == 10 {
            let mut decimal = itoa::Buffer::new();
            let text = decimal.format(value).as_bytes();
            digits.start -= text.len();
            digits.buffer[digits.start..].copy_from_slice(text);
            return digits;
        }
        let table = if lower { LOWER } else { UPPER };
        let (mask, shift) = if base == 16 { (15, 4) } else { (7, 3) };
        loop {
            digits.start -= 1;
            digits.buffer[digits.start] = table[(value & mask) as usize];
            value >>= shift;
            if value == 0 {
                return digits;
            }
        }
    }

    #[inline]
    fn text(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }
}

/// Writes a number in decimal.
#[inline]
pub(crate) fn decimal(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a number in decimal, right-aligned with a fill byte.
#[inline]
pub(crate) fn decimal_padded(out: &mut Vec<u8>, value: impl itoa::Integer, width: usize, fill: u8) {
    let mut digits = itoa::Buffer::new();
    let text = digits.format(value).as_bytes();
    repeat(out, fill, width.saturating_sub(text.len()));
    out.extend_from_slice(text);
}

/// Writes a number in lower-case hexadecimal without a prefix.
#[inline]
pub(crate) fn hex(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(Digits::of(value, 16, true).text());
}

/// Writes a number in lower-case hexadecimal with its prefix.
pub(crate) fn prefixed_hex(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(b"0x");
    hex(out, value);
}

/// Writes each byte as two hexadecimal digits.
#[inline]
pub(crate) fn hex_bytes(out: &mut Vec<u8>, bytes: &[u8], separator: Option<u8>) {
    for (i, byte) in bytes.iter().enumerate() {
        if i > 0 {
            out.extend(separator);
        }
        out.extend_from_slice(&hex_pair(*byte));
    }
}

#[inline]
pub(crate) fn repeat(out: &mut Vec<u8>, byte: u8, count: usize) {
    out.resize(out.len() + count, byte);
}

/// Writes an argument by a number conversion (`number()` in lib/vsprintf.c).
#[inline]
pub(crate) fn number(out: &mut Vec<u8>, argument: u64, conversion: Number, spec: Spec) {
    let value = CType { size: conversion.size, signed: conversion.signed }.wrap(argument);
    match conversion {
        _ if !spec.is_plain() => laid_out(out, value, conversion, spec),
        Number { signed: true, .. } => decimal(out, value.cast_signed()),
        Number { base: 10, .. } => decimal(out, value),
        Number { base, lower, .. } => out.extend_from_slice(Digits::of(value, base, lower).text()),
    }
}

fn laid_out(out: &mut Vec<u8>, value: u64, conversion: Number, spec: Spec) {
    let zero = spec.zero && !spec.left;
    let negative = conversion.signed && value.cast_signed() < 0;
    let value = if negative { value.wrapping_neg() } else { value };
    let sign = match (conversion.signed, negative) {
        (true, true) => Some(b'-'),
        (true, false) if spec.plus => Some(b'+'),
        (true, false) if spec.space => Some(b' '),
        _ => None,
    };
    let prefix: &[u8] = match conversion.base {
        16 if spec.special && conversion.lower => b"0x",
        16 if spec.special => b"0X",
        8 if spec.special && value != 0 => b"0",
        _ => b"",
    };
    let digits = Digits::of(value, conversion.base, conversion.lower);
    let digits = digits.text();
    let shown = digits.len().max(usize::try_from(spec.precision).unwrap_or(0));
    let taken = shown + prefix.len() + usize::from(sign.is_some());
    let padding = usize::try_from(spec.width).unwrap_or(0).saturating_sub(taken);
    if !zero && !spec.left {
        repeat(out, b' ', padding);
    }
    out.extend(sign);
    out.extend_from_slice(prefix);
    if zero {
        repeat(out, b'0', padding);
    }
    repeat(out, b'0', shown - digits.len());
    out.extend_from_slice(digits);
    if spec.left {
        repeat(out, b' ', padding);
    }
}

/// Writes text, truncated to the precision and padded to the width.
#[inline]
pub(crate) fn text(out: &mut Vec<u8>, text: &[u8], spec: Spec) {
    let start = out.len();
    out.extend_from_slice(cut(text, spec.precision));
    widen(out, start, spec);
}

/// Truncates the text to a precision; returns all of it if the precision is negative or larger.
#[inline]
pub(crate) fn cut(text: &[u8], precision: i32) -> &[u8] {
    usize::try_from(precision).ok().and_then(|limit| text.get(..limit)).unwrap_or(text)
}

/// Truncates the output since `start` to the precision, and pads it to the width.
pub(crate) fn fit(out: &mut Vec<u8>, start: usize, spec: Spec) {
    let shown = cut(out.get(start..).unwrap_or_default(), spec.precision).len();
    out.truncate(start + shown);
    widen(out, start, spec);
}

/// Pads the output since `start` to the width.
#[inline]
pub(crate) fn widen(out: &mut Vec<u8>, start: usize, spec: Spec) {
    let padding = usize::try_from(spec.width).unwrap_or(0).saturating_sub(out.len() - start);
    if padding > 0 {
        repeat(out, b' ', padding);
        if let Some(written) = out.get_mut(start..).filter(|_| !spec.left) {
            written.rotate_right(padding);
        }
    }
}

/// Writes one byte, padded to the width.
pub(crate) fn char(out: &mut Vec<u8>, byte: u8, spec: Spec) {
    let start = out.len();
    out.push(byte);
    widen(out, start, spec);
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Kind, Piece, pieces};
    use super::*;

    fn show(format: &str, value: u64) -> String {
        let mut out = Vec::new();
        for piece in pieces(format.as_bytes()) {
            match piece {
                Piece::Conversion { spec, kind: Kind::Number(kind), .. } => {
                    number(&mut out, value, kind, spec);
                }
                other => panic!("{other:?}"),
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_have_the_kernels_layout() {
        for (format, value, expected) in [
            ("%d", u64::MAX, "-1"),
            ("%u", u64::MAX, "4294967295"),
            ("%lld", i64::MIN as u64, "-9223372036854775808"),
            ("%llu", u64::MAX, "18446744073709551615"),
            ("%hhd", 0xff, "-1"),
            ("%hu", 0x1_0001, "1"),
            ("%5d", 42, "   42"),
            ("%-5d", 42, "42   "),
            ("%05d", -42i64 as u64, "-0042"),
            ("%#x", 0, "0x0"),
            ("%#o", 0, "0"),
            ("%#o", 8, "010"),
            ("%#010x", 0xab, "0x000000ab"),
            ("%#10X", 0xab, "      0XAB"),
            ("%.3d", 7, "007"),
            ("%5.3d", 7, "  007"),
            ("%05.3d", 7, "00007"),
            ("%+d", 7, "+7"),
            ("% d", 7, " 7"),
            ("%016llx", 0xdead_beef, "00000000deadbeef"),
            ("%1d", 9, "9"),
            ("%o", 0o755, "755"),
            ("%.0d", 0, "0"),
        ] {
            assert_eq!(show(format, value), expected, "{format} of {value:#x}");
        }
    }

    #[test]
    fn padded_text() {
        let spec = |width, precision, left| Spec { left, width, precision, ..Spec::PLAIN };
        for (value, spec, expected) in [
            ("abc", spec(5, -1, false), "  abc"),
            ("abc", spec(5, -1, true), "abc  "),
            ("abc", spec(-1, 2, false), "ab"),
            ("abc", spec(4, 1, false), "   a"),
            ("abc", spec(2, 0, false), "  "),
        ] {
            let mut out = b"x".to_vec();
            text(&mut out, value.as_bytes(), spec);
            assert_eq!(String::from_utf8(out).unwrap(), format!("x{expected}"));
        }
    }
}
