//! `tracer_trigger`: performs the actions of an event's triggers at a hit.
//!
//! Each trigger is a filter and an action; triggers run in the kernel's order. A text that several filters read is
//! fetched once. Taking from a count has three steps, so that it is exact on all CPUs: check that some are left, take
//! one, check that it was there. A CPU that takes one, but finds that another CPU has changed the word in the meantime,
//! gives it back.

use std::mem::offset_of;

use tracer_abi::{Switches, asked, halted};

use super::{Code, Exits, Lower, LowerError, Needs, Next, Uses, memory::Memory, text};
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
pub fn trigger(triggers: &[Trigger], hook: &ProgramContext) -> Result<Code, LowerError> {
    let mut uses = Uses::default();
    // As for filters, the first pass finds out what is used.
    lower_triggers(triggers, hook, &mut uses)?;
    let functions = lower_triggers(triggers, hook, &mut uses)?;
    Ok(Code { functions, needs: Needs { scratch: uses.scratch, flags: uses.flags, more: true }, size: None })
}

fn lower_triggers(
    triggers: &[Trigger],
    hook: &ProgramContext,
    uses: &mut Uses,
) -> Result<Vec<Function>, LowerError> {
    let mut lower = Lower::new(hook, *uses);
    let filters: Vec<Filter> = triggers.iter().filter_map(|trigger| trigger.filter.clone()).collect();
    let filtered = !filters.is_empty();
    // What any of the filters reads; each filter is lowered separately.
    let all = Filter::Or(filters);
    let handed = match hook {
        ProgramContext::UserRecord(handed) if filtered => Some(*handed),
        _ => None,
    };
    let plan = match hook {
        ProgramContext::Probe(plan) if filtered || (plan.when.is_some() && !triggers.is_empty()) => {
            Some(plan)
        }
        _ => None,
    };
    if handed.is_some() || plan.is_some() {
        (lower.uses.calls, lower.uses.common) = (true, true);
    }
    lower.memory = Memory::for_filter(&all, hook);
    lower.prologue();
    let place = (filtered || plan.is_some()).then(|| {
        let place = lower.frame.take(8, 0);
        lower.asm.store(Width::D, Reg::R10, place, SWITCHES);
        place
    });
    // The requests to the template, which differ from hit to hit.
    let asks = triggers.iter().any(|trigger| bit(&trigger.action) != 0);
    let answer = asks.then(|| {
        let answer = lower.frame.take(8, 0);
        lower.asm.store(Width::D, Reg::R10, answer, 0);
        answer
    });
    let end = lower.asm.label();
    if let Some(plan) = plan {
        // As for the event's own filter.
        lower.definition(plan, end)?;
        if filtered {
            lower.image(plan, &all)?;
        }
    }
    if let Some(handed) = handed {
        lower.handed_image(handed, &all)?;
    }
    lower.texts = text::Texts::for_filter(&all);
    for trigger in triggers {
        let skip = lower.asm.label();
        if let Some(filter) = &trigger.filter {
            let yes = lower.asm.label();
            lower.branch(filter, Exits { yes, no: skip, next: Next::Yes })?;
            lower.bind(yes);
        }
        lower.asm.note(trigger.action.to_string());
        if let Some(place) = place {
            lower.asm.load(Width::D, SWITCHES, Reg::R10, place);
        }
        lower.act(trigger, answer, skip);
        lower.bind(skip);
    }
    lower.bind(end);
    match answer {
        Some(answer) => lower.asm.load(Width::D, Reg::R0, Reg::R10, answer),
        None => lower.asm.mov(Reg::R0, 0),
    }
    lower.asm.exit();
    *uses = Uses { searches: lower.searches.count(), ..lower.uses };
    let main = lower.asm.finish(tracer_abi::TRIGGER);
    let mut callbacks = lower.searches.finish();
    callbacks.retain(|callback| main.addresses.iter().any(|(_, name)| *name == callback.name));
    let mut functions: Vec<Function> = std::iter::once(main).chain(callbacks).collect();
    // The callbacks of the event's own filter need different names.
    for callback in &mut functions[1..] {
        callback.name.insert_str(0, CALLBACKS);
    }
    for (_, name) in &mut functions[0].addresses {
        name.insert_str(0, CALLBACKS);
    }
    Ok(functions)
}

