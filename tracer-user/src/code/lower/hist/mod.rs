//! A histogram's update at the hit: a whole program, without a template, because nothing is recorded. On a synthetic event
//! it is a part of the programs that emit the event ([`Entry::Record`]).
//!
//! The key is built in place (on the stack, or in memory of the CPU's own where it is long or variables are about), sums
//! are computed in front of the look-up, and a new entry is made with `BPF_NOEXIST`, so that of two hits that make it one
//! makes it and both count. A full table counts a drop.
//!
//! A table that only counts has a value a CPU: a program does not run inside itself on a CPU, so plain additions are
//! exact. Where there are variables, all CPUs have one entry for a key and add atomically ([`entry`]); variables of other
//! histograms are looked up first, and a hit for which one is not set does nothing at all ([`variable`]); actions come last
//! ([`action`]).
//!
//! Maps are named by placeholders ([`Role`]) that whoever loads the program puts descriptors in for.

mod action;
mod entry;
mod key;
mod maps;
mod number;
mod variable;
mod within;

use tracer_abi::{FILTER_AREA, INJECT_COMM};

use super::{Exits, Lower, LowerError, Next, Uses, memory::Memory, text};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, Label, Reg, Width},
    event::{Field, FieldClass},
    kernel::syscalls::Compat,
    lang::hist::{Function as Compute, Hist, Value},
    plan::{
        filter::{Filter, NumberOp, Place, Test},
        hist::{COMM_SIZE, Layout, References},
        source::ProgramContext,
    },
};

pub use maps::{Role, role};
pub use within::Within;

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_hist";

/// Where a key is built in [`Role::Scratch`]'s values, behind what filters fetch.
const KEY_AT: usize = FILTER_AREA;
const KEY_ROOM: usize = 512;
/// Where the values of references are.
const REFERENCES_AT: usize = KEY_AT + KEY_ROOM;
const REFERENCES_ROOM: usize = 8 * 16;
/// Where the parameters of a synthetic event are put together.
const PARAMS_AT: usize = REFERENCES_AT + REFERENCES_ROOM;
const PARAMS_ROOM: usize = 8 * 64;
/// Where an address becomes a number.
const ADDRESS_AT: usize = PARAMS_AT + PARAMS_ROOM;
/// Bytes of [`Role::Scratch`]'s values.
pub const SCRATCH_SIZE: usize = ADDRESS_AT + 8;

/// How the update is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// As a program, by its hook.
    ProgramContext,
    /// As a function, with a record as [`ProgramContext::Inject`] has it and with the context of the program's hook.
    Record,
    /// As a function of a program that has no hook, with such a record of user space.
    Injected,
}

/// What the function is called that emits the synthetic event of an action, told by the action's number.
pub fn emission(action: usize) -> String {
    format!("tracer_emit_{action}")
}

/// A histogram at a hook.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The histogram, one that [`unsupported`] has nothing against.
    pub hist: &'a Hist,
    /// Where the variables are that it looks up.
    pub references: &'a References,
    /// Which hits count.
    pub filter: Option<&'a Filter>,
    /// How values are had.
    pub hook: &'a ProgramContext,
    /// `common_type` of the event's records.
    pub kind: u16,
    /// A process whose hits do not count.
    pub but_process: Option<u32>,
    /// How 32-bit system calls are told, if they do not count.
    pub but_compat: Option<Compat>,
    /// How it is entered.
    pub entry: Entry,
    /// What the instance it is of says of it.
    pub within: Option<Within>,
    /// Which actions have a function to call, [`emission`]; the synthetic events of others are on nowhere.
    pub emits: &'a [bool],
}

/// The program and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program, then the functions that it calls back.
    pub functions: Vec<Function>,
    /// Whether it refers to [`Role::Scratch`].
    pub scratch: bool,
}

/// Why a histogram is not counted in the kernel. The name of a task is not in the record, where the kernel looks for it and
/// falls over.
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
/// When the hook cannot give a value.
pub fn hist(request: &Request<'_>) -> Result<Program, LowerError> {
    let mut uses = Uses { calls: true, ..Uses::default() };
    // The first pass finds what is used, the second lowers for that.
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

/// What is known of a histogram while it is lowered.
struct Known<'a> {
    hist: &'a Hist,
    layout: &'a Layout,
    references: &'a References,
    emits: &'a [bool],
    /// Where the context of the program's hook is kept, where there is one beside a record.
    context: Option<i16>,
    /// Where the hit's time is kept.
    stamp: Option<i16>,
    /// Where a hit goes that nothing more is done for.
    out: Label,
}

/// A number's place in the record.
fn place(field: &Field) -> Place {
    Place { offset: field.offset as u16, size: field.size as u16 }
}

/// Tests that read what a value reads.
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
    /// Where the context of the program's hook is kept, if apart.
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
            self.map(Reg::R1, Role::Scratch);
            self.asm.address(Reg::R2, Reg::R10, i32::from(index));
            self.call(Helper::MapLookupElem);
            self.jump_if(Cond::Eq, Reg::R0, 0, out);
            self.asm.mov(Reg::R7, Reg::R0);
        }
        context
    }

    /// The name of who hits, 16 bytes.
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

    /// Keeps the time, which is one for all of a hit.
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
