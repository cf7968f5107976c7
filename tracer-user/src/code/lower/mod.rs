//! Lowering: turns a filter or a record's layout at a hook into eBPF functions.
//!
//! Registers have fixed roles: R6 is the context, R7 scratch memory or the payload, R8 the common word. Values are
//! loaded into R0, and constants too wide for an immediate into R5. A function that calls no helper keeps its arguments
//! where they arrive and needs no prologue; a first lowering finds out whether it calls one. Boolean results are places
//! in the code, never values. All jumps except those of loops go forward, so that the verifier visits each test once.

mod compare;
mod cpus;
mod emission;
pub mod entry_args;
mod fetch;
mod glob;
pub mod hist;
mod image;
mod memory;
mod number;
pub mod prefault;
mod probe;
mod record;
pub mod relay;
mod search;
mod text;
mod trigger;
mod user_record;

use crate::{
    code::asm::{Alu, Assembler, Cond, Function, Helper, Label, Operand, Reg, Width},
    plan::{
        filter::{Filter, Test},
        source::ProgramContext,
    },
};

pub use emission::{EMIT, emission};
use memory::Memory;
pub use record::record;
pub use trigger::trigger;

/// Generated functions and their requirements on the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The function that the template calls, then the functions that it calls itself.
    pub functions: Vec<Function>,
    /// Requirements at run time.
    pub needs: Needs,
    /// Size of the payload in bytes if it is the same for all records; None for a filter.
    pub size: Option<usize>,
}

/// What a filter requires from its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The second argument points to scratch memory.
    pub scratch: bool,
    /// Flags and preempt count are filled in the third argument.
    pub flags: bool,
    /// The filter uses the third argument or calls a helper: it needs the identity of the task, or costs more than
    /// reading it.
    pub more: bool,
}

/// Why a plan cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A raw tracepoint has no source for these bytes of the record.
    #[error("the hook gives no value for bytes {offset} to {end} of the record")]
    NoSource {
        /// First byte.
        offset: usize,
        /// First byte after them.
        end: usize,
    },
    /// A number that is not 1, 2, 4 or 8 bytes wide.
    #[error("a number of {0} bytes")]
    NumberSize(usize),
    /// Text or data at a varying place, at a hook that has no record.
    #[error("the hook has no data behind the fixed fields")]
    NoData,
    /// A record longer than any payload.
    #[error("a record of {0} bytes")]
    RecordSize(usize),
}

/// Lowers a filter to `tracer_filter`.
///
/// # Errors
/// If the hook does not provide a value that the filter compares.
pub fn filter(filter: &Filter, hook: &ProgramContext) -> Result<Code, LowerError> {
    let mut uses = Uses::default();
    // The first pass finds out what is used, the second lowers accordingly.
    lower_filter(filter, hook, &mut uses)?;
    let functions = lower_filter(filter, hook, &mut uses)?;
    let more = uses.common || uses.calls;
    let needs = Needs { scratch: uses.scratch, flags: uses.flags, more };
    Ok(Code { functions, needs, size: None })
}

fn lower_filter(
    filter: &Filter,
    hook: &ProgramContext,
    uses: &mut Uses,
) -> Result<Vec<Function>, LowerError> {
    let plan = match hook {
        ProgramContext::Probe(plan) if *filter != Filter::Const(true) || plan.when.is_some() => Some(plan),
        _ => None,
    };
    let handed = match hook {
        ProgramContext::UserRecord(handed) if *filter != Filter::Const(true) => Some(*handed),
        _ => None,
    };
    if plan.is_some() || handed.is_some() {
        (uses.calls, uses.common) = (true, true);
    }
    let mut lower = Lower::new(hook, *uses);
    lower.memory = Memory::for_filter(filter, hook);
    let (yes, no) = (lower.asm.label(), lower.asm.label());
    lower.prologue();
    if let Some(plan) = plan {
        lower.definition(plan, no)?;
        if *filter != Filter::Const(true) {
            lower.image(plan, filter)?;
        }
    }
    if let Some(handed) = handed {
        lower.handed_image(handed, filter)?;
    }
    lower.texts = text::Texts::for_filter(filter);
    lower.branch(filter, Exits { yes, no, next: Next::Yes })?;
    lower.bind(yes);
    lower.asm.mov(Reg::R0, 1);
    lower.asm.exit();
    lower.bind(no);
    lower.asm.mov(Reg::R0, 0);
    lower.asm.exit();
    *uses = Uses { searches: lower.searches.count(), ..lower.uses };
    let main = lower.asm.finish(tracer_abi::FILTER);
    let mut callbacks = lower.searches.finish();
    // A search may be in unreachable code.
    callbacks.retain(|callback| main.addresses.iter().any(|(_, name)| *name == callback.name));
    Ok(std::iter::once(main).chain(callbacks).collect())
}

