//! Control records: messages to user space in the CPU's ring.

use crate::code::{
    asm::{Cond, Helper, Label, MapRef, Reg, Width},
    lower::emitter::Emitter,
};

/// Writes a control record to the CPU's ring; jumps to `lost` if the ring is full.
pub(super) fn control_record(emit: &mut Emitter, kind: u16, wake: i32, lost: Label) {
    let (cpu, record) = (emit.alloc(8), emit.alloc(16));
    emit.call(Helper::KtimeGetNs);
    emit.store(Width::D, Reg::R10, record, Reg::R0);
    emit.store(Width::D, Reg::R10, record + 8, i32::from(kind));
    emit.call(Helper::GetSmpProcessorId);
    emit.store(Width::D, Reg::R10, cpu, Reg::R0);
    emit.map(Reg::R1, MapRef::Rings);
    emit.address(Reg::R2, Reg::R10, i32::from(cpu));
    emit.call(Helper::MapLookupElem);
    emit.jump_if(Cond::Eq, Reg::R0, 0, lost);
    emit.mov(Reg::R1, Reg::R0);
    emit.address(Reg::R2, Reg::R10, i32::from(record));
    emit.mov(Reg::R3, 16);
    emit.mov(Reg::R4, wake);
    emit.call(Helper::RingbufOutput);
    emit.jump_if(Cond::Ne, Reg::R0, 0, lost);
}
