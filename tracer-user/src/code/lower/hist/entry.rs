//! The entry of a key: finds or makes it, and adds to its sums. The hit that makes it writes the task's name.

use super::{
    number::number,
    table::Search,
    update::{KeyPlace, Update},
};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, MapRef, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    plan::source::ProgramContext,
};

/// Finds or makes the entry and adds to its sums. R9 = the entry.
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
        addends.push(emit.save(Reg::R0));
    }
    entry(emit, values, update, key);
    add(emit, update, &addends);
    Ok(())
}

/// R9 = the entry; this CPU's copy, if each CPU has one.
fn entry(emit: &mut Emitter, values: &Values<'_>, update: &Update<'_>, key: KeyPlace) {
    let search = Search { map: MapRef::HistTable, table: update.table, places: update.places, key };
    let cpu = (!update.layout.is_shared()).then(|| {
        emit.call(Helper::GetSmpProcessorId);
        (emit.save(Reg::R0), update.out)
    });
    let (none, done) = (emit.label(), emit.label());
    emit.note("entry");
    search.leave_if_closed(emit, update.out);
    search.find_or_make(emit, none, |emit, number| {
        if let Some(comm) = update.layout.comm {
            emit.load(Width::D, Reg::R4, Reg::R10, number);
            emit.alu(Alu::And, Reg::R4, update.table.entries.cast_signed() - 1);
            search.entry(emit, Reg::R9, cpu);
            write_task_name(emit, values, Reg::R9, comm as i16);
        }
    });
    search.entry(emit, Reg::R9, cpu);
    emit.jump(done);
    emit.bind(none);
    full(emit);
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

/// Adds to the sums of the entry in R9.
fn add(emit: &mut Emitter, update: &Update<'_>, addends: &[i16]) {
    for sum in 0..update.layout.sums {
        match sum.checked_sub(1) {
            None => emit.mov(Reg::R1, 1),
            Some(value) => emit.load(Width::D, Reg::R1, Reg::R10, addends[value]),
        }
        let at = 8 * sum as i16;
        if update.is_atomic {
            emit.atomic(Width::D, Atomic::AddOnly, Reg::R9, at, Reg::R1);
        } else {
            emit.load(Width::D, Reg::R2, Reg::R9, at);
            emit.alu(Alu::Add, Reg::R2, Reg::R1);
            emit.store(Width::D, Reg::R9, at, Reg::R2);
        }
    }
}

/// Writes the name of the current task; the idle task has the name that the kernel's histograms use
/// (`save_comm()`).
fn write_task_name(emit: &mut Emitter, values: &Values<'_>, base: Reg, at: i16) {
    const IDLE: [u8; 8] = *b"<idle>\0\0";
    let (busy, done) = (emit.label(), emit.label());
    if *values.context() == ProgramContext::Inject {
        emit.uses.common = true;
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
    values.copy_comm(emit, (base, at));
    emit.bind(done);
}
