//! A dynamic event at a hook: the source of each of its values.
//!
//! The language produces operations on registers, arguments and return values ([`crate::lang::fetch`]). The context
//! of a hook's program ([`ProbeContext`]) determines the operations that the hook supports. A plan names places in
//! that context. If there is no place for a value, planning fails with the reason, and the engine may try another
//! hook.
//!
//! Calling conventions are those that the kernel itself uses (`regs_get_kernel_argument()`,
//! `arch/x86/include/asm/ptrace.h` and `arch/arm64/include/asm/ptrace.h`).

use std::fmt;

use super::filter::Filter;
use crate::{
    event::{
        Field,
        dynamic::{Event, Kind},
    },
    lang::{
        define::Probe,
        facts::Arch,
        fetch::{Checked, Op, Source, Store},
    },
};

/// Bytes at the start of a function in which the call of its trampoline ends: a mark for indirect branches of four
/// bytes, and the call of five.
const CALL_AREA: u64 = 16;

/// The context of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeContext {
    /// `struct pt_regs`.
    Registers(Arch),
    /// A raw tracepoint's arguments, this many words.
    Arguments(u8),
    /// A kernel function's arguments as words; at its return, the return value follows them.
    Call {
        /// Words of arguments.
        words: u8,
        /// Whether the hook is the function's return.
        exit: bool,
        /// Architecture, which defines the layout of the stack.
        arch: Arch,
    },
    /// The record of another event.
    Record,
}

/// Addresses that are known before a hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The probed function or instruction, as the kernel records it.
    pub ip: u64,
    /// End of the function.
    pub end: u64,
    /// Whether the function may jump to its trampoline instead of calling it (x86, 6.19 and later).
    pub may_jump: bool,
    /// Bytes between the function's first instruction and the probed one, for a trampoline's program that obtains the
    /// address at the hit, as [`Addresses::ip`] is 0.
    pub skip: u8,
    /// Whether the registers are an fprobe's, which has no breakpoint. If [`Addresses::ip`] is 0, the program obtains
    /// the function's address at the hit.
    pub by_fprobe: bool,
    /// The kernel's table of the CPUs' offsets; 0 if its address is withheld.
    pub per_cpu: u64,
    /// Offsets of [`Origin::FunctionInTask`], if the program itself must find the function of a uretprobe.
    pub in_task: Option<(u32, u32)>,
}

/// A dynamic event at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// The context of the program.
    pub context: ProbeContext,
    /// Whether all memory is user memory, regardless of the address.
    pub user: bool,
    /// The words after the common fields.
    pub head: Vec<Value>,
    /// The arguments.
    pub args: Vec<ArgPlan>,
    /// Bytes of the record before the texts.
    pub fixed: usize,
    /// Values saved at a function's entry for its return, if the hook at the return does not provide them.
    pub entry_args: Vec<Value>,
    /// For an event probe: the condition on the hits of the event that it is attached to.
    pub when: Option<Filter>,
}

/// One recorded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgPlan {
    /// Name, for listings.
    pub name: String,
    /// Byte offset in the record.
    pub offset: usize,
    /// Size of an element in bytes.
    pub size: u32,
    /// Number of elements.
    pub count: u32,
    /// The first value.
    pub value: Value,
    /// Steps from the value to the data, in sequence.
    pub steps: Vec<Step>,
    /// How it is stored in the record.
    pub store: Store,
    /// Offset in bytes from the value, for data that is read from memory.
    pub store_offset: i32,
    /// Selection of bits of the value.
    pub bits: Option<BitShifts>,
}

/// A step from a value to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads a word.
    Deref(Deref),
    /// Adds this CPU's offset to the address of a variable of each CPU. `table` is the address of the kernel's table of
    /// offsets (`__per_cpu_offset`).
    ThisCpu {
        /// The address.
        table: u64,
    },
}

/// A read of the word at a value plus an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deref {
    /// Whether the memory is in user space.
    pub user: bool,
    /// Offset in bytes.
    pub offset: i32,
}

/// A value before any read through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The source.
    pub from: Origin,
    /// The number to add.
    pub plus: i64,
}

