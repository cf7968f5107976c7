//! A return to the caller of a kernel function, by perf kretprobe: the context is the registers.

use aya_ebpf::{EbpfContext, macros::kretprobe, programs::RetProbeContext};

use crate::emit::{Origin, hit};

/// Always 0: the perf event behind the hook shall not sample.
#[kretprobe]
pub fn kretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
