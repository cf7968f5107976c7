//! `tracer_trigger`: performs the actions of an event's triggers at a hit.
//!
//! Each trigger is a filter and an action; triggers run in the kernel's order. A text that several filters read is
//! fetched once. A limited count is exact on all CPUs: the code checks that it is positive, decrements it, and checks
//! the old value. If another CPU has made the same change in the meantime, the code increments the count again.

use std::mem::offset_of;

use tracer_abi::{Switches, halted, requested};

use super::{
    emitter::{Emitter, Uses},
    exits::{Exits, Next},
    filter::{Built, FilterLowering},
    output::{Code, LowerError, Needs},
    values::Values,
};
use crate::{
    code::asm::{Alu, Atomic, Cond, Function, Label, Reg, Width},
    event::Slot,
    plan::{
        filter::Filter,
        source::ProgramContext,
        trigger::{Action, Count, Trigger},
    },
};

/// Address of the switches, at the entry and in actions.
const SWITCHES: Reg = Reg::R4;
/// Address of the word that an action changes.
const WORD: Reg = Reg::R2;
/// Address of a trigger's count.
const COUNT: Reg = Reg::R5;

/// Prefix of the names of callbacks.
const CALLBACKS: &str = "trigger_";

/// Lowers an event's triggers to `tracer_trigger`.
///
/// # Errors
/// If the hook does not provide a value that a filter compares.
pub fn trigger(triggers: &[Trigger], context: &ProgramContext) -> Result<Code, LowerError> {
    let (_, uses) = lower(triggers, context, Uses::default())?;
    let (functions, uses) = lower(triggers, context, uses)?;
    Ok(Code { functions, needs: Needs { scratch: uses.scratch, flags: uses.flags, more: true }, size: None })
}

fn lower(
    triggers: &[Trigger],
    context: &ProgramContext,
    mut uses: Uses,
) -> Result<(Vec<Function>, Uses), LowerError> {
    let filters: Vec<Filter> = triggers.iter().filter_map(|trigger| trigger.filter.clone()).collect();
    let filtered = !filters.is_empty();
    // The union of the fields that the filters read; each filter is lowered separately.
    let all = Filter::Or(filters);
    let built = Built::of(context, filtered.then_some(&all), !triggers.is_empty());
    if built.is_some() {
        (uses.calls, uses.common) = (true, true);
    }
    let mut emit = Emitter::new(uses);
    let mut lower = FilterLowering::new(Values::for_filter(context, &all), uses);
    emit.prologue();
    let reloads = filtered || matches!(built, Some(Built::Probe(_)));
    let switches = reloads.then(|| emit.save(SWITCHES));
    // The requests to the template, which differ from hit to hit.
    let asks = triggers.iter().any(|trigger| bit(&trigger.action) != 0);
    let answer = asks.then(|| emit.save(0));
    let end = emit.label();
    if let Some(built) = built {
        lower.build(&mut emit, built, filtered.then_some(&all), end)?;
    }
    lower.start(&mut emit, &all);
    for trigger in triggers {
        let skip = emit.label();
        if let Some(filter) = &trigger.filter {
            let yes = emit.label();
            lower.branch(&mut emit, filter, Exits { yes, no: skip, next: Next::Yes })?;
            emit.bind(yes);
        }
        emit.note(trigger.action.to_string());
        if let Some(slot) = switches {
            emit.load(Width::D, SWITCHES, Reg::R10, slot);
        }
        act(&mut emit, trigger, answer, skip);
        emit.bind(skip);
    }
    emit.bind(end);
    match answer {
        Some(answer) => emit.load(Width::D, Reg::R0, Reg::R10, answer),
        None => emit.mov(Reg::R0, 0),
    }
    emit.exit();
    let (mut functions, uses) = lower.finish(emit, tracer_abi::TRIGGER);
    // The callbacks of the event's own filter need different names.
    if let Some((main, callbacks)) = functions.split_first_mut() {
        for callback in callbacks {
            callback.name.insert_str(0, CALLBACKS);
        }
        for (_, name) in &mut main.addresses {
            name.insert_str(0, CALLBACKS);
        }
    }
    Ok((functions, uses))
}

