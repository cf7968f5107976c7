//! The exit of a kernel function, by BPF trampoline: the context is its arguments, a `u64` each, and what it returns.

use aya_ebpf::{EbpfContext, macros::fexit, programs::FExitContext};

use crate::emit::{Origin, hit};

/// Takes a hit.
#[fexit]
pub fn fexit_event(ctx: FExitContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