/// Shifts that select bits of a number: to the left, then to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitShifts {
    /// Shift to the left.
    pub left: u8,
    /// Shift to the right.
    pub right: u8,
    /// Size in bytes of the shifted number: 1, 2, 4 or 8, which may be more than the argument's.
    pub size: u8,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source: the value is the number to add.
    Nothing,
    /// The word at this byte offset of the context.
    Context(u16),
    /// The word of this number, counted from the context of a call: the arguments, the return value, the trampoline's
    /// stack.
    Call(u8),
    /// The argument of this number among those saved at the function's entry.
    EntryArg(u8),
    /// The return address of a function on a trampoline's stack. It is at one of two words: on arm64 by whether the
    /// stack had to be aligned, on x86 by whether the function called the trampoline or jumped to it.
    CallReturn {
        /// Number of the word that tells which: an address in the function or not.
        told_by: u8,
        /// Number of the word if that is in the function.
        inside: u8,
        /// Number of the word otherwise.
        outside: u8,
        /// First address of the function; 0 if the program obtains it at the hit.
        start: u64,
        /// Number of bytes from there in which the address can be.
        size: u64,
    },
    /// The entered function; the program obtains it from the kernel at the hit.
    Function,
    /// The function in a file, on kernels that do not report it to a program (before 6.6). The program reads the task's
    /// uprobe state, then that state's data of the hit, then the address in those data.
    FunctionInTask {
        /// Byte offset of `utask` in `struct task_struct`.
        utask: u32,
        /// Byte offset of `vaddr` in `struct uprobe_task`.
        vaddr: u32,
    },
    /// The address of an fprobe in its function, on x86: after the `endbr` instruction, if there is one. The instruction
    /// pointer, at this offset of the context, is this address or the address after the call there.
    FunctionPlace(u16),
    /// The word of the stack of this number, counted from the stack pointer.
    Stack(u32),
    /// The name of the current task; the value is its address.
    Comm,
    /// The address of the current task.
    Task,
    /// A text; the value is its address.
    Text(Vec<u8>),
    /// A field of the record that is the context.
    Field(Box<Field>),
}

/// The reason why a hook cannot provide a value of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The symbol of an argument does not exist.
    #[error("the symbol in {0} does not exist")]
    Symbol(String),
    /// The hook is not at the return of a function.
    #[error("the hook is not at a return")]
    NoReturn,
    /// The fetch argument loads nothing.
    #[error("{0} has no value")]
    NoValue(String),
    /// An argument of the function, counted from 1.
    #[error("argument {0} is not available at this hook")]
    Argument(u32),
    /// Another source of a value.
    #[error("{0} is not available at this hook")]
    Source(&'static str),
}

impl Value {
    fn of(from: Origin) -> Self {
        Self { from, plus: 0 }
    }

    /// The word at this byte offset of the context.
    fn context(offset: u16) -> Self {
        Self::of(Origin::Context(offset))
    }

    /// A number.
    pub fn number(value: u64) -> Self {
        Self { from: Origin::Nothing, plus: value.cast_signed() }
    }

    /// Whether the value is the address of data in the program itself.
    pub fn is_own(&self) -> bool {
        matches!(self.from, Origin::Comm | Origin::Text(_))
    }
}

impl ArgPlan {
    /// Whether it is text after the fixed part.
    pub fn is_text(&self) -> bool {
        matches!(self.store, Store::Text | Store::UserText | Store::SymbolText)
    }

    /// Bytes in the record's fixed part.
    pub fn bytes(&self) -> usize {
        self.size as usize * self.count as usize
    }
}

impl ProbePlan {
    /// Whether records differ in length.
    pub fn is_variable(&self) -> bool {
        self.args.iter().any(ArgPlan::is_text)
    }
}

/// Byte offsets in `struct pt_regs`.
struct Registers {
    ip: u16,
    sp: u16,
    retval: u16,
    args: &'static [u16],
    /// Number of stack words before the arguments that have no register; None if those arguments are not read.
    stack_args: Option<u32>,
    /// Distance in bytes of the instruction pointer from a kprobe: x86 has executed the breakpoint's byte.
    ahead: i64,
}

