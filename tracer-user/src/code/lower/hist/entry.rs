//! The entry of a key: finds or creates it, and adds to its sums.
//!
//! An entry of one CPU is created from zeroes on the stack, with the task's name. An entry that all CPUs share is
//! created from an empty value, and the hit that created it then writes the name.

use super::{
    number::number,
    update::{KeyPlace, Update, copy_comm},
};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, MapRef, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    plan::source::ProgramContext,
};

/// `BPF_NOEXIST`
const NO_EXIST: i32 = 1;

/// Finds or creates the entry and adds to its sums. R9 = the entry, if CPUs share it.
pub(super) fn count(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    update: &Update<'_>,
    key: KeyPlace,
) -> Result<(), LowerError> {
    let mut addends = Vec::new();
    for value in &update.hist.fields[1..update.layout.sums] {
        emit.note(format!("value {}", String::from_utf8_lossy(&value.shown_name())));
        number(emit, values, value, update)?;
        let slot = emit.alloc(8);
        emit.store(Width::D, Reg::R10, slot, Reg::R0);
        addends.push(slot);
    }
    if update.layout.is_shared() {
        shared_entry(emit, values, update, key);
        add_for_all(emit, update, &addends);
    } else {
        own_entry(emit, values, update, key);
        add(emit, update, &addends);
    }
    Ok(())
}

/// R0 = this CPU's entry.
fn own_entry(emit: &mut Emitter, values: &mut Values<'_>, update: &Update<'_>, key: KeyPlace) {
    let layout = update.layout;
    let found = emit.label();
    emit.note("entry");
    find(emit, key);
    emit.jump_if(Cond::Ne, Reg::R0, 0, found);
    let new = emit.alloc(layout.size);
    for word in (0..layout.size as i16).step_by(8) {
        emit.store(Width::D, Reg::R10, new + word, 0);
    }
    if let Some(comm) = layout.comm {
        write_task_name(emit, values, Reg::R10, new + comm as i16);
    }
    emit.map(Reg::R1, MapRef::HistTable);
    emit.address(Reg::R2, key.base, i32::from(key.at));
    emit.address(Reg::R3, Reg::R10, i32::from(new));
    emit.mov(Reg::R4, NO_EXIST);
    emit.call(Helper::MapUpdateElem);
    find(emit, key);
    emit.jump_if(Cond::Ne, Reg::R0, 0, found);
    full(emit);
    emit.bind(found);
}

/// R9 = the entry that all CPUs share.
fn shared_entry(emit: &mut Emitter, values: &mut Values<'_>, update: &Update<'_>, key: KeyPlace) {
    let (made, found, done) = (emit.alloc(8), emit.label(), emit.label());
    emit.note("entry");
    find(emit, key);
    emit.jump_if(Cond::Ne, Reg::R0, 0, found);
    emit.map(Reg::R1, MapRef::HistTable);
    emit.address(Reg::R2, key.base, i32::from(key.at));
    emit.map_value(Reg::R3, MapRef::HistEmpty);
    emit.mov(Reg::R4, NO_EXIST);
    emit.call(Helper::MapUpdateElem);
    emit.store(Width::D, Reg::R10, made, Reg::R0);
    find(emit, key);
    let Some(comm) = update.layout.comm else {
        emit.jump_if(Cond::Ne, Reg::R0, 0, found);
        full(emit);
        emit.bind(found);
        emit.mov(Reg::R9, Reg::R0);
        return;
    };
    let there = emit.label();
    emit.jump_if(Cond::Ne, Reg::R0, 0, there);
    full(emit);
    emit.bind(there);
    emit.mov(Reg::R9, Reg::R0);
    emit.load(Width::D, Reg::R1, Reg::R10, made);
    emit.jump_if(Cond::Ne, Reg::R1, 0, done);
    write_task_name(emit, values, Reg::R9, comm as i16);
    emit.jump(done);
    emit.bind(found);
    emit.mov(Reg::R9, Reg::R0);
    emit.bind(done);
}

/// Counts a drop and exits.
fn full(emit: &mut Emitter) {
    emit.note("full");
    emit.map_value(Reg::R1, MapRef::HistDrops);
    emit.mov(Reg::R2, 1);
    emit.atomic(Width::D, Atomic::AddOnly, Reg::R1, 0, Reg::R2);
    emit.mov(Reg::R0, 0);
    emit.exit();
}

fn add(emit: &mut Emitter, update: &Update<'_>, addends: &[i16]) {
    for sum in 0..update.layout.sums {
        let at = 8 * sum as i16;
        emit.load(Width::D, Reg::R1, Reg::R0, at);
        match sum.checked_sub(1) {
            None => emit.alu(Alu::Add, Reg::R1, 1),
            Some(value) => {
                emit.load(Width::D, Reg::R2, Reg::R10, addends[value]);
                emit.alu(Alu::Add, Reg::R1, Reg::R2);
            }
        }
        emit.store(Width::D, Reg::R0, at, Reg::R1);
    }
}

fn add_for_all(emit: &mut Emitter, update: &Update<'_>, addends: &[i16]) {
    for sum in 0..update.layout.sums {
        match sum.checked_sub(1) {
            None => emit.mov(Reg::R1, 1),
            Some(value) => emit.load(Width::D, Reg::R1, Reg::R10, addends[value]),
        }
        let off = 8 * sum as i16;
        emit.atomic(Width::D, Atomic::AddOnly, Reg::R9, off, Reg::R1);
    }
}

/// R0 = the entry of the key.
fn find(emit: &mut Emitter, key: KeyPlace) {
    emit.map(Reg::R1, MapRef::HistTable);
    emit.address(Reg::R2, key.base, i32::from(key.at));
    emit.call(Helper::MapLookupElem);
}

/// Writes the name of the current task; the idle task has the name that the kernel's histograms use
/// (`save_comm()`).
fn write_task_name(emit: &mut Emitter, values: &mut Values<'_>, base: Reg, at: i16) {
    const IDLE: [u8; 8] = *b"<idle>\0\0";
    let (busy, done) = (emit.label(), emit.label());
    if *values.context() == ProgramContext::Inject {
        emit.use_common();
        emit.mov(Reg::R0, Reg::R8);
        emit.alu(Alu::Rsh, Reg::R0, 32);
    } else {
        emit.call(Helper::GetCurrentPidTgid);
    }
    emit.jump32_if(Cond::Ne, Reg::R0, 0, busy);
    emit.constant(Reg::R1, u64::from_le_bytes(IDLE));
    emit.store(Width::D, base, at, Reg::R1);
    emit.jump(done);
    emit.bind(busy);
    copy_comm(emit, values, KeyPlace { base, at });
    emit.bind(done);
}
