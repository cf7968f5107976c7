//! The entry of a kernel function, by BPF trampoline: the context is its arguments, a `u64` each.

use aya_ebpf::{EbpfContext, macros::fentry, programs::FEntryContext};

use crate::emit::{Origin, hit};

/// Processes a hit.
#[fentry]
pub fn fentry_event(ctx: FEntryContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