/// Arguments: di, si, dx, cx, r8, r9; x0 to x7.
const X86_64: Registers = Registers {
    ip: 128,
    sp: 152,
    retval: 80,
    args: &[112, 104, 96, 88, 72, 64],
    stack_args: Some(1),
    ahead: 1,
};
const ARM64: Registers = Registers {
    ip: 256,
    sp: 248,
    retval: 0,
    args: &[0, 8, 16, 24, 32, 40, 48, 56],
    stack_args: None,
    ahead: 0,
};

fn registers(arch: Arch) -> &'static Registers {
    match arch {
        Arch::X86_64 => &X86_64,
        Arch::Arm64 => &ARM64,
    }
}

/// Plans a probe at a hook.
///
/// # Errors
/// The first value that the hook does not provide.
pub fn plan(probe: &Probe, context: ProbeContext, addresses: Addresses) -> Result<ProbePlan, Unavailable> {
    let planner = Planner { probe, context, addresses, user: !probe.at.is_kernel() };
    let head_size = probe.event.head_size();
    let fixed = head_size + probe.event.args.iter().map(|arg| arg.size() as usize).sum::<usize>();
    Ok(ProbePlan {
        context,
        user: planner.user,
        head: planner.head()?,
        args: probe.args.iter().map(|arg| planner.arg(arg, head_size)).collect::<Result<_, _>>()?,
        fixed,
        entry_args: planner.entry_args(),
        when: None,
    })
}

struct Planner<'a> {
    probe: &'a Probe,
    context: ProbeContext,
    addresses: Addresses,
    user: bool,
}

