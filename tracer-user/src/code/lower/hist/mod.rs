//! The update of a histogram at a hit: a whole program, without a template, because nothing is recorded.
//!
//! For a synthetic event, the update is a part of the programs that emit the event ([`Entry::Record`]).
//!
//! The key is built in place: on the stack, or in memory of the CPU if it is long or there are variables. Sums are
//! computed before the search ([`table`]). Only one of two concurrent hits makes a new entry, and both count. A hit on a
//! full table counts as a drop.
//!
//! In a table that only counts, each CPU has a copy of each entry. A program does not run inside itself on a CPU, so
//! plain additions are exact. Several programs that emit one synthetic event add atomically, and so do all programs if
//! there are variables, because all CPUs then share an entry ([`entry`]). Variables of
//! other histograms are looked up first, and a hit for which one is not set has no effect ([`variable`]). Actions come
//! last ([`action`]).
//!
//! Maps are references ([`MapRef`]), which the loader binds to descriptors.

mod action;
mod control;
mod entry;
mod key;
mod number;
mod table;
mod update;
mod variable;
mod within;

use super::{
    emitter::{Emitter, Uses},
    exits::{Exits, Next},
    filter::{Built, FilterLowering},
    image,
    output::LowerError,
    values::Values,
};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, Label, MapRef, Reg, Width},
    event::FieldClass,
    kernel::syscalls::Compat,
    lang::hist::{Function as Compute, Hist, Value},
    plan::{
        filter::{Filter, NumberOp, Pattern, Test, Text},
        hist::{Layout, References, table::TableLayout},
        source::ProgramContext,
    },
};

pub use action::emission;
pub use update::SCRATCH_SIZE;
pub use within::Within;

use table::Places;
use update::{RECORD_AT, Update, place};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_hist";

/// How the update is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// As a program, by its hook.
    ProgramContext,
    /// As a function, with a record in the form of [`ProgramContext::Inject`] and the context of the program's hook.
    Record,
    /// As a function of a program that has no hook, with a record of user space in that form.
    Injected,
}

/// A histogram at a hook.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The histogram; [`unsupported`] returns None for it.
    pub hist: &'a Hist,
    /// Places of the variables that it looks up.
    pub references: &'a References,
    /// Selects the hits that count; None selects all.
    pub filter: Option<&'a Filter>,
    /// The context that values come from.
    pub context: &'a ProgramContext,
    /// `common_type` of the event's records.
    pub kind: u16,
    /// A process whose hits do not count.
    pub but_process: Option<u32>,
    /// The mark of 32-bit system calls, if they do not count.
    pub but_compat: Option<Compat>,
    /// How the update is called.
    pub entry: Entry,
    /// Number of CPU ids.
    pub cpus: u32,
    /// The histogram's place in its instance, if it has one.
    pub within: Option<Within>,
    /// For each action, whether it has a function [`emission`] to call; other synthetic events are enabled nowhere.
    pub emits: &'a [bool],
}

/// The program and its requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program, then its callbacks.
    pub functions: Vec<Function>,
    /// Whether it refers to [`MapRef::HistScratch`].
    pub scratch: bool,
}

/// The reason why a histogram cannot be counted, if there is one. A record does not contain the name of a task; where
/// a number is required, the kernel reads the name from the record and crashes.
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
    // The first pass collects the uses, the second lowers accordingly.
    let (_, uses) = lower(request, Uses { calls: true, ..Uses::default() })?;
    let (functions, uses) = lower(request, Uses { calls: true, ..uses })?;
    Ok(Program { functions, scratch: uses.scratch })
}

