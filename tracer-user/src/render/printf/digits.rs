//! Hexadecimal digits of bytes.

pub(super) const LOWER: &[u8; 16] = b"0123456789abcdef";
pub(super) const UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// Writes a byte as two lower-case hexadecimal digits.
#[inline]
pub fn hex_byte(out: &mut Vec<u8>, value: u8) {
    out.extend_from_slice(&pair(LOWER, value));
}

/// Writes a byte as two upper-case hexadecimal digits.
pub fn hex_byte_upper(out: &mut Vec<u8>, value: u8) {
    out.extend_from_slice(&pair(UPPER, value));
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "four bits count to 15; every byte of a dump comes here")]
fn pair(digits: &[u8; 16], value: u8) -> [u8; 2] {
    [digits[usize::from(value >> 4)], digits[usize::from(value & 15)]]
}
