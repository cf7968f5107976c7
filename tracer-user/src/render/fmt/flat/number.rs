//! Numbers of the flat form, and their conversions with a width, a sign or a prefix.

use crate::render::fmt::ast::Binary;
use crate::render::fmt::ctype::CType;
use crate::render::fmt::program::apply;
use crate::render::printf;
use crate::render::printf::spec::Spec;
use crate::render::text_buffer::{BLOCK, TextBuffer};

/// A number of the record, and the steps that compute the shown number from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Number {
    offset: u32,
    ty: CType,
    steps: Box<[Step]>,
}

/// An operator whose right operand is a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    op: Binary,
    constant: u64,
    ty: CType,
}

impl Number {
    /// The number at an offset of the record.
    pub(super) fn at(offset: u32, ty: CType) -> Self {
        Self { offset, ty, steps: Box::default() }
    }

    /// The result of an operator other than `&&` and `||`.
    pub(super) fn then(self, op: Binary, constant: u64, ty: CType) -> Self {
        let steps = self.steps.iter().copied().chain([Step { op, constant, ty }]).collect();
        Self { steps, ..self }
    }

    /// The number converted to a type.
    pub(super) fn converted(self, ty: CType) -> Self {
        let from = self.steps.last().map_or(self.ty, |step| step.ty);
        if ty.contains(from) { self } else { self.then(Binary::BitOr, 0, ty) }
    }

    /// The number in a record; `None` if the record ends before it.
    #[inline]
    pub(super) fn read(&self, record: &[u8]) -> Option<u64> {
        let value = self.ty.load(record.get(self.offset as usize..)?)?;
        Some(if self.steps.is_empty() { value } else { self.computed(value) })
    }

    #[inline(never)]
    fn computed(&self, value: u64) -> u64 {
        self.steps.iter().fold(value, |value, step| apply(step.op, value, step.constant, step.ty))
    }
}

/// The layout of a number with a width, a sign or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    is_hex: bool,
    is_signed: bool,
    prefix: bool,
    fill: Fill,
    width: u8,
}

/// What fills the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    SpacesBefore,
    SpacesAfter,
    Zeros,
}

impl Layout {
    /// The layout of a conversion; `None` if it is not of this form.
    pub(super) fn of(number: printf::spec::Number, spec: Spec) -> Option<Self> {
        // Each number has at least one digit.
        let is_other = spec.plus || spec.space || spec.precision > 1 || spec.width > BLOCK as i32;
        let is_hex = number.base == 16 && number.lower && !number.signed;
        (!is_other && (is_hex || number.base == 10)).then_some(Self {
            is_hex,
            is_signed: number.signed,
            prefix: is_hex && spec.special,
            fill: match (spec.left, spec.zero) {
                (true, _) => Fill::SpacesAfter,
                (false, true) => Fill::Zeros,
                (false, false) => Fill::SpacesBefore,
            },
            width: spec.width.max(0) as u8,
        })
    }

    pub(super) fn write(self, value: u64, out: &mut TextBuffer) {
        let is_negative = self.is_signed && value.cast_signed() < 0;
        let magnitude = if is_negative { value.wrapping_neg() } else { value };
        let last_digit = if self.is_hex {
            magnitude.checked_ilog2().map_or(0, |bit| bit / 4)
        } else {
            magnitude.checked_ilog10().unwrap_or(0)
        };
        let shown = last_digit as usize + 1 + usize::from(is_negative) + 2 * usize::from(self.prefix);
        let padding = usize::from(self.width).saturating_sub(shown);
        let pad = |out: &mut TextBuffer, byte, fill| {
            out.put(&[byte; BLOCK], if self.fill == fill { padding } else { 0 });
        };
        pad(out, b' ', Fill::SpacesBefore);
        out.put(b"-", usize::from(is_negative));
        out.put(b"0x", 2 * usize::from(self.prefix));
        pad(out, b'0', Fill::Zeros);
        if self.is_hex {
            out.hex(magnitude);
        } else {
            out.decimal(magnitude);
        }
        pad(out, b' ', Fill::SpacesAfter);
    }
}
