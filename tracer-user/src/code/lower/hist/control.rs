//! Control records: messages to user space in the CPU's ring buffer of such records.

use crate::code::{
    asm::{Cond, Helper, Label, MapRef, Reg, Width},
    lower::emitter::Emitter,
};

/// `BPF_RB_FORCE_WAKEUP`
const FORCE_WAKEUP: i32 = 2;

/// Writes a control record and wakes the reader; jumps to `lost` if there is no space.
pub(super) fn control_record(emit: &mut Emitter, kind: u16, lost: Label) {
    let (cpu, record) = (emit.alloc(8), emit.alloc(16));
    emit.call(Helper::KtimeGetNs);
    emit.store(Width::D, Reg::R10, record, Reg::R0);
    emit.store(Width::D, Reg::R10, record + 8, i32::from(kind));
    emit.call(Helper::GetSmpProcessorId);
    emit.store(Width::D, Reg::R10, cpu, Reg::R0);
    emit.map(Reg::R1, MapRef::Controls);
    emit.address(Reg::R2, Reg::R10, i32::from(cpu));
    emit.call(Helper::MapLookupElem);
    emit.jump_if(Cond::Eq, Reg::R0, 0, lost);
    emit.mov(Reg::R1, Reg::R0);
    emit.address(Reg::R2, Reg::R10, i32::from(record));
    emit.mov(Reg::R3, 16);
    emit.mov(Reg::R4, FORCE_WAKEUP);
    emit.call(Helper::RingbufOutput);
    emit.jump_if(Cond::Ne, Reg::R0, 0, lost);
}
