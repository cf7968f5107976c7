//! An instruction of a user-space file, by perf uprobe: the context is the user-space registers. The kernel may preempt
//! the program and run it again for another thread on the same CPU.

use aya_ebpf::{EbpfContext, macros::uprobe, programs::ProbeContext};

use crate::emit::{Origin, hit};

/// Always returns 0, so that the perf event of the hook takes no sample.
#[uprobe]
pub fn uprobe_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
