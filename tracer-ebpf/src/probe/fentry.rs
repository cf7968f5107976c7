//! The entry and the exit of a kernel function, by BPF trampoline. The context holds the arguments, a `u64` each. At
//! the exit the return value follows them.

use aya_ebpf::{
    EbpfContext,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use crate::emit::{Origin, hit};

/// Processes a hit at the entry.
#[fentry]
pub fn fentry_event(ctx: FEntryContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}

/// Processes a hit at the exit.
#[fexit]
pub fn fexit_event(ctx: FExitContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
