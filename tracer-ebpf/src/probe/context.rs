//! Finds where each CPU keeps its preempt count, on machines where that is per-CPU memory (x86).
//!
//! A perf tracepoint hands its program the address of the CPU's `__perf_regs`; BTF says how far from there
//! `__preempt_count` lies. The program runs once on every CPU, hit by our own thread in task context, and leaves the
//! address and what it read there, so that user space can see whether the guess holds.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id},
    macros::tracepoint,
    programs::TracePointContext,
};

use crate::{ctx::peek, map::FOUND};

/// Thread that asks, and bytes from `__perf_regs` to `__preempt_count`; user space replaces the zeroes.
#[unsafe(no_mangle)]
static SEEK: [i64; 2] = [0; 2];

/// Leaves `(address, count)` for the CPU it runs on.
#[tracepoint]
pub fn seek_context(ctx: TracePointContext) -> u32 {
    // SAFETY: elements of a static of plain integers.
    let (thread, distance) = unsafe {
        let seek = (&raw const SEEK).cast::<i64>();
        (seek.read_volatile(), seek.add(1).read_volatile())
    };
    if bpf_get_current_pid_tgid() as u32 != thread as u32 {
        return 0;
    }
    // SAFETY: no arguments.
    if let Some(found) = FOUND.get(unsafe { bpf_get_smp_processor_id() }) {
        let regs: u64 = peek(ctx.as_ptr() as u64);
        let address = regs.wrapping_add_signed(distance);
        let count: u32 = peek(address);
        // SAFETY: a looked-up map value is valid for the program's run.
        unsafe { found.write([address, u64::from(count)]) };
    }
    0
}
