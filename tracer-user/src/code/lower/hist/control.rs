//! Control records: messages to user space in the CPU's ring buffer of such records.

use crate::code::{
    asm::{Cond, Helper, MapRef, Reg, Width},
    lower::emitter::Emitter,
};

/// `BPF_RB_FORCE_WAKEUP`
const FORCE_WAKEUP: i32 = 2;

/// Writes a control record and wakes the reader. If there is no space, sets a word of the switches: its offset and its
/// value.
pub(super) fn control_record(emit: &mut Emitter, kind: u16, (word, if_lost): (i16, i32)) {
    let [lost, done] = emit.labels();
    let (cpu, record) = (emit.alloc(8), emit.alloc(16));
    emit.call(Helper::KtimeGetNs);
    emit.store(Width::D, Reg::R10, record, Reg::R0);
    emit.store(Width::D, Reg::R10, record + 8, i32::from(kind));
    emit.call(Helper::GetSmpProcessorId);
    emit.store(Width::D, Reg::R10, cpu, Reg::R0);
    emit.look_up(MapRef::Controls, cpu);
    emit.jump_if(Cond::Eq, Reg::R0, 0, lost);
    emit.mov(Reg::R1, Reg::R0);
    emit.address(Reg::R2, Reg::R10, i32::from(record));
    emit.mov(Reg::R3, 16);
    emit.mov(Reg::R4, FORCE_WAKEUP);
    emit.call(Helper::RingbufOutput);
    emit.jump_if(Cond::Eq, Reg::R0, 0, done);
    emit.bind(lost);
    emit.map_value(Reg::R1, MapRef::Switches);
    emit.store(Width::W, Reg::R1, word, if_lost);
    emit.bind(done);
}
