//! A raw tracepoint: the context is the tracepoint's arguments, a `u64` each. It is also the target of tail calls from
//! the syscall dispatchers.

use aya_ebpf::{EbpfContext, macros::raw_tracepoint, programs::RawTracePointContext};

use crate::emit::{Origin, hit};

/// Processes a hit of the event whose functions are linked in.
#[raw_tracepoint]
pub fn raw_event(ctx: RawTracePointContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
