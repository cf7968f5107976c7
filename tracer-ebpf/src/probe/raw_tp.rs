//! A raw tracepoint. The context holds the tracepoint's arguments, a `u64` each. The syscall dispatchers tail-call
//! this program.

use aya_ebpf::{EbpfContext, macros::raw_tracepoint, programs::RawTracePointContext};

use crate::emit::{Origin, hit};

/// Processes a hit of the event whose functions are linked in.
#[raw_tracepoint]
pub fn raw_event(ctx: RawTracePointContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