/// The bit that requests an action from the template; 0 if the action needs no template.
fn bit(action: &Action) -> u64 {
    match action {
        Action::Snapshot => asked::SNAPSHOT,
        Action::StackTrace => asked::STACK,
        Action::TraceOn | Action::TraceOff | Action::Event { .. } | Action::Hists { .. } => 0,
    }
}

impl Lower<'_> {
    /// Performs one trigger's action; jumps to `skip` if there is nothing to do.
    fn act(&mut self, trigger: &Trigger, answer: Option<i16>, skip: Label) {
        match &trigger.action {
            Action::TraceOn => self.turn_recording(true, trigger.count, skip),
            Action::TraceOff => self.turn_recording(false, trigger.count, skip),
            Action::Event { slot, enable } => self.turn_event(*slot, *enable, trigger.count, skip),
            Action::Hists { places, enable } => {
                if let Some(count) = trigger.count {
                    self.take(count, skip);
                }
                for place in places {
                    let word = offset_of!(Switches, paused) + 4 * usize::from(*place);
                    self.asm.store(Width::W, SWITCHES, word as i16, i32::from(!enable));
                }
            }
            Action::Snapshot | Action::StackTrace => {
                if let Some(count) = trigger.count {
                    self.take(count, skip);
                }
                if let Some(answer) = answer {
                    self.asm.load(Width::D, Reg::R0, Reg::R10, answer);
                    self.asm.alu(Alu::Or, Reg::R0, bit(&trigger.action) as i32);
                    self.asm.store(Width::D, Reg::R10, answer, Reg::R0);
                }
            }
        }
    }

    fn turn_recording(&mut self, on: bool, count: Option<Count>, skip: Label) {
        const OFF: i32 = halted::OFF.cast_signed();
        self.asm.address(WORD, SWITCHES, offset_of!(Switches, halted) as i32);
        self.asm.load(Width::W, Reg::R0, WORD, 0);
        self.asm.alu(Alu::And, Reg::R0, OFF);
        self.jump_if(if on { Cond::Eq } else { Cond::Ne }, Reg::R0, 0, skip);
        if let Some(count) = count {
            self.take(count, skip);
        }
        let (operation, with) = if on { (Atomic::And, !OFF) } else { (Atomic::Or, OFF) };
        self.asm.mov(Reg::R0, with);
        self.asm.atomic(Width::W, operation, WORD, 0, Reg::R0);
        if count.is_some() {
            self.asm.alu(Alu::And, Reg::R0, OFF);
            self.jump_if(if on { Cond::Ne } else { Cond::Eq }, Reg::R0, 0, skip);
            self.give_back();
        }
    }

    fn turn_event(&mut self, slot: Slot, enable: bool, count: Option<Count>, skip: Label) {
        let wanted = i32::from(!enable);
        self.asm.address(WORD, SWITCHES, (offset_of!(Switches, soft) + 4 * slot.index()) as i32);
        self.asm.load(Width::W, Reg::R0, WORD, 0);
        self.jump_if(Cond::Eq, Reg::R0, wanted, skip);
        match count {
            None => self.asm.store(Width::W, WORD, 0, wanted),
            Some(count) => {
                self.take(count, skip);
                self.asm.mov(Reg::R0, wanted);
                self.asm.atomic(Width::W, Atomic::Exchange, WORD, 0, Reg::R0);
                self.jump32_if(Cond::Ne, Reg::R0, wanted, skip);
                self.give_back();
            }
        }
    }

    /// Takes one from a count and leaves the count's address in [`COUNT`]; jumps to `skip` if the count is used up.
    fn take(&mut self, count: Count, skip: Label) {
        let place = offset_of!(Switches, counts) + 8 * usize::from(count.place);
        self.asm.address(COUNT, SWITCHES, place as i32);
        if count.limited {
            self.asm.load(Width::D, Reg::R0, COUNT, 0);
            self.jump_if(Cond::SLe, Reg::R0, 0, skip);
        }
        self.asm.mov(Reg::R0, -1);
        self.asm.atomic(Width::D, Atomic::Add, COUNT, 0, Reg::R0);
        if count.limited {
            self.jump_if(Cond::SLe, Reg::R0, 0, skip);
        }
    }

    fn give_back(&mut self) {
        self.asm.mov(Reg::R0, 1);
        self.asm.atomic(Width::D, Atomic::Add, COUNT, 0, Reg::R0);
    }
}
