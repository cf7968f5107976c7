//! Compares bytes in memory with constant bytes by word loads, byte classes and ranges.

use crate::code::{
    asm::{Alu, Cond, Insn, Label, Operand, Reg, Width},
    lower::emitter::Emitter,
};

/// Bytes to compare, at an offset from a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    pub(super) base: Reg,
    pub(super) off: i32,
    /// Number of bytes that may be loaded from there.
    pub(super) available: usize,
    /// Whether loads must be aligned, as in the context and on the stack.
    pub(super) aligned: bool,
}

impl Bytes {
    pub(super) fn skip(self, bytes: usize) -> Self {
        Self { off: self.off + bytes as i32, available: self.available.saturating_sub(bytes), ..self }
    }

    /// The widest load at `at` if `left` bytes remain to compare: its width, and the number of its bytes to compare.
    fn load(self, at: usize, left: usize) -> (Width, usize) {
        let address = self.off + at as i32;
        for (width, size) in [(Width::D, 8_usize), (Width::W, 4), (Width::H, 2)] {
            if self.aligned && address % size as i32 != 0 {
                continue;
            }
            if left >= size {
                return (width, size);
            }
            // One wider load with a shift is cheaper than two narrow loads.
            if left > size / 2 && at + size <= self.available {
                return (width, left);
            }
        }
        (Width::B, 1)
    }
}

/// Jumps to `miss` unless the bytes are equal to `expected`; falls through if they are equal.
pub(super) fn compare(emit: &mut Emitter, bytes: Bytes, expected: &[u8], miss: Label) {
    let mut at = 0;
    while at < expected.len() {
        let (width, taken) = bytes.load(at, expected.len() - at);
        emit.load(width, Reg::R0, bytes.base, (bytes.off + at as i32) as i16);
        let mut value =
            expected[at..at + taken].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let unwanted = 8 * (width.bytes() - taken) as u32;
        if unwanted > 0 {
            let shift = if width == Width::D { Insn::alu } else { Insn::alu32 };
            emit.push(shift(Alu::Lsh, Reg::R0, Operand::Imm(unwanted as i32)));
            value <<= unwanted;
        }
        if width == Width::D {
            let operand = emit.operand(value);
            emit.jump_if(Cond::Ne, Reg::R0, operand, miss);
        } else {
            emit.jump32_if(Cond::Ne, Reg::R0, value as i32, miss);
        }
        at += taken;
    }
}

/// Jumps to `miss` unless R0 is in one of the ranges (both ends included). Otherwise jumps to `hit` or falls through.
pub(super) fn within(emit: &mut Emitter, ranges: &[(u32, u32)], hit: Label, miss: Label) {
    let Some((last, ranges)) = ranges.split_last() else {
        emit.jump_past(miss);
        return;
    };
    let mut test = |(low, high): (u32, u32), inside: bool, to| {
        if low == high {
            let cond = if inside { Cond::Eq } else { Cond::Ne };
            emit.jump32_if(cond, Reg::R0, low.cast_signed(), to);
        } else {
            emit.mov(Reg::R5, Reg::R0);
            emit.alu(Alu::Sub, Reg::R5, low.cast_signed());
            let cond = if inside { Cond::Le } else { Cond::Gt };
            emit.jump_if(cond, Reg::R5, (high - low).cast_signed(), to);
        }
    };
    for range in ranges {
        test(*range, true, hit);
    }
    test(*last, false, miss);
}

/// Combines ascending numbers into ranges, both ends included.
pub(super) fn ranges(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, high)) if *high + 1 == number => *high = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), [(0, 2), (5, 5), (7, 8)]);
        assert_eq!(ranges(std::iter::empty()), []);
    }

    #[test]
    fn loads_are_as_wide_as_the_place_allows() {
        let context = Bytes { base: Reg::R1, off: 8, available: 16, aligned: true };
        assert_eq!(context.load(0, 5), (Width::D, 5));
        assert_eq!(context.load(0, 4), (Width::W, 4));
        assert_eq!(context.load(0, 3), (Width::W, 3));
        assert_eq!(context.load(8, 8), (Width::D, 8));
        assert_eq!(context.skip(4).load(0, 8), (Width::W, 4));
        // No load reaches beyond the field.
        assert_eq!(Bytes { available: 6, ..context }.load(0, 6), (Width::W, 4));
    }
}
