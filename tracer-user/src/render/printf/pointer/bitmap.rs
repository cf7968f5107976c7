//! Bitmaps: `%*pb` in groups of 32 bits, `%*pbl` as a list of ranges.

use super::take;
use crate::render::printf::number::{self, decimal};
use crate::render::printf::spec::{Number, Spec};

/// Prints a bitmap in groups of 32 bits, highest first; `bits` is the number of its bits.
pub(crate) fn bitmap(out: &mut Vec<u8>, bytes: &[u8], bits: i32) {
    let bits = bits.max(0) as usize;
    for chunk in (0..bits.div_ceil(32)).rev() {
        let width = if (chunk + 1) * 32 > bits { bits % 32 } else { 32 };
        let word = bitmap_word(bytes, chunk) & (u64::MAX >> (64 - width)) as u32;
        let spec = Spec { zero: true, width: width.div_ceil(4) as i32, ..Spec::PLAIN };
        number::number(out, u64::from(word), Number::hex(4), spec);
        if chunk > 0 {
            out.push(b',');
        }
    }
}

/// A group of 32 bits; longs are in native byte order.
fn bitmap_word(bytes: &[u8], chunk: usize) -> u32 {
    let long = u64::from_ne_bytes(take(bytes.get(chunk / 2 * 8..).unwrap_or(&[])));
    (long >> (chunk % 2 * 32)) as u32
}

/// Prints the ranges of a bitmap's set bits; `bits` is the number of its bits.
pub(crate) fn bitmap_list(out: &mut Vec<u8>, bytes: &[u8], bits: i32) {
    let bits = bits.max(0) as usize;
    let is_set = |bit: usize| bit < bits && bitmap_word(bytes, bit / 32) >> (bit % 32) & 1 != 0;
    let list_start = out.len();
    let mut bit = 0;
    // No bit after the end of the memory is set.
    while bit < bits.min(bytes.len().next_multiple_of(8) * 8) {
        if !is_set(bit) {
            bit += 1;
            continue;
        }
        let start = bit;
        while is_set(bit) {
            bit += 1;
        }
        if out.len() > list_start {
            out.push(b',');
        }
        decimal(out, start);
        if bit > start + 1 {
            out.push(b'-');
            decimal(out, bit - 1);
        }
    }
}
