//! An instruction of the kernel, by perf kprobe, and the return of a kernel function, by perf kretprobe. The context
//! holds the registers. The programs always return 0, so that the perf event of the hook takes no sample.

use aya_ebpf::{
    EbpfContext,
    macros::{kprobe, kretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use crate::emit::{Origin, hit};

/// Processes a hit of the instruction.
#[kprobe]
pub fn kprobe_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}

/// Processes a return.
#[kretprobe]
pub fn kretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
