//! Numbers of histograms: fields, properties of the hit, and expressions, as `hist_fn_call()` computes them.

use super::update::{ADDRESS_AT, Update, data_address, place, reference_at};
use crate::{
    code::{
        asm::{Alu, Cond, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    lang::hist::{Function as Compute, Value},
};

/// `HIST_DIV_SHIFT`: below `1 << HIST_DIV_SHIFT`, the kernel multiplies instead of dividing by a constant.
const SHIFT: i32 = 20;

/// R0 = the value.
pub(super) fn number(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    update: &Update<'_>,
) -> Result<(), LowerError> {
    match value.function {
        Compute::Number => {
            let field = value.field.as_ref().ok_or(LowerError::NoData)?;
            values.value(emit, place(field))?;
            if field.signed {
                emit.extend_sign(Reg::R0, field.size);
            }
        }
        Compute::Count => emit.mov(Reg::R0, 1),
        Compute::Constant => emit.constant(Reg::R0, value.constant),
        Compute::Timestamp => {
            emit.load(Width::D, Reg::R0, Reg::R10, update.stamp.ok_or(LowerError::NoData)?);
        }
        Compute::Cpu => values.current_cpu(emit),
        Compute::Log2 => {
            operand(emit, values, value, 0, update)?;
            log2(emit);
        }
        Compute::Bucket => {
            operand(emit, values, value, 0, update)?;
            emit.constant(Reg::R1, value.buckets);
            emit.alu(Alu::Div, Reg::R0, Reg::R1);
            emit.alu(Alu::Mul, Reg::R0, Reg::R1);
        }
        Compute::Negate => {
            operand(emit, values, value, 0, update)?;
            emit.alu(Alu::Neg, Reg::R0, 0);
        }
        Compute::Plus => both(emit, values, value, update, |emit| emit.alu(Alu::Add, Reg::R0, Reg::R1))?,
        Compute::Minus => both(emit, values, value, update, |emit| emit.alu(Alu::Sub, Reg::R0, Reg::R1))?,
        Compute::Times => both(emit, values, value, update, |emit| emit.alu(Alu::Mul, Reg::R0, Reg::R1))?,
        Compute::Over => both(emit, values, value, update, divide)?,
        Compute::OverPower => {
            operand(emit, values, value, 0, update)?;
            let exponent = divisor(value)?.trailing_zeros();
            emit.alu(Alu::Rsh, Reg::R0, exponent.cast_signed());
        }
        Compute::OverConstant => {
            operand(emit, values, value, 0, update)?;
            emit.constant(Reg::R1, divisor(value)?);
            emit.alu(Alu::Div, Reg::R0, Reg::R1);
        }
        Compute::OverShift(multiplier) => {
            operand(emit, values, value, 0, update)?;
            let [large, done] = emit.labels();
            emit.jump_if(Cond::Ge, Reg::R0, 1 << SHIFT, large);
            emit.alu(Alu::Mul, Reg::R0, multiplier as i32);
            emit.alu(Alu::Add, Reg::R0, (1 << SHIFT) - 1);
            emit.alu(Alu::Rsh, Reg::R0, SHIFT);
            emit.jump(done);
            emit.bind(large);
            emit.constant(Reg::R1, divisor(value)?);
            emit.alu(Alu::Div, Reg::R0, Reg::R1);
            emit.bind(done);
        }
        Compute::Nothing => emit.mov(Reg::R0, 0),
        Compute::Reference => {
            emit.use_scratch();
            emit.load(Width::D, Reg::R0, Reg::R7, reference_at(value.reference));
        }
        Compute::Text | Compute::DynText | Compute::RelText | Compute::Stack => {
            address_as_number(emit, values, value)?;
        }
        Compute::Comm | Compute::Execname | Compute::PtrText => return Err(LowerError::NoData),
    }
    Ok(())
}

/// R0 = the address of a text or a stack in the record, used as a number. The kernel does the same for such a field
/// where it needs a number.
fn address_as_number(emit: &mut Emitter, values: &mut Values<'_>, value: &Value) -> Result<(), LowerError> {
    let field = value.field.as_ref().ok_or(LowerError::NoData)?;
    data_address(emit, values, field)?;
    // After the load from memory, the verifier treats it as a number.
    emit.use_scratch();
    emit.store(Width::D, Reg::R7, ADDRESS_AT as i16, Reg::R3);
    emit.load(Width::D, Reg::R0, Reg::R7, ADDRESS_AT as i16);
    Ok(())
}

fn operand(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    at: usize,
    update: &Update<'_>,
) -> Result<(), LowerError> {
    number(emit, values, value.operands.get(at).ok_or(LowerError::NoData)?, update)
}

/// Computes both operands into R0 and R1, then emits `between`.
fn both(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    update: &Update<'_>,
    between: fn(&mut Emitter),
) -> Result<(), LowerError> {
    operand(emit, values, value, 0, update)?;
    let first = emit.save(Reg::R0);
    operand(emit, values, value, 1, update)?;
    emit.mov(Reg::R1, Reg::R0);
    emit.load(Width::D, Reg::R0, Reg::R10, first);
    between(emit);
    Ok(())
}

/// Division by zero yields all ones; in eBPF it yields 0.
fn divide(emit: &mut Emitter) {
    let [zero, done] = emit.labels();
    emit.jump_if(Cond::Eq, Reg::R1, 0, zero);
    emit.alu(Alu::Div, Reg::R0, Reg::R1);
    emit.jump(done);
    emit.bind(zero);
    emit.mov(Reg::R0, -1);
    emit.bind(done);
}

/// R0 = the exponent of the next power of two, up to 64; 0 for 0.
fn log2(emit: &mut Emitter) {
    let done = emit.label();
    emit.mov(Reg::R1, 0);
    emit.jump_if(Cond::Le, Reg::R0, 1, done);
    emit.alu(Alu::Add, Reg::R0, -1);
    // Determines the number of bits in R0 by bisection.
    for step in [32, 16, 8, 4, 2, 1] {
        let small = emit.label();
        emit.mov(Reg::R2, Reg::R0);
        emit.alu(Alu::Rsh, Reg::R2, step);
        emit.jump_if(Cond::Eq, Reg::R2, 0, small);
        emit.alu(Alu::Add, Reg::R1, step);
        emit.mov(Reg::R0, Reg::R2);
        emit.bind(small);
    }
    emit.alu(Alu::Add, Reg::R1, 1);
    emit.bind(done);
    emit.mov(Reg::R0, Reg::R1);
}

/// The constant that a value is divided by.
fn divisor(value: &Value) -> Result<u64, LowerError> {
    let divisor = value.operands.get(1).map(|operand| operand.constant);
    divisor.filter(|divisor| *divisor != 0).ok_or(LowerError::NoData)
}