/// The bit that requests an action from the template; 0 if the action needs no template.
fn bit(action: &Action) -> u64 {
    match action {
        Action::Snapshot => requested::SNAPSHOT,
        Action::StackTrace => requested::STACK,
        Action::TraceOn | Action::TraceOff | Action::Event { .. } | Action::Hists { .. } => 0,
    }
}

/// Performs one trigger's action; jumps to `skip` if the action has no effect.
fn act(emit: &mut Emitter, trigger: &Trigger, answer: Option<i16>, skip: Label) {
    match &trigger.action {
        Action::TraceOn => turn_recording(emit, true, trigger.count, skip),
        Action::TraceOff => turn_recording(emit, false, trigger.count, skip),
        Action::Event { slot, enable } => turn_event(emit, *slot, *enable, trigger.count, skip),
        Action::Hists { places, enable } => {
            take(emit, trigger.count, skip);
            for place in places {
                let word = offset_of!(Switches, paused) + 4 * usize::from(*place);
                emit.store(Width::W, SWITCHES, word as i16, i32::from(!enable));
            }
        }
        Action::Snapshot | Action::StackTrace => {
            take(emit, trigger.count, skip);
            if let Some(answer) = answer {
                emit.load(Width::D, Reg::R0, Reg::R10, answer);
                emit.alu(Alu::Or, Reg::R0, bit(&trigger.action) as i32);
                emit.store(Width::D, Reg::R10, answer, Reg::R0);
            }
        }
    }
}

fn turn_recording(emit: &mut Emitter, on: bool, count: Option<Count>, skip: Label) {
    const OFF: i32 = halted::OFF.cast_signed();
    emit.address(WORD, SWITCHES, offset_of!(Switches, halted) as i32);
    emit.load(Width::W, Reg::R0, WORD, 0);
    emit.alu(Alu::And, Reg::R0, OFF);
    emit.jump_if(if on { Cond::Eq } else { Cond::Ne }, Reg::R0, 0, skip);
    take(emit, count, skip);
    let (operation, with) = if on { (Atomic::And, !OFF) } else { (Atomic::Or, OFF) };
    emit.mov(Reg::R0, with);
    emit.atomic(Width::W, operation, WORD, 0, Reg::R0);
    if count.is_some() {
        emit.alu(Alu::And, Reg::R0, OFF);
        emit.jump_if(if on { Cond::Ne } else { Cond::Eq }, Reg::R0, 0, skip);
        give_back(emit);
    }
}

fn turn_event(emit: &mut Emitter, slot: Slot, enable: bool, count: Option<Count>, skip: Label) {
    let wanted = i32::from(!enable);
    emit.address(WORD, SWITCHES, (offset_of!(Switches, soft) + 4 * slot.index()) as i32);
    emit.load(Width::W, Reg::R0, WORD, 0);
    emit.jump_if(Cond::Eq, Reg::R0, wanted, skip);
    if count.is_none() {
        emit.store(Width::W, WORD, 0, wanted);
        return;
    }
    take(emit, count, skip);
    emit.mov(Reg::R0, wanted);
    emit.atomic(Width::W, Atomic::Exchange, WORD, 0, Reg::R0);
    emit.jump32_if(Cond::Ne, Reg::R0, wanted, skip);
    give_back(emit);
}

/// Decrements a count, if there is one, and leaves its address in [`COUNT`]; jumps to `skip` if it is used up.
fn take(emit: &mut Emitter, count: Option<Count>, skip: Label) {
    let Some(count) = count else { return };
    let place = offset_of!(Switches, counts) + 8 * usize::from(count.place);
    emit.address(COUNT, SWITCHES, place as i32);
    if count.limited {
        emit.load(Width::D, Reg::R0, COUNT, 0);
        emit.jump_if(Cond::SLe, Reg::R0, 0, skip);
    }
    emit.mov(Reg::R0, -1);
    emit.atomic(Width::D, Atomic::Add, COUNT, 0, Reg::R0);
    if count.limited {
        emit.jump_if(Cond::SLe, Reg::R0, 0, skip);
    }
}

fn give_back(emit: &mut Emitter) {
    emit.mov(Reg::R0, 1);
    emit.atomic(Width::D, Atomic::Add, COUNT, 0, Reg::R0);
}
