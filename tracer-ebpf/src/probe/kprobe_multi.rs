//! Entries or returns of many kernel functions at once, by fprobe. The context holds the registers.

use aya_ebpf::{EbpfContext, macros::kprobe, programs::ProbeContext};

use crate::emit::{Origin, hit};

/// Processes a hit.
#[kprobe]
pub fn kprobe_multi_event(ctx: ProbeContext) -> u32 {
    hit(ctx.as_ptr(), Origin::Current);
    0
}
