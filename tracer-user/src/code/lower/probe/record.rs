//! The record of a dynamic event: its values.

use tracer_abi::MAX_PAYLOAD;

use super::fetch;
use crate::{
    code::{
        asm::{Alu, Reg, Width},
        lower::{
            emitter::Emitter,
            output::{Code, LowerError, Needs},
        },
    },
    plan::probe::ProbePlan,
};

/// The length of a record is a multiple of this.
const ALIGNMENT: usize = 4;

/// Lowers a dynamic event's record to `tracer_record`.
pub(crate) fn record(plan: &ProbePlan) -> Result<Code, LowerError> {
    let size = plan.fixed.next_multiple_of(ALIGNMENT);
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    emit.mov(Reg::R7, Reg::R2);
    fetch::fetch_all(&mut emit, plan, true, |_, _| true)?;
    let varies = plan.is_variable();
    if varies {
        emit.note("whole length");
        fetch::bound_text(&mut emit);
        emit.mov(Reg::R1, Reg::R7);
        emit.alu(Alu::Add, Reg::R1, Reg::R8);
        for byte in 0..ALIGNMENT as i16 - 1 {
            emit.store(Width::B, Reg::R1, byte, 0);
        }
        emit.mov(Reg::R0, Reg::R8);
        emit.alu(Alu::Add, Reg::R0, ALIGNMENT as i32 - 1);
        emit.alu(Alu::And, Reg::R0, -(ALIGNMENT as i32));
    } else {
        for byte in plan.fixed..size {
            emit.store(Width::B, Reg::R7, byte as i16, 0);
        }
        emit.mov(Reg::R0, size as i32);
    }
    emit.exit();
    let function = emit.finish(tracer_abi::RECORD);
    Ok(Code { functions: vec![function], needs: Needs::default(), size: (!varies).then_some(size) })
}
