//! A return of a function of a file, by perf uretprobe; otherwise as `uprobe.rs`.

use aya_ebpf::{EbpfContext, macros::uretprobe, programs::RetProbeContext};

use crate::emit::{Origin, hit};

/// Always 0: the perf event behind the hook shall not sample.
#[uretprobe]
pub fn uretprobe_event(ctx: RetProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