/// What a function uses.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Uses {
    calls: bool,
    scratch: bool,
    common: bool,
    flags: bool,
    /// Number of different searches.
    searches: usize,
}

/// The exit whose code follows a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Yes,
    No,
}

/// Where control continues if a test holds, and if it does not.
#[derive(Clone, Copy, Debug)]
struct Exits {
    yes: Label,
    no: Label,
    next: Next,
}

impl Exits {
    fn inverted(self) -> Self {
        let next = match self.next {
            Next::Yes => Next::No,
            Next::No => Next::Yes,
        };
        Self { yes: self.no, no: self.yes, next }
    }

    fn inverted_if(self, not: bool) -> Self {
        if not { self.inverted() } else { self }
    }
}

/// State of lowering one function.
struct Lower<'a> {
    asm: Assembler,
    hook: &'a ProgramContext,
    /// Found by the first pass; completed while lowering.
    uses: Uses,
    /// Register of the context.
    ctx: Reg,
    /// Register of the common word.
    common: Reg,
    memory: Memory,
    searches: search::Searches,
    texts: text::Texts,
    frame: Frame,
}

/// Allocates bytes of the function's stack frame from the top down.
#[derive(Clone, Debug, Default)]
struct Frame {
    used: i32,
}

impl Frame {
    /// Allocates `size` bytes at an address that is `phase` modulo 8; returns the offset from R10.
    fn take(&mut self, size: usize, phase: usize) -> i16 {
        let end = self.used + (size + phase) as i32;
        self.used = (end + 7) & !7;
        (phase as i32 - self.used) as i16
    }
}

impl<'a> Lower<'a> {
    fn new(hook: &'a ProgramContext, uses: Uses) -> Self {
        let (ctx, common) = if uses.calls { (Reg::R6, Reg::R8) } else { (Reg::R1, Reg::R3) };
        Self {
            asm: Assembler::new(),
            hook,
            uses,
            ctx,
            common,
            memory: Memory::default(),
            searches: search::Searches::expecting(uses.searches),
            texts: text::Texts::default(),
            frame: Frame::default(),
        }
    }

    fn prologue(&mut self) {
        if self.uses.calls {
            self.asm.mov(Reg::R6, Reg::R1);
            if self.uses.scratch {
                self.asm.mov(Reg::R7, Reg::R2);
            }
            if self.uses.common {
                self.asm.mov(Reg::R8, Reg::R3);
            }
        }
    }

    fn call(&mut self, helper: Helper) {
        self.uses.calls = true;
        self.asm.call(helper);
    }

    /// Scratch memory is always in R7, which calls preserve.
    fn use_scratch(&mut self) {
        self.uses.scratch = true;
        self.uses.calls = true;
    }

    /// Binds a label and updates what is known to be fetched there.
    fn bind(&mut self, label: Label) {
        self.asm.bind(label);
        self.memory.fetched.arrive(label);
        self.texts.fetched.arrive(label);
    }

    fn leave(&mut self, to: Label) {
        self.memory.fetched.leave(to);
        self.texts.fetched.leave(to);
    }

