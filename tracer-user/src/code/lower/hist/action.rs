//! Actions: the values that `onmax()` and `onchange()` track, saved variables, snapshots, synthetic events.
//!
//! The tracked value is replaced by compare-and-exchange, so that a hit on one CPU never replaces a greater value of
//! another CPU. Saving locks the entry, so that the saved values belong to the tracked value. Like every loop in a
//! program, the attempts to lock are bounded. A hit that does not get the lock (an interrupt during the save of another
//! hit) saves anyway.

use std::mem::offset_of;

use tracer_abi::{Switches, control};

use super::{
    control::control_record,
    update::{KeyPlace, PARAMS_AT, Update, reference_at},
    variable::set_variable,
};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, MapRef, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    lang::hist::action::{Action, ActionKind, Handler},
    plan::hist::{COMM_SIZE, snapshot},
};

/// Number of attempts at a lock or an exchange.
const TRIES: i32 = 128;

/// Name of the function that emits the synthetic event of the action with this number.
pub fn emission(action: usize) -> String {
    format!("tracer_emit_{action}")
}

/// Lowers one action, for the entry in R9.
pub(super) fn action(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    number: usize,
    action: &Action,
    update: &Update<'_>,
    key: KeyPlace,
) -> Result<(), LowerError> {
    let (tracked, skip) = match &action.handler {
        Handler::Match { .. } => return perform(emit, values, number, action, update, key),
        // The condition under which the action has no effect.
        Handler::Max(tracked) => (tracked, Cond::Le),
        Handler::Change(tracked) => (tracked, Cond::Eq),
    };
    emit.note(String::from_utf8_lossy(&tracked.text));
    let (old, value) = (update.layout.slot(tracked.slot) as i16, reference_at(tracked.reference));
    let [lost, over, again, won] = emit.labels();
    emit.use_scratch();
    emit.load(Width::D, Reg::R1, Reg::R7, value);
    emit.load(Width::D, Reg::R0, Reg::R9, old);
    emit.jump_if(skip, Reg::R1, Reg::R0, over);
    let lock = update.layout.lock.filter(|_| action.kind == ActionKind::Save);
    let lock = lock.map(|at| (at as i16, take_lock(emit, Reg::R9, at as i16)));
    emit.load(Width::D, Reg::R1, Reg::R7, value);
    emit.load(Width::D, Reg::R0, Reg::R9, old);
    emit.mov(Reg::R3, TRIES);
    emit.bind(again);
    emit.jump_if(skip, Reg::R1, Reg::R0, lost);
    emit.mov(Reg::R2, Reg::R0);
    emit.atomic(Width::D, Atomic::CompareExchange, Reg::R9, old, Reg::R1);
    emit.jump_if(Cond::Eq, Reg::R0, Reg::R2, won);
    emit.alu(Alu::Add, Reg::R3, -1);
    emit.jump_if(Cond::Ne, Reg::R3, 0, again);
    emit.store(Width::D, Reg::R9, old, Reg::R1);
    emit.bind(won);
    perform(emit, values, number, action, update, key)?;
    emit.bind(lost);
    if let Some((at, got)) = lock {
        release_lock(emit, Reg::R9, at, got);
    }
    emit.bind(over);
    Ok(())
}

fn perform(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    number: usize,
    action: &Action,
    update: &Update<'_>,
    key: KeyPlace,
) -> Result<(), LowerError> {
    match action.kind {
        ActionKind::Save => {
            for (variable, value) in &update.hist.saved {
                set_variable(emit, values, variable, value, update)?;
            }
            Ok(())
        }
        ActionKind::Snapshot => {
            snapshot(emit, action, update, key);
            Ok(())
        }
        ActionKind::Trace => {
            if update.emits.get(number) == Some(&true) {
                emit_event(emit, number, action, update);
            }
            Ok(())
        }
    }
}

/// Calls the function that emits the synthetic event.
fn emit_event(emit: &mut Emitter, number: usize, action: &Action, update: &Update<'_>) {
    emit.note(emission(number));
    emit.use_scratch();
    for (param, reference) in action.references.iter().enumerate() {
        emit.load(Width::D, Reg::R1, Reg::R7, reference_at(*reference));
        emit.store(Width::D, Reg::R7, (PARAMS_AT + 8 * param) as i16, Reg::R1);
    }
    emit.address(Reg::R1, Reg::R7, PARAMS_AT as i32);
    match update.hook_context {
        Some(context) => emit.load(Width::D, Reg::R2, Reg::R10, context),
        None => emit.mov(Reg::R2, Reg::R6),
    }
    emit.call_function(emission(number));
}

/// Locks a word; returns the stack offset of a word that is 0 if the lock was taken.
fn take_lock(emit: &mut Emitter, base: Reg, at: i16) -> i16 {
    let (again, done, got) = (emit.label(), emit.label(), emit.alloc(8));
    emit.mov(Reg::R3, TRIES);
    emit.bind(again);
    emit.mov(Reg::R0, 0);
    emit.mov(Reg::R1, 1);
    emit.atomic(Width::D, Atomic::CompareExchange, base, at, Reg::R1);
    emit.jump_if(Cond::Eq, Reg::R0, 0, done);
    emit.alu(Alu::Add, Reg::R3, -1);
    emit.jump_if(Cond::Ne, Reg::R3, 0, again);
    emit.bind(done);
    emit.store(Width::D, Reg::R10, got, Reg::R0);
    got
}

fn release_lock(emit: &mut Emitter, base: Reg, at: i16, got: i16) {
    let over = emit.label();
    emit.load(Width::D, Reg::R1, Reg::R10, got);
    emit.jump_if(Cond::Ne, Reg::R1, 0, over);
    emit.atomic(Width::D, Atomic::Exchange, base, at, Reg::R1);
    emit.bind(over);
}

/// Stores the value and key of the snapshot and requests it, unless the last snapshot already covers the value
/// (`cond_snapshot_update()`).
fn snapshot(emit: &mut Emitter, action: &Action, update: &Update<'_>, key: KeyPlace) {
    const STATE: Reg = Reg::R5;
    let Some(tracked) = action.tracked() else { return };
    let skip = if matches!(action.handler, Handler::Max(_)) { Cond::Le } else { Cond::Eq };
    let (as_before, over) = (emit.label(), emit.label());
    emit.map_value(STATE, MapRef::HistSnapshot);
    let got = take_lock(emit, STATE, snapshot::LOCK as i16);
    emit.load(Width::D, Reg::R1, Reg::R7, reference_at(tracked.reference));
    emit.load(Width::D, Reg::R2, STATE, snapshot::VALUE as i16);
    emit.jump_if(skip, Reg::R1, Reg::R2, as_before);
    emit.store(Width::D, STATE, snapshot::VALUE as i16, Reg::R1);
    emit.store(Width::D, STATE, snapshot::TAKEN as i16, 1);
    emit.copy_words((STATE, snapshot::KEY as i16), (key.base, key.at), update.layout.key_size);
    if let Some(comm) = update.layout.comm {
        emit.copy_words((STATE, snapshot::COMM as i16), (Reg::R9, comm as i16), COMM_SIZE);
    }
    release_lock(emit, STATE, snapshot::LOCK as i16, got);
    control_record(emit, control::SNAPSHOT, (offset_of!(Switches, snapshot) as i16, 1));
    emit.jump(over);
    emit.bind(as_before);
    release_lock(emit, STATE, snapshot::LOCK as i16, got);
    emit.bind(over);
}
