//! A perf tracepoint: the context is the kernel's own record, its first eight bytes taken by a pointer to the
//! registers (`perf_trace_run_bpf_submit`, kernel/events/core.c).

use aya_ebpf::{EbpfContext, macros::tracepoint, programs::TracePointContext};

use crate::emit::{Origin, hit};

/// Always 0: the perf event behind the hook shall not sample.
#[tracepoint]
pub fn trace_event(ctx: TracePointContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
