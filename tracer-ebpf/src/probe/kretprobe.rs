//! The return of a kernel function, by perf kretprobe: the context is the registers.

use aya_ebpf::{EbpfContext, macros::kretprobe, programs::RetProbeContext};

use crate::emit::{Origin, hit};

/// Always returns 0, so that the perf event of the hook takes no sample.
#[kretprobe]
pub fn kretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
