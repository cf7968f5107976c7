//! Finds the preempt count and the amount that a hit itself adds to it.
//!
//! On arm64 and others it is in the current task. On x86 it is per-CPU memory without a symbol. A perf tracepoint
//! passes the address of the CPU's `__perf_regs` to its program, and BTF has the distance from there to
//! `__preempt_count`. The program runs once on every CPU, in task context of the tracer's own thread. It stores the
//! address and the value there, so that user space can check the result.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_smp_processor_id},
    macros::tracepoint,
    programs::TracePointContext,
};

use crate::{ctx::read_kernel, map::FOUND};

/// The id of the requesting thread; the bytes from `__perf_regs` to `__preempt_count`; or, if not 0, the bytes from the
/// start of the current `task_struct` to its `thread_info.preempt_count`. User space replaces the zeroes.
#[unsafe(no_mangle)]
static LOCATE: [i64; 3] = [0; 3];

/// Stores `(address, count)` for the CPU it runs on.
#[tracepoint]
pub fn locate_context(ctx: TracePointContext) -> u32 {
    // SAFETY: elements of a static of plain integers.
    let (thread, distance, in_task) = unsafe {
        let locate = (&raw const LOCATE).cast::<i64>();
        (locate.read_volatile(), locate.add(1).read_volatile(), locate.add(2).read_volatile())
    };
    if bpf_get_current_pid_tgid() as u32 != thread as u32 {
        return 0;
    }
    // SAFETY: no arguments.
    if let Some(found) = FOUND.get(unsafe { bpf_get_smp_processor_id() }) {
        let address = if in_task == 0 {
            let regs: u64 = read_kernel(ctx.as_ptr() as u64);
            regs.wrapping_add_signed(distance)
        } else {
            // SAFETY: no arguments.
            unsafe { bpf_get_current_task() }.wrapping_add_signed(in_task)
        };
        let count: u32 = read_kernel(address);
        // SAFETY: a looked-up map value is valid for the program's run.
        unsafe { found.write([address, u64::from(count)]) };
    }
    0
}
