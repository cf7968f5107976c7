//! The record of a dynamic event: its values, and for an event probe first the record that they are read from.

use tracer_abi::{MAX_PAYLOAD, STAMP_SIZE};

use super::fetch;
use crate::{
    code::{
        asm::{Alu, Reg, Width},
        lower::{
            emitter::Emitter,
            image,
            output::{Code, LowerError, Needs},
        },
    },
    plan::probe::ProbePlan,
};

/// The length of a record is a multiple of this.
const ALIGNMENT: usize = 4;

/// Lowers a dynamic event's record to `tracer_record`.
pub(in crate::code::lower) fn record(plan: &ProbePlan) -> Result<Code, LowerError> {
    let size = plan.fixed.next_multiple_of(ALIGNMENT);
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let mut emit = Emitter::with_calls();
    emit.mov(Reg::R6, Reg::R1);
    emit.mov(Reg::R7, Reg::R2);
    if let Some(base) = &plan.base {
        emit.load(Width::D, Reg::R8, Reg::R7, 0);
        image::base_record(&mut emit, base, STAMP_SIZE, true)?;
    }
    fetch::fetch_all(&mut emit, plan, true, |_, _| true)?;
    // With a base record, the record is built in memory instead of in a ring, because the base record needs space after
    // it.
    let varies = plan.is_variable() || plan.base.is_some();
    if varies && !plan.is_variable() {
        emit.mov(Reg::R8, plan.fixed as i32);
    }
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
