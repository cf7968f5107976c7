//! The return of a function in a user-space file, by perf uretprobe; otherwise like `uprobe.rs`.

use aya_ebpf::{EbpfContext, macros::uretprobe, programs::RetProbeContext};

use crate::emit::{Origin, hit};

/// Always returns 0, so that the perf event of the hook takes no sample.
#[uretprobe]
pub fn uretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
