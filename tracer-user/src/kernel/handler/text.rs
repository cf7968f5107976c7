//! The kernel's instructions, functions that handlers call, and reasons why a handler is not followed.

/// An architecture whose instructions are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// x86-64
    X86_64,
    /// arm64
    Arm64,
}

impl InstructionSet {
    /// The running kernel's; `None` for another architecture.
    pub const NATIVE: Option<Self> = if cfg!(target_arch = "x86_64") {
        Some(Self::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Self::Arm64)
    } else {
        None
    };
}

/// The instructions of the running kernel.
pub trait KernelText {
    /// The bytes at an address: at least 15, or fewer if the memory after them cannot be read. `None` if the address itself
    /// cannot be read.
    fn at(&mut self, address: u64) -> Option<&[u8]>;
}

/// Addresses of functions that handlers call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callees {
    /// `trace_event_buffer_reserve`
    pub reserve: u64,
    /// `trace_event_buffer_commit`
    pub commit: u64,
    /// Functions that decide by the event's file whether it is recorded.
    pub checks: Vec<u64>,
    /// `memcpy` and `memmove`.
    pub copies: Vec<u64>,
    /// `memset`
    pub fills: Vec<u64>,
    /// Functions that do not return, or that stand for the instruction `ret`, or that reschedule before it.
    pub ends: Vec<u64>,
}

/// Names of [`Callees::checks`]; a kernel may lack some.
pub const CHECKS: [&str; 2] = ["trace_event_ignore_this_pid", "__trace_trigger_soft_disabled"];
/// Names of [`Callees::copies`].
pub const COPIES: [&str; 4] = ["memcpy", "__memcpy", "memmove", "__memmove"];
/// Names of [`Callees::fills`].
pub const FILLS: [&str; 2] = ["memset", "__memset"];
/// Names of [`Callees::ends`]; a kernel has some of them.
pub const ENDS: [&str; 12] = [
    "__SCT__preempt_schedule_notrace",
    "preempt_schedule_notrace_thunk",
    "dynamic_preempt_schedule_notrace",
    "preempt_schedule_notrace",
    "__x86_return_thunk",
    "zen_untrain_ret",
    "srso_return_thunk",
    "srso_alias_return_thunk",
    "retbleed_return_thunk",
    "call_depth_return_thunk",
    "its_return_thunk",
    "__stack_chk_fail",
];

/// Why a handler's stores are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfollowed {
    /// The kernel has no symbol of its name.
    #[error("its symbol was not found")]
    NoSymbol,
    /// Its instructions could not be read.
    #[error("the instructions at {0:#x} cannot be read")]
    Unreadable(u64),
    /// Bytes that are no instruction.
    #[error("there is no instruction at {0:#x}")]
    Invalid(u64),
    /// It calls another function.
    #[error("it calls the function at {0:#x}")]
    Call(u64),
    /// It calls or jumps to an address that it computes.
    #[error("it jumps to an address that it computes")]
    Indirect,
    /// An instruction that does nothing, and that the kernel may replace by a jump.
    #[error("it has a static key")]
    StaticKey,
    /// An instruction that is not followed.
    #[error("it has the instruction {0}")]
    Instruction(String),
    /// It stores to memory other than its stack, the record and the preempt count.
    #[error("it stores to other memory")]
    Store,
    /// It copies or clears memory of a size that it computes.
    #[error("it copies or fills memory of an unknown size")]
    Size,
    /// Too many branches or instructions.
    #[error("it has too many branches or instructions")]
    TooLong,
    /// It decides by the arguments whether there is a record.
    #[error("the arguments decide whether there is a record")]
    Conditional,
    /// No record is committed.
    #[error("it commits no record")]
    NoRecord,
}
