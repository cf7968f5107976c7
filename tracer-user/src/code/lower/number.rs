//! Comparisons of numbers, addresses and the current CPU.

use super::{Exits, Lower, LowerError};
use crate::{
    code::asm::{Alu, Cond, Operand, Reg},
    plan::filter::{NumberOp, Place},
};

impl Lower<'_> {
    pub(super) fn number(
        &mut self,
        place: Place,
        signed: bool,
        op: NumberOp,
        value: u64,
        exits: Exits,
    ) -> Result<(), LowerError> {
        let size = usize::from(place.size);
        self.asm.note(format!("{} at {}: {op} {:#x}", kind(size, signed), place.offset, value));
        self.value(place)?;
        let bits = 8 * size as u32;
        let value = if size < 8 { value & ((1 << bits) - 1) } else { value };
        let cond = condition(op, signed);
        // Equality and bit tests ignore the sign.
        let signed = signed && matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe);
        match size {
            1 | 2 => {
                let mut value = value as i32;
                if signed {
                    self.asm.alu32(Alu::Lsh, Reg::R0, 32 - bits as i32);
                    self.asm.alu32(Alu::Arsh, Reg::R0, 32 - bits as i32);
                    value = value << (32 - bits) >> (32 - bits);
                }
                self.decide(false, cond, Reg::R0, Operand::Imm(value), exits);
            }
            4 => self.decide(false, cond, Reg::R0, Operand::Imm(value as i32), exits),
            _ => {
                let value = if let Ok(imm) = i32::try_from(value.cast_signed()) {
                    Operand::Imm(imm)
                } else {
                    self.asm.constant(Reg::R5, value);
                    Operand::Reg(Reg::R5)
                };
                self.decide(true, cond, Reg::R0, value, exits);
            }
        }
        Ok(())
    }

    pub(super) fn function_range(
        &mut self,
        place: Place,
        low: u64,
        high: u64,
        exits: Exits,
    ) -> Result<(), LowerError> {
        self.asm.note(format!("address at {}: {low:#x} to {high:#x}", place.offset));
        self.value(place)?;
        self.asm.constant(Reg::R5, low);
        self.jump_if(Cond::Lt, Reg::R0, Reg::R5, exits.no);
        self.asm.constant(Reg::R5, high);
        self.decide(true, Cond::Lt, Reg::R0, Operand::Reg(Reg::R5), exits);
        Ok(())
    }

    pub(super) fn cpu(&mut self, op: NumberOp, value: i32, exits: Exits) {
        self.asm.note(format!("CPU {op} {value}"));
        if op == NumberOp::And {
            // The kernel parses `CPU & n` and never finds it true.
            self.go(false, exits);
            return;
        }
        self.current_cpu();
        self.decide(false, condition(op, true), Reg::R0, Operand::Imm(value), exits);
    }
}

fn kind(size: usize, signed: bool) -> String {
    format!("{}{}", if signed { 's' } else { 'u' }, 8 * size)
}

/// The jump condition of a comparison.
pub(super) fn condition(op: NumberOp, signed: bool) -> Cond {
    match (op, signed) {
        (NumberOp::Eq, _) => Cond::Eq,
        (NumberOp::Ne, _) => Cond::Ne,
        (NumberOp::And, _) => Cond::Set,
        (NumberOp::Lt, false) => Cond::Lt,
        (NumberOp::Le, false) => Cond::Le,
        (NumberOp::Gt, false) => Cond::Gt,
        (NumberOp::Ge, false) => Cond::Ge,
        (NumberOp::Lt, true) => Cond::SLt,
        (NumberOp::Le, true) => Cond::SLe,
        (NumberOp::Gt, true) => Cond::SGt,
        (NumberOp::Ge, true) => Cond::SGe,
    }
}
