//! The update of a histogram at a hit: a whole program, without a template, because nothing is recorded.
//!
//! For a synthetic event, the update is a part of the programs that emit the event ([`Entry::Record`]).
//!
//! The key is built in place: on the stack, or in memory of the CPU if it is long or there are variables. Sums are
//! computed before the lookup. A new entry is created with `BPF_NOEXIST`, so that of two hits that create it one
//! succeeds and both count. A hit on a full table counts as a drop.
//!
//! A table that only counts has one value per CPU. A program does not run inside itself on a CPU, so plain additions
//! are exact. If there are variables, all CPUs share one entry per key and add atomically ([`entry`]). Variables of
//! other histograms are looked up first, and a hit for which one is not set has no effect ([`variable`]). Actions come
//! last ([`action`]).
//!
//! Maps are references ([`MapRef`]), which the loader binds to descriptors.

mod action;
mod entry;
mod key;
mod number;
mod variable;
mod within;

use tracer_abi::{FILTER_AREA, INJECT_COMM};

use super::{Exits, Lower, LowerError, Next, Uses, memory::Memory, text};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, Label, MapRef, Reg, Width},
    event::{Field, FieldClass},
    kernel::syscalls::Compat,
    lang::hist::{Function as Compute, Hist, Value},
    plan::{
        filter::{Filter, NumberOp, Place, Test},
        hist::{COMM_SIZE, Layout, References},
        source::ProgramContext,
    },
};

pub use within::Within;

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_hist";

/// Offset of the key in the values of [`MapRef::HistScratch`], after the area for filters.
const KEY_AT: usize = FILTER_AREA;
const KEY_ROOM: usize = 512;
/// Offset of the values of references.
const REFERENCES_AT: usize = KEY_AT + KEY_ROOM;
const REFERENCES_ROOM: usize = 8 * 16;
/// Offset of the parameters of a synthetic event.
const PARAMS_AT: usize = REFERENCES_AT + REFERENCES_ROOM;
const PARAMS_ROOM: usize = 8 * 64;
/// Offset of the word through which an address becomes a number.
const ADDRESS_AT: usize = PARAMS_AT + PARAMS_ROOM;
/// Size in bytes of the values of [`MapRef::HistScratch`].
pub const SCRATCH_SIZE: usize = ADDRESS_AT + 8;

/// How the update is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// As a program, by its hook.
    ProgramContext,
    /// As a function, with a record in the form of [`ProgramContext::Inject`] and the context of the program's hook.
    Record,
    /// As a function of a program that has no hook, with such a record of user space.
    Injected,
}

/// Name of the function that emits the synthetic event of the action with this number.
pub fn emission(action: usize) -> String {
    format!("tracer_emit_{action}")
}

/// A histogram at a hook.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The histogram; [`unsupported`] returns None for it.
    pub hist: &'a Hist,
    /// Where the variables are that it looks up.
    pub references: &'a References,
    /// The hits that count; all if None.
    pub filter: Option<&'a Filter>,
    /// Where values come from.
    pub hook: &'a ProgramContext,
    /// `common_type` of the event's records.
    pub kind: u16,
    /// A process whose hits do not count.
    pub but_process: Option<u32>,
    /// How 32-bit system calls are recognised, if they do not count.
    pub but_compat: Option<Compat>,
    /// How the update is called.
    pub entry: Entry,
    /// The histogram's place in its instance, if it has one.
    pub within: Option<Within>,
    /// For each action, whether it has a function [`emission`] to call; other synthetic events are enabled nowhere.
    pub emits: &'a [bool],
}

/// The program and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program, then its callbacks.
    pub functions: Vec<Function>,
    /// Whether it refers to [`MapRef::HistScratch`].
    pub scratch: bool,
}

/// Why a histogram cannot be counted. The name of a task is not in the record, but the kernel looks for it there and
/// crashes.
pub fn unsupported(hist: &Hist) -> Option<&'static str> {
    fn is_elsewhere(value: &Value) -> bool {
        matches!(value.function, Compute::PtrText | Compute::Comm | Compute::Execname)
    }
    fn odd(value: &Value) -> bool {
        value.function == Compute::PtrText
            || value.operands.iter().any(|operand| odd(operand) || is_elsewhere(operand))
    }
    let values = hist.fields[..hist.values - hist.variables].iter();
    let kept = hist.fields[hist.values - hist.variables..hist.values].iter();
    let kept = kept.chain(hist.field_variables.iter().chain(&hist.saved).map(|(_, value)| value));
    if values.clone().any(is_elsewhere) || values.chain(kept).chain(hist.keys()).any(odd) {
        return Some("the name of a task where a number is wanted");
    }
    None
}

/// Lowers a histogram's update.
///
/// # Errors
/// If the hook does not provide a value.
pub fn hist(request: &Request<'_>) -> Result<Program, LowerError> {
    let mut uses = Uses { calls: true, ..Uses::default() };
    // The first pass finds out what is used, the second lowers accordingly.
    lower(request, &mut uses)?;
    let functions = lower(request, &mut uses)?;
    Ok(Program { functions, scratch: uses.scratch })
}

