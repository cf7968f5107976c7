//! An instruction of a user-space file, by perf uprobe, and the return of a function there, by perf uretprobe. The
//! context holds the user-space registers. The kernel may preempt the programs and run them again for another thread
//! on the same CPU. They always return 0, so that the perf event of the hook takes no sample.

use aya_ebpf::{
    EbpfContext,
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use crate::emit::{Origin, hit};

/// Processes a hit of the instruction.
#[uprobe]
pub fn uprobe_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}

/// Processes a return.
#[uretprobe]
pub fn uretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