fn lower(request: &Request<'_>, uses: Uses) -> Result<(Vec<Function>, Uses), LowerError> {
    let Request { hist, context, references, emits, .. } = *request;
    let layout = &Layout::of(hist);
    let filter = request.filter.unwrap_or(&Filter::Const(true));
    let mut read = vec![filter.clone()];
    let kept = hist.field_variables.iter().chain(&hist.saved).map(|(_, value)| value);
    read.extend(hist.fields.iter().chain(kept).flat_map(reads));
    let read = Filter::And(read);
    let built = Built::of(context, Some(&read), true);
    let mut emit = Emitter::new(uses);
    emit.uses.common |= built.is_some();
    let mut filters = FilterLowering::new(Values::for_filter(context, &read), uses);
    let [yes, no] = emit.labels();
    let mut hook_context = prologue(&mut emit, request, no);
    if let Some(within) = &request.within {
        within::admit(&mut emit, within, context, no);
    }
    if let Some(Built::Call(context, fields)) = built {
        hook_context = Some(emit.save(Reg::R6));
        image::of_call(&mut emit, context, fields, &read, RECORD_AT as i32)?;
        filters.values.set_built();
    }
    filters.start(&mut emit, filter);
    filters.branch(&mut emit, filter, Exits { yes, no, next: Next::Yes })?;
    emit.bind(yes);
    let stamp = stamp(&mut emit, hist);
    let table = &TableLayout::of(layout, request.cpus);
    // Several programs may emit a record, one of them in an interrupt of another, and those of system calls may count
    // in the table of a name.
    let is_atomic = layout.is_shared() || request.entry != Entry::ProgramContext || hist.name.is_some();
    let places = Places::new(&mut emit);
    let update =
        Update { hist, layout, table, places, is_atomic, references, emits, hook_context, stamp, out: no };
    let values = &mut filters.values;
    let key = key::build(&mut emit, values, &update)?;
    variable::look_up(&mut emit, &update, key);
    entry::count(&mut emit, values, &update, key)?;
    if layout.is_shared() {
        variable::set_variables(&mut emit, values, &update)?;
    }
    for (number, action) in hist.actions.iter().enumerate() {
        action::action(&mut emit, values, number, action, &update, key)?;
    }
    if let Some(within) = &request.within {
        within::notify_reader(&mut emit, within);
    }
    emit.bind(no);
    emit.mov(Reg::R0, 0);
    emit.exit();
    Ok(filters.finish(emit, PROGRAM))
}

/// Tests that read the same fields as a value.
fn reads(value: &Value) -> Vec<Filter> {
    let mut found: Vec<Filter> = value.operands.iter().flat_map(reads).collect();
    let test = match (value.function, &value.field) {
        (Compute::Number, Some(field)) => {
            Test::Number { place: place(field), signed: false, op: NumberOp::Eq, value: 0 }
        }
        (_, Some(field)) if field.class == FieldClass::DynString => {
            let text = Text::Dyn { offset: field.offset as u16 };
            Test::Text { text, pattern: Pattern::Full(Vec::new()), not: false }
        }
        _ => return found,
    };
    found.push(Filter::Test(test));
    found
}

/// Emits the prologue. Returns the stack offset of the context of the program's hook, if the update receives it
/// separately.
fn prologue(emit: &mut Emitter, request: &Request<'_>, out: Label) -> Option<i16> {
    emit.mov(Reg::R6, Reg::R1);
    let hook_context = (request.entry == Entry::Record).then(|| emit.save(Reg::R2));
    if *request.context == ProgramContext::Inject {
        if emit.uses.common {
            emit.load(Width::D, Reg::R8, Reg::R6, 0);
        }
    } else if emit.uses.common || request.but_process.is_some() {
        emit.call(Helper::GetCurrentPidTgid);
        emit.leave_process(request.but_process, out);
        if emit.uses.common {
            emit.mov(Reg::R8, Reg::R0);
            emit.alu(Alu::Lsh, Reg::R8, 32);
            emit.alu(Alu::Or, Reg::R8, i32::from(request.kind));
        }
    }
    if let Some(compat) = request.but_compat {
        emit.note("a 32-bit call?");
        emit.call(Helper::GetCurrentTaskBtf);
        emit.load(Width::W, Reg::R0, Reg::R0, compat.task_offset as i16);
        emit.jump32_if(Cond::Set, Reg::R0, compat.mask.cast_signed(), out);
    }
    if emit.uses.scratch {
        let index = emit.save(0);
        emit.look_up(MapRef::HistScratch, index);
        emit.jump_if(Cond::Eq, Reg::R0, 0, out);
        emit.mov(Reg::R7, Reg::R0);
    }
    hook_context
}

/// Saves the time, which is the same for the whole hit.
fn stamp(emit: &mut Emitter, hist: &Hist) -> Option<i16> {
    hist.timestamps.then(|| {
        emit.call(Helper::KtimeGetNs);
        if hist.in_usecs {
            emit.alu(Alu::Div, Reg::R0, 1000);
        }
        emit.save(Reg::R0)
    })
}

#[cfg(test)]
mod tests;
