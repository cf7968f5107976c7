//! Numbers that are computed.

use super::Values;
use crate::{
    code::{
        asm::{Alu, Cond, Helper, Label, Reg, Width},
        lower::emitter::Emitter,
    },
    plan::expression::{Comparison, Condition, Expression, Operation},
};

/// The operands. No call may come between their loading and their use.
const ONE: Reg = Reg::R4;
const TWO: Reg = Reg::R5;

impl Values<'_> {
    /// R0 = the number. `depth` is the number of operations around it.
    pub(super) fn expression(&mut self, emit: &mut Emitter, expression: &Expression, depth: usize) {
        match expression {
            Expression::Const(number) => emit.constant(Reg::R0, *number),
            Expression::Arg(arg) => emit.load(Width::D, Reg::R0, emit.ctx(), i16::from(*arg) * 8),
            Expression::Memory { arg, path, width } => {
                let width = Width::of(usize::from(*width)).unwrap_or(Width::D);
                self.memory.value(emit, *arg, path, 0, width);
            }
            Expression::Load { from, offset, width } => {
                self.expression(emit, from, depth + 1);
                let slot = self.operand_slot(emit, depth);
                emit.mov(Reg::R3, Reg::R0);
                if *offset != 0 {
                    emit.alu(Alu::Add, Reg::R3, *offset);
                }
                emit.address(Reg::R1, Reg::R10, i32::from(slot));
                emit.mov(Reg::R2, i32::from(*width));
                emit.call(Helper::ProbeReadKernel);
                let width = Width::of(usize::from(*width)).unwrap_or(Width::D);
                emit.load(width, Reg::R0, Reg::R10, slot);
            }
            Expression::Extended { of, size, signed } => {
                self.expression(emit, of, depth);
                if *signed {
                    extend_sign(emit, Reg::R0, *size);
                } else {
                    emit.truncate(usize::from(*size));
                }
            }
            Expression::Operation { operation, size, operands } => {
                self.operands(emit, operands, depth);
                operate(emit, *operation, *size);
                emit.truncate(usize::from(*size));
            }
            Expression::Choice { condition, numbers } => {
                let [holds, done] = emit.labels();
                self.condition(emit, condition, depth, holds);
                self.expression(emit, &numbers[1], depth + 1);
                emit.jump(done);
                emit.bind(holds);
                self.expression(emit, &numbers[0], depth + 1);
                emit.bind(done);
            }
        }
    }

    /// ONE and TWO = the operands.
    fn operands(&mut self, emit: &mut Emitter, operands: &[Expression; 2], depth: usize) {
        self.expression(emit, &operands[0], depth + 1);
        if let Expression::Const(number) = operands[1] {
            emit.mov(ONE, Reg::R0);
            emit.constant(TWO, number);
            return;
        }
        let slot = self.operand_slot(emit, depth);
        emit.store(Width::D, Reg::R10, slot, Reg::R0);
        self.expression(emit, &operands[1], depth + 1);
        emit.mov(TWO, Reg::R0);
        emit.load(Width::D, ONE, Reg::R10, slot);
    }

    fn operand_slot(&mut self, emit: &mut Emitter, depth: usize) -> i16 {
        while self.operands.len() <= depth {
            self.operands.push(emit.alloc(8));
        }
        self.operands[depth]
    }

    /// Jumps if the condition holds.
    fn condition(&mut self, emit: &mut Emitter, condition: &Condition, depth: usize, to: Label) {
        self.operands(emit, &condition.operands, depth);
        let is_signed =
            matches!(condition.comparison, Comparison::SignedLess | Comparison::SignedLessOrEqual);
        if is_signed {
            extend_sign(emit, ONE, condition.size);
            extend_sign(emit, TWO, condition.size);
        }
        let cond = match (condition.comparison, condition.holds_if) {
            (Comparison::Equal, true) => Cond::Eq,
            (Comparison::Equal, false) => Cond::Ne,
            (Comparison::Less, true) => Cond::Lt,
            (Comparison::Less, false) => Cond::Ge,
            (Comparison::LessOrEqual, true) => Cond::Le,
            (Comparison::LessOrEqual, false) => Cond::Gt,
            (Comparison::SignedLess, true) => Cond::SLt,
            (Comparison::SignedLess, false) => Cond::SGe,
            (Comparison::SignedLessOrEqual, true) => Cond::SLe,
            (Comparison::SignedLessOrEqual, false) => Cond::SGt,
        };
        emit.jump_if(cond, ONE, TWO, to);
    }
}

/// R0 = the result of an operation on ONE and TWO, with any bytes above its size.
fn operate(emit: &mut Emitter, operation: Operation, size: u8) {
    let operation = match operation {
        Operation::Add => Alu::Add,
        Operation::Subtract => Alu::Sub,
        Operation::Multiply => Alu::Mul,
        Operation::And => Alu::And,
        Operation::Or => Alu::Or,
        Operation::Xor => Alu::Xor,
        Operation::ShiftLeft => Alu::Lsh,
        Operation::ShiftRight => Alu::Rsh,
        Operation::ShiftRightSigned => {
            extend_sign(emit, ONE, size);
            Alu::Arsh
        }
    };
    if matches!(operation, Alu::Lsh | Alu::Rsh | Alu::Arsh) {
        // As the CPU shifts by the low bits of the number.
        emit.alu(Alu::And, TWO, if size == 8 { 63 } else { 31 });
    }
    emit.mov(Reg::R0, ONE);
    emit.alu(operation, Reg::R0, TWO);
}

/// Extends the sign of a number of so many bytes.
fn extend_sign(emit: &mut Emitter, register: Reg, size: u8) {
    if size < 8 {
        let above = 64 - 8 * i32::from(size);
        emit.alu(Alu::Lsh, register, above);
        emit.alu(Alu::Arsh, register, above);
    }
}
