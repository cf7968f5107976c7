//! The exit of a kernel function, by BPF trampoline: the context is the arguments, a `u64` each, and the return value.

use aya_ebpf::{EbpfContext, macros::fexit, programs::FExitContext};

use crate::emit::{Origin, hit};

/// Processes a hit.
#[fexit]
pub fn fexit_event(ctx: FExitContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