impl Planner<'_> {
    fn event(&self) -> &Event {
        &self.probe.event
    }

    /// The probed function or instruction.
    fn place(&self) -> Value {
        match self.context {
            ProbeContext::Registers(arch) if self.user && !self.event().is_exit() => {
                Value::context(registers(arch).ip)
            }
            ProbeContext::Registers(_) if self.user => Value::of(match self.addresses.in_task {
                Some((utask, vaddr)) => Origin::FunctionInTask { utask, vaddr },
                None => Origin::Function,
            }),
            ProbeContext::Registers(arch) if !self.event().is_exit() => {
                let Registers { ip, ahead, .. } = registers(arch);
                if !self.addresses.by_fprobe {
                    Value { from: Origin::Context(*ip), plus: -ahead }
                } else if self.addresses.ip != 0 {
                    Value::number(self.addresses.ip)
                } else if arch == Arch::Arm64 {
                    // The instruction pointer is behind the call.
                    Value { from: Origin::Context(*ip), plus: -4 }
                } else {
                    Value::of(Origin::FunctionPlace(*ip))
                }
            }
            ProbeContext::Registers(_) if self.addresses.ip == 0 => Value::of(Origin::Function),
            ProbeContext::Call { .. } if self.addresses.ip == 0 => {
                Value { from: Origin::Function, plus: i64::from(self.addresses.skip) }
            }
            _ => Value::number(self.addresses.ip),
        }
    }

    fn head(&self) -> Result<Vec<Value>, Unavailable> {
        if self.context == ProbeContext::Record {
            return Ok(Vec::new());
        }
        let place = self.place();
        if !self.event().is_exit() {
            return Ok(vec![place]);
        }
        let back = match self.context {
            ProbeContext::Registers(arch) => Value::context(registers(arch).ip),
            // After the arguments: the return value, the frame pointer, the return address into the function, and the
            // return address to its caller (`arch_prepare_bpf_trampoline()`, `arch/x86/net/bpf_jit_comp.c`).
            ProbeContext::Call { words, arch: Arch::X86_64, .. } if !self.addresses.may_jump => {
                Value::of(Origin::Call(words + 3))
            }
            // A function that jumps to its trampoline leaves no return address into itself.
            ProbeContext::Call { words, arch: Arch::X86_64, .. } => {
                let (start, size) = (self.addresses.ip, CALL_AREA);
                let (inside, outside) = (words + 3, words + 2);
                Value::of(Origin::CallReturn { told_by: outside, inside, outside, start, size })
            }
            // The return value, x19, x20, perhaps padding, frame pointer, return address, frame pointer, return to the
            // caller.
            ProbeContext::Call { words, arch: Arch::Arm64, .. } => {
                let Addresses { ip: start, end, .. } = self.addresses;
                let (inside, outside) = (words + 6, words + 7);
                let size = end.saturating_sub(start);
                Value::of(Origin::CallReturn { told_by: words + 4, inside, outside, start, size })
            }
            ProbeContext::Arguments(_) | ProbeContext::Record => {
                return Err(Unavailable::NoReturn);
            }
        };
        Ok(vec![place, back])
    }

    fn arg(&self, arg: &Checked, head_size: usize) -> Result<ArgPlan, Unavailable> {
        let mut value = None;
        let mut steps = Vec::new();
        let mut store = None;
        let mut bits = None;
        // Of later kernels' fprobes, whose symbols are looked up when the event is enabled.
        if let Some([Op::Symbol(_), Op::Load(Source::Immediate(0))]) = arg.program.ops().get(..2)
            && self.event().kind() == Kind::Fprobe
        {
            return Err(Unavailable::Symbol(arg.arg.name.clone()));
        }
        for op in arg.program.ops() {
            match op {
                Op::Symbol(_) | Op::Loop(_) => {}
                Op::Load(source) => value = Some(self.source(source)?),
                Op::Deref { user, offset } => steps.push(Step::Deref(Deref { user: *user, offset: *offset })),
                Op::ThisCpu => match self.addresses.per_cpu {
                    0 => return Err(Unavailable::Source("the place of per-CPU memory")),
                    table => steps.push(Step::ThisCpu { table }),
                },
                Op::Store { what, offset, size } => store = Some((*what, *offset, *size)),
                Op::Bits { left, right, size } => {
                    bits = Some(BitShifts { left: *left, right: *right, size: *size });
                }
            }
        }
        let (Some(value), Some((store, store_offset, size))) = (value, store) else {
            return Err(Unavailable::NoValue(arg.arg.name.clone()));
        };
        // The kernel's texts are in its own memory, those of programs on their stack.
        let is_own = matches!(value.from, Origin::Comm | Origin::Text(_));
        if is_own
            && !(steps.is_empty() && store_offset == 0 && matches!(store, Store::Text | Store::UserText))
        {
            return Err(Unavailable::Source("the memory of a text"));
        }
        Ok(ArgPlan {
            name: arg.arg.name.clone(),
            offset: head_size + arg.arg.offset as usize,
            size,
            count: arg.arg.count.max(1),
            value,
            steps,
            store,
            store_offset,
            bits,
        })
    }

    /// The arguments that a program at the entry must save.
    fn entry_args(&self) -> Vec<Value> {
        match self.context {
            ProbeContext::Registers(arch) => {
                self.probe.saved_args.iter().map(|n| argument(arch, *n)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn source(&self, source: &Source) -> Result<Value, Unavailable> {
        let lacks = |what| Err(Unavailable::Source(what));
        Ok(match (source, self.context) {
            (Source::Immediate(value), _) => Value::number(*value),
            (Source::Comm, _) => Value::of(Origin::Comm),
            (Source::Current, _) => Value::of(Origin::Task),
            // The kernel's uprobes read the text from user memory, which does not contain it (`fetch_store_string()`,
            // `kernel/trace/trace_uprobe.c`).
            (Source::Text(_), _) if self.user => Value::number(0),
            (Source::Text(text), _) => Value::of(Origin::Text(text.clone())),
            (Source::Field(field), ProbeContext::Record) => Value::of(Origin::Field(field.clone())),
            (Source::Register(place), ProbeContext::Registers(_)) => Value::context(*place as u16),
            (Source::Register(_), _) => return lacks("a register"),
            (Source::StackPointer, ProbeContext::Registers(arch)) => Value::context(registers(arch).sp),
            (Source::Stack(n), ProbeContext::Registers(_)) => Value::of(Origin::Stack(*n)),
            (Source::StackPointer | Source::Stack(_), _) => return lacks("the stack"),
            (Source::Retval, ProbeContext::Registers(arch)) => Value::context(registers(arch).retval),
            (Source::Retval, ProbeContext::Call { words, exit: true, .. }) => Value::of(Origin::Call(words)),
            (Source::Retval, _) => return lacks("the return value"),
            (Source::Argument(n), ProbeContext::Registers(arch)) => argument(arch, *n),
            (Source::Argument(n), ProbeContext::Call { words, .. }) if *n < u32::from(words) => {
                Value::of(Origin::Call(*n as u8))
            }
            // The arguments of a tracepoint are counted from 1, because the tracepoint's function has one more.
            (Source::Argument(n), ProbeContext::Arguments(words)) if (1..=u32::from(words)).contains(n) => {
                Value::context((*n as u16 - 1) * 8)
            }
            (Source::Argument(_), ProbeContext::Arguments(_)) => Value::number(0),
            (Source::Argument(n), _) => return Err(Unavailable::Argument(n + 1)),
            (Source::SavedArg(offset), ProbeContext::Call { words, exit: true, .. }) => {
                let index = self.probe.saved_args.get(*offset as usize / 8).copied().unwrap_or(u32::MAX);
                if index >= u32::from(words) {
                    return Err(Unavailable::Argument(index.wrapping_add(1)));
                }
                Value::of(Origin::Call(index as u8))
            }
            (Source::SavedArg(offset), ProbeContext::Registers(_)) => {
                Value::of(Origin::EntryArg((*offset / 8) as u8))
            }
            (Source::SavedArg(_), _) => return lacks("a saved argument"),
            (Source::File(offset), ProbeContext::Registers(_)) => {
                let crate::event::dynamic::Target::File { offset: own, .. } = self.event().target else {
                    return lacks("an offset in a file");
                };
                let Value { from, plus } = self.place();
                Value { from, plus: plus.wrapping_add(*offset).wrapping_sub(own.cast_signed()) }
            }
            (Source::File(_), _) => return lacks("an offset in a file"),
            (Source::Field(_), _) => return lacks("a field of an event"),
        })
    }
}

/// A function's argument at its entry.
fn argument(arch: Arch, n: u32) -> Value {
    let registers = registers(arch);
    match registers.args.get(n as usize) {
        Some(place) => Value::context(*place),
        None => match registers.stack_args {
            Some(first) => Value::of(Origin::Stack(first + n - registers.args.len() as u32)),
            None => Value::number(0),
        },
    }
}

/// One value per line, for `tracer explain`.
impl fmt::Display for ProbePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, value) in self.head.iter().enumerate() {
            writeln!(f, "bytes {}: {value}", tracer_abi::COMMON_SIZE + 8 * at)?;
        }
        for arg in &self.args {
            write!(f, "bytes {} ({}): {}", arg.offset, arg.name, arg.value)?;
            for step in &arg.steps {
                match step {
                    Step::Deref(Deref { user, offset }) => {
                        write!(f, ", {}{offset:+}()", if *user { "user " } else { "" })?;
                    }
                    Step::ThisCpu { .. } => f.write_str(", this CPU's")?,
                }
            }
            writeln!(f, ", {:?} {:+}, {} times {} bytes", arg.store, arg.store_offset, arg.count, arg.size)?;
        }
        Ok(())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            Origin::Nothing => return write!(f, "{:#x}", self.plus),
            Origin::Context(offset) => write!(f, "context at {offset}")?,
            Origin::Call(word) => write!(f, "call's word {word}")?,
            Origin::EntryArg(word) => write!(f, "word {word} saved at the entry")?,
            Origin::CallReturn { inside, outside, .. } => write!(f, "call's word {inside} or {outside}")?,
            Origin::Function | Origin::FunctionInTask { .. } => f.write_str("the function")?,
            Origin::FunctionPlace(_) => f.write_str("the function's place")?,
            Origin::Stack(word) => write!(f, "stack's word {word}")?,
            Origin::Comm => f.write_str("comm")?,
            Origin::Task => f.write_str("current task")?,
            Origin::Text(text) => write!(f, "\"{}\"", text.escape_ascii())?,
            Origin::Field(field) => write!(f, "field {}", field.name)?,
        }
        if self.plus != 0 { write!(f, " {:+}", self.plus) } else { Ok(()) }
    }
}
