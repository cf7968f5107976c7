//! An instruction of a file, by perf uprobe: the context is the registers of user space. Nothing keeps the program from being
//! preempted and run again by another thread on the same CPU.

use aya_ebpf::{EbpfContext, macros::uprobe, programs::ProbeContext};

use crate::emit::{Origin, hit};

/// Always 0: the perf event behind the hook shall not sample.
#[uprobe]
pub fn uprobe_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
