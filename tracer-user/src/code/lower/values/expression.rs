//! Numbers that are computed.

use super::Values;
use crate::{
    code::{
        asm::{Alu, Cond, Label, Reg, Width},
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
            Expression::Arg(arg) => emit.load_context(Width::D, Reg::R0, 8 * usize::from(*arg)),
            Expression::Memory { arg, path, width } => {
                let width = Width::of(usize::from(*width)).unwrap_or(Width::D);
                self.memory.value(emit, *arg, path, 0, width);
            }
            Expression::Load { from, offset, width } => {
                self.expression(emit, from, depth + 1);
                let slot = self.operand_slot(emit, depth);
                emit.address(Reg::R3, Reg::R0, *offset);
                emit.read_kernel((Reg::R10, slot), i32::from(*width));
                let width = Width::of(usize::from(*width)).unwrap_or(Width::D);
                emit.load(width, Reg::R0, Reg::R10, slot);
            }
            Expression::Extended { of, size, signed } => {
                self.expression(emit, of, depth);
                let size = usize::from(*size);
                if *signed { emit.extend_sign(Reg::R0, size) } else { emit.truncate(size) }
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
        if matches!(condition.comparison, Comparison::SignedLess | Comparison::SignedLessOrEqual) {
            emit.extend_sign(ONE, usize::from(condition.size));
            emit.extend_sign(TWO, usize::from(condition.size));
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
            emit.extend_sign(ONE, usize::from(size));
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
