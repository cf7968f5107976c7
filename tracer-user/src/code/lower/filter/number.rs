//! Comparisons of numbers, addresses and the current CPU.

use crate::{
    code::{
        asm::{Alu, Cond, Operand, Reg},
        lower::{emitter::Emitter, exits::Exits, output::LowerError, values::Values},
    },
    plan::filter::{NumberOp, Place},
};

pub(super) fn number(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    place: Place,
    (signed, op, value): (bool, NumberOp, u64),
    exits: Exits,
) -> Result<(), LowerError> {
    let size = usize::from(place.size);
    emit.note(format!("{} at {}: {op} {:#x}", kind(size, signed), place.offset, value));
    values.value(emit, place)?;
    let bits = 8 * size as u32;
    let value = if size < 8 { value & ((1 << bits) - 1) } else { value };
    let cond = condition(op, signed);
    // Equality and bit tests ignore the sign.
    let signed = signed && matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe);
    match size {
        1 | 2 => {
            let mut value = value as i32;
            if signed {
                emit.alu32(Alu::Lsh, Reg::R0, 32 - bits as i32);
                emit.alu32(Alu::Arsh, Reg::R0, 32 - bits as i32);
                value = value << (32 - bits) >> (32 - bits);
            }
            exits.decide32(emit, cond, Reg::R0, Operand::Imm(value));
        }
        4 => exits.decide32(emit, cond, Reg::R0, Operand::Imm(value as i32)),
        _ => {
            let value = emit.operand(value);
            exits.decide(emit, cond, Reg::R0, value);
        }
    }
    Ok(())
}

pub(super) fn function_range(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    place: Place,
    (low, high): (u64, u64),
    exits: Exits,
) -> Result<(), LowerError> {
    emit.note(format!("address at {}: {low:#x} to {high:#x}", place.offset));
    values.value(emit, place)?;
    emit.constant(Reg::R5, low);
    emit.jump_if(Cond::Lt, Reg::R0, Reg::R5, exits.no);
    emit.constant(Reg::R5, high);
    exits.decide(emit, Cond::Lt, Reg::R0, Operand::Reg(Reg::R5));
    Ok(())
}

pub(super) fn cpu(emit: &mut Emitter, values: &mut Values<'_>, op: NumberOp, value: i32, exits: Exits) {
    emit.note(format!("CPU {op} {value}"));
    if op == NumberOp::And {
        // The kernel parses `CPU & n` and never finds it true.
        exits.go(emit, false);
        return;
    }
    values.current_cpu(emit);
    exits.decide32(emit, condition(op, true), Reg::R0, Operand::Imm(value));
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