fn lower(request: &Request<'_>, uses: &mut Uses) -> Result<Vec<Function>, LowerError> {
    let Request { hist, hook, references, .. } = *request;
    let layout = &Layout::of(hist);
    let mut lower = Lower::new(hook, Uses { calls: true, ..*uses });
    let filter = request.filter.unwrap_or(&Filter::Const(true));
    let mut read = vec![filter.clone()];
    let kept = hist.field_variables.iter().chain(&hist.saved).map(|(_, value)| value);
    read.extend(hist.fields.iter().chain(kept).flat_map(numbers));
    lower.memory = Memory::for_filter(&Filter::And(read), hook);
    lower.texts = text::Texts::for_filter(filter);
    let (yes, no) = (lower.asm.label(), lower.asm.label());
    let context = lower.hist_prologue(request, no);
    if let Some(within) = &request.within {
        lower.stand_by(within, request, no);
    }
    lower.branch(filter, Exits { yes, no, next: Next::Yes })?;
    lower.bind(yes);
    let stamp = lower.stamp(hist);
    let emits = request.emits;
    let known = Known { hist, layout, references, emits, stamp, context, out: no };
    let key = lower.hist_key(&known)?;
    lower.look_up(&known, key);
    lower.update(&known, key)?;
    if layout.is_shared() {
        lower.set_variables(&known)?;
    }
    for (number, action) in hist.actions.iter().enumerate() {
        lower.handle(number, action, &known, key)?;
    }
    if let Some(within) = &request.within {
        lower.tell_who_waits(within);
    }
    lower.bind(no);
    lower.asm.mov(Reg::R0, 0);
    lower.asm.exit();
    *uses = Uses { searches: lower.searches.count(), ..lower.uses };
    let main = lower.asm.finish(PROGRAM);
    let mut callbacks = lower.searches.finish();
    callbacks.retain(|callback| main.addresses.iter().any(|(_, name)| *name == callback.name));
    Ok(std::iter::once(main).chain(callbacks).collect())
}

/// What is known of a histogram during lowering.
struct Known<'a> {
    hist: &'a Hist,
    layout: &'a Layout,
    references: &'a References,
    emits: &'a [bool],
    /// Stack offset of the context of the program's hook, if it is passed beside a record.
    context: Option<i16>,
    /// Stack offset of the hit's time.
    stamp: Option<i16>,
    /// Exit of a hit that needs no further work.
    out: Label,
}

/// Place of a number in the record.
fn place(field: &Field) -> Place {
    Place { offset: field.offset as u16, size: field.size as u16 }
}

/// Tests that read the same fields as a value.
fn numbers(value: &Value) -> Vec<Filter> {
    let mut found: Vec<Filter> = value.operands.iter().flat_map(numbers).collect();
    if let (Compute::Number, Some(field)) = (value.function, &value.field) {
        let test = Test::Number { place: place(field), signed: false, op: NumberOp::Eq, value: 0 };
        found.push(Filter::Test(test));
    }
    found
}

/// Where a key is built.
#[derive(Clone, Copy)]
struct KeyPlace {
    base: Reg,
    at: i16,
}

impl Lower<'_> {
    /// Emits the prologue; returns the stack offset of the context of the program's hook, if it is passed separately.
    fn hist_prologue(&mut self, request: &Request<'_>, out: Label) -> Option<i16> {
        self.asm.mov(Reg::R6, Reg::R1);
        let context = (request.entry == Entry::Record).then(|| {
            let slot = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, slot, Reg::R2);
            slot
        });
        if *request.hook == ProgramContext::Inject {
            if self.uses.common {
                self.asm.load(Width::D, Reg::R8, Reg::R6, 0);
            }
        } else if self.uses.common || request.but_process.is_some() {
            self.call(Helper::GetCurrentPidTgid);
            if let Some(process) = request.but_process {
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.alu(Alu::Rsh, Reg::R1, 32);
                self.jump_if(Cond::Eq, Reg::R1, process.cast_signed(), out);
            }
            if self.uses.common {
                self.asm.mov(Reg::R8, Reg::R0);
                self.asm.alu(Alu::Lsh, Reg::R8, 32);
                self.asm.alu(Alu::Or, Reg::R8, i32::from(request.kind));
            }
        }
        if let Some(compat) = request.but_compat {
            self.asm.note("a 32-bit call?");
            self.call(Helper::GetCurrentTaskBtf);
            self.asm.load(Width::W, Reg::R0, Reg::R0, compat.task_offset as i16);
            self.jump32_if(Cond::Set, Reg::R0, compat.mask.cast_signed(), out);
        }
        if self.uses.scratch {
            let index = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, index, 0);
            self.asm.map(Reg::R1, MapRef::HistScratch);
            self.asm.address(Reg::R2, Reg::R10, i32::from(index));
            self.call(Helper::MapLookupElem);
            self.jump_if(Cond::Eq, Reg::R0, 0, out);
            self.asm.mov(Reg::R7, Reg::R0);
        }
        context
    }

    /// Copies the name of the hitting task, 16 bytes.
    fn who(&mut self, to: KeyPlace) {
        if *self.hook == ProgramContext::Inject {
            for word in (0..COMM_SIZE as i16).step_by(8) {
                self.asm.load(Width::D, Reg::R1, Reg::R6, INJECT_COMM as i16 + word);
                self.asm.store(Width::D, to.base, to.at + word, Reg::R1);
            }
            return;
        }
        self.asm.address(Reg::R1, to.base, i32::from(to.at));
        self.asm.mov(Reg::R2, COMM_SIZE as i32);
        self.call(Helper::GetCurrentComm);
    }

    /// Saves the time, which is the same for the whole hit.
    fn stamp(&mut self, hist: &Hist) -> Option<i16> {
        hist.timestamps.then(|| {
            self.call(Helper::KtimeGetNs);
            if hist.in_usecs {
                self.asm.alu(Alu::Div, Reg::R0, 1000);
            }
            let slot = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, slot, Reg::R0);
            slot
        })
    }
}

#[cfg(test)]
mod tests;
