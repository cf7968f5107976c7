//! Variables: looks up those of other histograms by the hit's key, and sets the histogram's own in its entry.
//!
//! The lookups come before the hit counts, the own variables are set after that (`resolve_var_refs()`,
//! `hist_trigger_elt_update()`). A text or a stack is stored in the entry, and the variable is its address, as in the
//! kernel. A lookup therefore yields the text without a copy, and the reader sees its current content.

use super::{
    key::{copy_stack, copy_text},
    number::number,
    table::Search,
    update::{KeyPlace, Update, reference_at},
};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, MapRef, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    lang::hist::{Function as Compute, TEXT_MAX, Value},
    plan::hist::{COMM_SIZE, is_stack, is_text},
};

/// Looks up the variables of other histograms, in order. The hit ends if one of them is not set.
pub(super) fn look_up(emit: &mut Emitter, update: &Update<'_>, key: KeyPlace) {
    if !update.references.list.is_empty() {
        emit.use_scratch();
    }
    for (number, reference) in update.references.list.iter().enumerate() {
        let Some(owner) = reference.owner else { continue };
        let name = update.hist.references[number].name.clone().unwrap_or_default();
        emit.note(format!("${}", String::from_utf8_lossy(&name)));
        if reference.table.key_size > update.layout.key_size {
            // The kernel would compare arbitrary bytes after the key.
            emit.jump(update.out);
            return;
        }
        let map = MapRef::HistOwner(u16::try_from(owner).unwrap_or(u16::MAX));
        let search = Search { map, table: &reference.table, places: update.places, key };
        search.find(emit, update.out);
        search.entry(emit, Reg::R0, None);
        let (bits, bit) = (reference.set_bits as i16, 1i32 << reference.slot);
        if reference.once {
            emit.mov(Reg::R1, !bit);
            emit.atomic(Width::D, Atomic::And, Reg::R0, bits, Reg::R1);
        } else {
            emit.load(Width::D, Reg::R1, Reg::R0, bits);
        }
        emit.alu(Alu::And, Reg::R1, bit);
        emit.jump_if(Cond::Eq, Reg::R1, 0, update.out);
        emit.load(Width::D, Reg::R1, Reg::R0, reference.offset as i16);
        emit.store(Width::D, Reg::R7, reference_at(number), Reg::R1);
    }
}

/// Sets the variables of the entry in R9.
pub(super) fn set_variables(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    update: &Update<'_>,
) -> Result<(), LowerError> {
    let hist = update.hist;
    let mut bits = 0;
    let own = hist.fields[update.layout.sums..hist.values].iter().map(|value| (value, value));
    let made = hist.field_variables.iter().map(|(variable, value)| (variable, value));
    for (variable, value) in own.chain(made) {
        set_variable(emit, values, variable, value, update)?;
        bits |= 1 << variable.slot.at;
    }
    emit.constant(Reg::R1, bits);
    emit.atomic(Width::D, Atomic::OrOnly, Reg::R9, update.layout.set_bits() as i16, Reg::R1);
    Ok(())
}

/// Sets one variable of the entry in R9. References in the same hit see the new value.
pub(super) fn set_variable(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    variable: &Value,
    value: &Value,
    update: &Update<'_>,
) -> Result<(), LowerError> {
    let slot = variable.slot.at;
    let name = variable.variable.clone().unwrap_or_default();
    emit.note(format!("{} =", String::from_utf8_lossy(&name)));
    match update.layout.text_at(slot) {
        Some(at) if is_text(value) => text_variable(emit, values, value, at, update)?,
        Some(at) if is_stack(value) => stack_variable(emit, values, at, update),
        _ => number(emit, values, value, update)?,
    }
    emit.store(Width::D, Reg::R9, update.layout.slot(slot) as i16, Reg::R0);
    if let Some(number) = update.references.own(slot) {
        emit.use_scratch();
        emit.store(Width::D, Reg::R7, reference_at(number), Reg::R0);
    }
    Ok(())
}

/// R0 = the address of a text that was copied to the entry.
fn text_variable(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    at: usize,
    update: &Update<'_>,
) -> Result<(), LowerError> {
    let to = KeyPlace { base: Reg::R9, at: at as i16 };
    if value.function == Compute::Execname {
        let comm = update.layout.comm.ok_or(LowerError::NoData)?;
        emit.copy_words((Reg::R9, to.at), (Reg::R9, comm as i16), COMM_SIZE);
    } else {
        copy_text(emit, values, value, to, value.size.min(TEXT_MAX) as usize)?;
    }
    emit.address(Reg::R0, Reg::R9, at as i32);
    Ok(())
}

/// R0 = the address of a stack in the entry: its depth, then the addresses.
fn stack_variable(emit: &mut Emitter, values: &mut Values<'_>, at: usize, update: &Update<'_>) {
    let empty = emit.label();
    copy_stack(emit, values, KeyPlace { base: Reg::R9, at: at as i16 + 8 }, update);
    emit.mov(Reg::R1, Reg::R0);
    emit.jump_if(Cond::SGe, Reg::R1, 0, empty);
    emit.mov(Reg::R1, 0);
    emit.bind(empty);
    emit.alu(Alu::Rsh, Reg::R1, 3);
    emit.store(Width::D, Reg::R9, at as i16, Reg::R1);
    emit.address(Reg::R0, Reg::R9, at as i32);
}
