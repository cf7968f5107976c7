//! Hexadecimal digits.

pub(super) const LOWER: &[u8; 16] = b"0123456789abcdef";

/// The two hexadecimal digits of each byte.
const HEX_PAIRS: [[u8; 2]; 256] = hex_pairs();

#[expect(clippy::indexing_slicing, reason = "computed at compile time")]
const fn hex_pairs() -> [[u8; 2]; 256] {
    let mut all = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        all[byte] = [LOWER[byte >> 4], LOWER[byte & 15]];
        byte += 1;
    }
    all
}

/// The two lower-case hexadecimal digits of a byte.
#[inline]
#[expect(clippy::indexing_slicing, reason = "the table has an entry for each byte")]
pub(crate) fn hex_pair(byte: u8) -> [u8; 2] {
    HEX_PAIRS[usize::from(byte)]
}
