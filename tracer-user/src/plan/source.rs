//! Sources of the bytes of a record at a hook.
//!
//! A filter and a record plan name record offsets only; a [`ProgramContext`] defines how generated code accesses them.
//! At a perf tracepoint and in the injection program the context is the record itself. At a raw tracepoint each field
//! has its own [`Source`].

use super::{expression::Expression, probe::ProbePlan};
use crate::{event::Format, lang::facts::Arch};

/// The kind of hook that a program is attached to; each has a template in `tracer-ebpf/src/probe/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramContext {
    /// A perf tracepoint: the context is the kernel's own record; its first eight bytes cannot be loaded.
    Tracepoint,
    /// The perf tracepoint of a system call whose record has data of user memory (7.2). The context has the numbers of
    /// the record and no data: the memory where the record has the words of the data is not set
    /// (`perf_call_bpf_enter()`, kernel/trace/trace_syscalls.c).
    CallTracepoint,
    /// `BPF_PROG_TYPE_SYSCALL`: the context is the whole record that user space made.
    Inject,
    /// A raw tracepoint: the context is an array of `u64` arguments.
    RawTracepoint(Vec<FieldSource>),
    /// A dynamic event: the plan defines the context.
    Probe(Box<ProbePlan>),
    /// A probe in a user program, at the instruction that passes a record without the common fields: the context is
    /// `struct pt_regs`.
    UserRecord(UserRecord),
}

/// The location of a user program's record at the instruction that passes it (`.note.tracer` of the crate
/// `tracer-events`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRecord {
    /// Byte offset in `struct pt_regs` of the register with the record's address.
    pub address: u16,
    /// Byte offset in `struct pt_regs` of the register with the record's length.
    pub length: u16,
    /// Bytes of the record's fixed part, common fields included.
    pub fixed: u16,
    /// Whether data follows the fixed part.
    pub varies: bool,
}

impl UserRecord {
    /// The record's address and length are the first two arguments of a function.
    pub fn of(format: &Format, arch: Arch) -> Self {
        let (address, length) = match arch {
            Arch::X86_64 => (112, 104),
            Arch::Arm64 => (0, 8),
        };
        Self { address, length, fixed: format.fixed_size() as u16, varies: format.is_variable() }
    }
}

/// The source of one field of a record at a raw tracepoint. Fields are after the common fields. Bytes without a source
/// are zero, as in the kernel's own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSource {
    /// Offset in the payload.
    pub offset: u16,
    /// Size in bytes (1, 2, 4, 8; more only for [`Source::Memory`]).
    pub size: u16,
    /// The source of the bytes.
    pub source: Source,
}

/// The location of the id of the other thread that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// In the context, at this byte offset.
    InRecord(u32),
    /// In the `task_struct` that an argument points to, at this byte offset.
    InTask {
        /// Number of the argument.
        arg: u8,
        /// Byte offset of `pid`.
        offset: u32,
    },
}

/// The source of the bytes of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The argument itself, truncated to the field's size.
    Arg(u8),
    /// A fixed number.
    Const(u64),
    /// Bytes in kernel memory. The program starts from argument `arg` and reads a pointer at every offset except the
    /// last; the field's bytes are at the last. `[24]` is `*(T *)(arg + 24)`.
    Memory {
        /// Number of the argument.
        arg: u8,
        /// Byte offsets, at least one.
        path: Vec<u32>,
    },
    /// A number in kernel memory that is narrower than its field, found like the bytes of [`Source::Memory`]: `width`
    /// bytes (1, 2 or 4) are read and extended to the field's size.
    Extended {
        /// Number of the argument.
        arg: u8,
        /// Byte offsets, at least one.
        path: Vec<u32>,
        /// Bytes to read.
        width: u8,
        /// Whether the sign extends.
        signed: bool,
    },
    /// A number that is computed, truncated to the field's size.
    Computed(Box<Expression>),
    /// The six arguments of a system call, eight bytes each, in the `struct pt_regs` that argument `regs` points to
    /// (`args` of `raw_syscalls:sys_enter`).
    SyscallArgs(SyscallArgs),
    /// User memory that an argument of a system call points to. The field is the `__data_loc` word of the data, which
    /// follow the record's fields.
    UserData(UserData),
    /// `prev_state` of `sched_switch`, which the kernel computes from the task's state and exit state and the preempt
    /// argument (`__trace_sched_switch_state()`, `include/trace/events/sched.h`).
    SwitchState(SwitchState),
}

/// Inputs of [`Source::UserData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserData {
    /// Number of the argument that points to the registers.
    pub regs: u8,
    /// Byte offset in `struct pt_regs` of the system call's argument that points to the data.
    pub pointer: u32,
    /// Byte offset in `struct pt_regs` of the argument with the number of bytes; `None` for a text that ends with its
    /// first NUL.
    pub length: Option<u32>,
}

impl UserData {
    /// Number of bytes that are recorded at most, whatever an instance's `syscall_user_buf_size` is
    /// (`SYSCALL_FAULT_USER_MAX`, kernel/trace/trace.h).
    pub const MAX: u16 = 165;
    /// Number of bytes that are read from user memory at most: those and an omission mark (`SYSCALL_FAULT_ARG_SZ` less
    /// one, kernel/trace/trace_syscalls.c).
    pub const READ: u16 = Self::MAX + 4;
}

/// Inputs of [`Source::SwitchState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchState {
    /// Number of the argument that is true if the task was preempted.
    pub preempt: u8,
    /// Number of the argument with the state (5.18 and later).
    pub state: u8,
    /// Number of the argument that points to the task.
    pub task: u8,
    /// Byte offset of `exit_state` in `struct task_struct`.
    pub exit_state: u32,
}

/// Locations of the arguments of [`Source::SyscallArgs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallArgs {
    /// Number of the argument that points to the registers.
    pub regs: u8,
    /// Byte offset in `struct pt_regs` of each argument.
    pub native: [u32; 6],
    /// The mark of a 32-bit call and the places of its arguments; None where both kinds are equal.
    pub compat: Option<CompatArgs>,
}

/// A 32-bit system call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatArgs {
    /// Byte offset in the current `struct task_struct` of a `u32` with flags.
    pub task_offset: u32,
    /// Flags, one of which is set in a 32-bit call.
    pub mask: u32,
    /// Byte offset in `struct pt_regs` of each argument.
    pub regs: [u32; 6],
}

impl SyscallArgs {
    /// Byte offset in `struct pt_regs` of each argument, for the native call and for the 32-bit one.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        let compat = self.compat.map(|compat| compat.regs);
        self.native.into_iter().enumerate().map(move |(n, native)| (native, compat.map(|regs| regs[n])))
    }
}
