//! A raw tracepoint: the context is the tracepoint's arguments, a `u64` each. Also the target of the syscall
//! dispatchers' tail calls.

use aya_ebpf::{EbpfContext, macros::raw_tracepoint, programs::RawTracePointContext};

use crate::emit::{Origin, hit};

/// Takes a hit of the event whose functions are linked in.
#[raw_tracepoint]
pub fn raw_event(ctx: RawTracePointContext) -> i32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
