//! An instruction of the kernel, by perf kprobe: the context is the registers.

use aya_ebpf::{EbpfContext, macros::kprobe, programs::ProbeContext};

use crate::emit::{Origin, hit};

/// Always returns 0, so that the perf event of the hook takes no sample.
#[kprobe]
pub fn kprobe_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