    fn jump(&mut self, to: Label) {
        self.asm.jump(to);
        self.leave(to);
        self.memory.fetched.end();
        self.texts.fetched.end();
    }

    fn jump_if(&mut self, cond: Cond, reg: Reg, value: impl Into<Operand>, to: Label) {
        self.asm.jump_if(cond, reg, value, to);
        self.leave(to);
    }

    fn jump32_if(&mut self, cond: Cond, reg: Reg, value: impl Into<Operand>, to: Label) {
        self.asm.jump32_if(cond, reg, value, to);
        self.leave(to);
    }

    /// Continues at one of the exits.
    fn go(&mut self, holds: bool, exits: Exits) {
        let (to, next) = if holds { (exits.yes, Next::Yes) } else { (exits.no, Next::No) };
        if exits.next != next {
            self.jump(to);
        }
    }

    /// Ends a test with a comparison.
    fn decide(&mut self, wide: bool, cond: Cond, reg: Reg, value: Operand, exits: Exits) {
        let (cond, to, other) = match (exits.next, cond.inverse()) {
            (Next::Yes, Some(inverse)) => (inverse, exits.no, None),
            (Next::Yes, None) => (cond, exits.yes, Some(exits.no)),
            (Next::No, _) => (cond, exits.yes, None),
        };
        if wide {
            self.jump_if(cond, reg, value, to);
        } else {
            self.jump32_if(cond, reg, value, to);
        }
        if let Some(other) = other {
            self.jump(other);
        }
    }

    fn branch(&mut self, filter: &Filter, exits: Exits) -> Result<(), LowerError> {
        match filter {
            Filter::Const(holds) => self.go(*holds, exits),
            Filter::Not(inner) => self.branch(inner, exits.inverted())?,
            Filter::And(list) => {
                let Some((last, list)) = list.split_last() else {
                    self.go(true, exits);
                    return Ok(());
                };
                for filter in list {
                    let yes = self.asm.label();
                    self.branch(filter, Exits { yes, no: exits.no, next: Next::Yes })?;
                    self.bind(yes);
                }
                self.branch(last, exits)?;
            }
            Filter::Or(list) => {
                let Some((last, list)) = list.split_last() else {
                    self.go(false, exits);
                    return Ok(());
                };
                for filter in list {
                    let no = self.asm.label();
                    self.branch(filter, Exits { yes: exits.yes, no, next: Next::No })?;
                    self.bind(no);
                }
                self.branch(last, exits)?;
            }
            Filter::Test(test) => self.test(test, exits)?,
        }
        Ok(())
    }

    fn test(&mut self, test: &Test, exits: Exits) -> Result<(), LowerError> {
        match test {
            Test::Number { place, signed, op, value } => self.number(*place, *signed, *op, *value, exits),
            Test::Function { place, low, high, not } => {
                self.function_range(*place, *low, *high, exits.inverted_if(*not))
            }
            Test::Cpu { op, value } => {
                self.cpu(*op, *value, exits);
                Ok(())
            }
            Test::Cpus { subject, op, set } => self.cpus(*subject, *op, set, exits),
            Test::Text { text, pattern, not } => self.text(*text, pattern, *not, exits),
        }
    }

    /// `dst = argument of a raw tracepoint`
    fn argument(&mut self, dst: Reg, arg: u8) {
        self.asm.load(Width::D, dst, self.ctx, i16::from(arg) * 8);
    }

    /// R0 = the CPU of the hit.
    fn current_cpu(&mut self) {
        if *self.hook == ProgramContext::Inject {
            self.asm.load(Width::W, Reg::R0, self.ctx, tracer_abi::INJECT_CPU as i16);
        } else {
            self.call(Helper::GetSmpProcessorId);
        }
    }

    /// Zero-extends R0 from a width.
    fn truncate(&mut self, size: usize) {
        match size {
            4 => self.asm.alu32(Alu::Mov, Reg::R0, Reg::R0),
            1 | 2 => self.asm.alu(Alu::And, Reg::R0, (1 << (8 * size)) - 1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod goldens;
