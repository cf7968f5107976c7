//! A perf tracepoint: the context is the kernel's own record. A pointer to the registers overwrites its first eight
//! bytes (`perf_trace_run_bpf_submit`, kernel/events/core.c).

use aya_ebpf::{EbpfContext, macros::tracepoint, programs::TracePointContext};

use crate::emit::{Origin, hit};

/// Always returns 0, so that the perf event of the hook takes no sample.
#[tracepoint]
pub fn trace_event(ctx: TracePointContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
