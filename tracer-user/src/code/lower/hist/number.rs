//! Numbers of histograms: fields, properties of the hit, and expressions, as `hist_fn_call()` computes them.

use super::{ADDRESS_AT, Compute, FieldClass, Known, LowerError, Value, place, variable::reference_at};
use crate::code::{
    asm::{Alu, Cond, Reg, Width},
    lower::Lower,
};

/// `HIST_DIV_SHIFT`: below `1 << HIST_DIV_SHIFT`, the kernel multiplies instead of dividing by a constant.
const SHIFT: i32 = 20;

impl Lower<'_> {
    /// R0 = the value.
    pub(super) fn number_of(&mut self, value: &Value, known: &Known<'_>) -> Result<(), LowerError> {
        match value.function {
            Compute::Number => {
                let field = value.field.as_ref().ok_or(LowerError::NoData)?;
                self.value(place(field))?;
                let bits = 64 - 8 * field.size as i32;
                if field.signed && bits > 0 {
                    self.asm.alu(Alu::Lsh, Reg::R0, bits);
                    self.asm.alu(Alu::Arsh, Reg::R0, bits);
                }
            }
            Compute::Count => self.asm.mov(Reg::R0, 1),
            Compute::Constant => self.asm.constant(Reg::R0, value.constant),
            Compute::Timestamp => {
                self.asm.load(Width::D, Reg::R0, Reg::R10, known.stamp.ok_or(LowerError::NoData)?);
            }
            Compute::Cpu => self.current_cpu(),
            Compute::Log2 => {
                self.operand(value, 0, known)?;
                self.log2();
            }
            Compute::Bucket => {
                self.operand(value, 0, known)?;
                self.asm.constant(Reg::R1, value.buckets);
                self.asm.alu(Alu::Div, Reg::R0, Reg::R1);
                self.asm.alu(Alu::Mul, Reg::R0, Reg::R1);
            }
            Compute::Negate => {
                self.operand(value, 0, known)?;
                self.asm.alu(Alu::Neg, Reg::R0, 0);
            }
            Compute::Plus => self.both(value, known, |lower| lower.asm.alu(Alu::Add, Reg::R0, Reg::R1))?,
            Compute::Minus => self.both(value, known, |lower| lower.asm.alu(Alu::Sub, Reg::R0, Reg::R1))?,
            Compute::Times => self.both(value, known, |lower| lower.asm.alu(Alu::Mul, Reg::R0, Reg::R1))?,
            Compute::Over => self.both(value, known, Self::divide)?,
            Compute::OverPower => {
                self.operand(value, 0, known)?;
                let exponent = divisor(value)?.trailing_zeros();
                self.asm.alu(Alu::Rsh, Reg::R0, exponent.cast_signed());
            }
            Compute::OverConstant => {
                self.operand(value, 0, known)?;
                self.asm.constant(Reg::R1, divisor(value)?);
                self.asm.alu(Alu::Div, Reg::R0, Reg::R1);
            }
            Compute::OverShift(multiplier) => {
                self.operand(value, 0, known)?;
                let (large, done) = (self.asm.label(), self.asm.label());
                self.jump_if(Cond::Ge, Reg::R0, 1 << SHIFT, large);
                self.asm.alu(Alu::Mul, Reg::R0, multiplier as i32);
                self.asm.alu(Alu::Add, Reg::R0, (1 << SHIFT) - 1);
                self.asm.alu(Alu::Rsh, Reg::R0, SHIFT);
                self.jump(done);
                self.bind(large);
                self.asm.constant(Reg::R1, divisor(value)?);
                self.asm.alu(Alu::Div, Reg::R0, Reg::R1);
                self.bind(done);
            }
            Compute::Nothing => self.asm.mov(Reg::R0, 0),
            Compute::Reference => {
                self.use_scratch();
                self.asm.load(Width::D, Reg::R0, Reg::R7, reference_at(value.reference));
            }
            Compute::Text | Compute::DynText | Compute::RelText | Compute::Stack => self.place_of(value)?,
            Compute::Comm | Compute::Execname | Compute::PtrText => return Err(LowerError::NoData),
        }
        Ok(())
    }

    /// R0 = the address of a text or a stack in the record, used as a number. The kernel does the same for such a field
    /// where it needs a number.
    fn place_of(&mut self, value: &Value) -> Result<(), LowerError> {
        let field = value.field.as_ref().ok_or(LowerError::NoData)?;
        if field.class == FieldClass::StaticString {
            self.needs_record()?;
            self.asm.address(Reg::R3, Reg::R6, field.offset as i32);
        } else {
            self.data_address(field)?;
        }
        // After the load from memory, the verifier treats it as a number.
        self.use_scratch();
        self.asm.store(Width::D, Reg::R7, ADDRESS_AT as i16, Reg::R3);
        self.asm.load(Width::D, Reg::R0, Reg::R7, ADDRESS_AT as i16);
        Ok(())
    }

    fn operand(&mut self, value: &Value, at: usize, known: &Known<'_>) -> Result<(), LowerError> {
        self.number_of(value.operands.get(at).ok_or(LowerError::NoData)?, known)
    }

    /// Computes both operands into R0 and R1, then emits `between`.
    fn both(&mut self, value: &Value, known: &Known<'_>, between: fn(&mut Self)) -> Result<(), LowerError> {
        self.operand(value, 0, known)?;
        let first = self.frame.take(8, 0);
        self.asm.store(Width::D, Reg::R10, first, Reg::R0);
        self.operand(value, 1, known)?;
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.load(Width::D, Reg::R0, Reg::R10, first);
        between(self);
        Ok(())
    }

    /// Division by zero yields all ones; in eBPF it yields 0.
    fn divide(&mut self) {
        let (zero, done) = (self.asm.label(), self.asm.label());
        self.jump_if(Cond::Eq, Reg::R1, 0, zero);
        self.asm.alu(Alu::Div, Reg::R0, Reg::R1);
        self.jump(done);
        self.bind(zero);
        self.asm.mov(Reg::R0, -1);
        self.bind(done);
    }

    /// R0 = the exponent of the next power of two, up to 64; 0 for 0.
    fn log2(&mut self) {
        let done = self.asm.label();
        self.asm.mov(Reg::R1, 0);
        self.jump_if(Cond::Le, Reg::R0, 1, done);
        self.asm.alu(Alu::Add, Reg::R0, -1);
        // Determines the number of bits in R0 by bisection.
        for step in [32, 16, 8, 4, 2, 1] {
            let small = self.asm.label();
            self.asm.mov(Reg::R2, Reg::R0);
            self.asm.alu(Alu::Rsh, Reg::R2, step);
            self.jump_if(Cond::Eq, Reg::R2, 0, small);
            self.asm.alu(Alu::Add, Reg::R1, step);
            self.asm.mov(Reg::R0, Reg::R2);
            self.bind(small);
        }
        self.asm.alu(Alu::Add, Reg::R1, 1);
        self.bind(done);
        self.asm.mov(Reg::R0, Reg::R1);
    }
}

/// The constant that a value is divided by.
fn divisor(value: &Value) -> Result<u64, LowerError> {
    let divisor = value.operands.get(1).map(|operand| operand.constant);
    divisor.filter(|divisor| *divisor != 0).ok_or(LowerError::NoData)
}
