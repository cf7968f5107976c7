//! Measures the time from the wake-up of a thread until it runs. If the time exceeds a limit, the program emits a
//! synthetic event of a mirror in the kernel: `long_wait pid_t pid; char[16] comm; u64 wait_us`.
//!
//! `FOLLOWED` maps each watched thread to its limit in nanoseconds.
//!
//! Three more programs emit one event each and cover the other kinds of programs. `by_raw_tp` is emitted for each
//! system call that `CALLS` names for a thread, `by_kprobe` for calls of a function, `by_perf_event` for samples of a
//! perf event.
#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::bpf_ktime_get_ns,
    macros::{map, perf_event, raw_tracepoint, tracepoint, uprobe},
    maps::HashMap,
    programs::{PerfEventContext, ProbeContext, RawTracePointContext, TracePointContext},
};
use tracer_emit::{synth_event, synth_event_trace};

synth_event! {
    mod long_wait: "long_wait" at tracepoint {
        "pid_t" pid: i32,
        "char[16]" comm: &mut [u8; 16],
        "u64" wait_us: u64,
    }
}

synth_event! {
    mod by_raw_tp: "by_raw_tp" at raw_tracepoint {
        "u64" id: u64,
    }
}

synth_event! {
    mod by_kprobe: "by_kprobe" at kprobe {
        "s64" number: i64,
        "char[8]" text: &mut [u8; 8],
    }
}

synth_event! {
    mod by_perf_event: "by_perf_event" at perf_event {
        "pid_t" pid: i32,
    }
}

/// System call number by thread id.
#[map]
static CALLS: HashMap<u32, u64> = HashMap::with_max_entries(64, 0);

#[raw_tracepoint]
pub fn at_raw_tp(ctx: RawTracePointContext) -> u32 {
    // SAFETY: the second argument of sys_enter is the number; nothing deletes entries of the map while this program
    // runs.
    let (id, wanted) = unsafe { (ctx.arg::<u64>(1), CALLS.get(&ctx.pid()).copied()) };
    if wanted == Some(id) {
        let _ = synth_event_trace!(by_raw_tp, &ctx, id);
    }
    0
}

#[uprobe]
pub fn at_kprobe(ctx: ProbeContext) -> u32 {
    if let Some(number) = ctx.arg::<i64>(0) {
        let mut text = *b"a text\0\0";
        let _ = synth_event_trace!(by_kprobe, &ctx, number, &mut text);
    }
    0
}

#[perf_event]
pub fn at_perf_event(ctx: PerfEventContext) -> u32 {
    let _ = synth_event_trace!(by_perf_event, &ctx, ctx.pid() as i32);
    0
}

#[map]
static FOLLOWED: HashMap<u32, u64> = HashMap::with_max_entries(64, 0);

/// Wake-up time by thread id, in nanoseconds.
#[map]
static WOKEN: HashMap<u32, u64> = HashMap::with_max_entries(64, 0);

/// Offsets in the records of sched_wakeup and sched_switch, as their format files have them.
const WAKEUP_PID: usize = 24;
const SWITCH_PREV_PID: usize = 24;
const SWITCH_PREV_STATE: usize = 32;
const SWITCH_NEXT_COMM: usize = 40;
const SWITCH_NEXT_PID: usize = 56;

fn begins_to_wait(pid: u32) {
    // SAFETY: nothing deletes entries of the map while this program runs.
    if unsafe { FOLLOWED.get(&pid) }.is_some() {
        // SAFETY: no arguments.
        let now = unsafe { bpf_ktime_get_ns() };
        let _ = WOKEN.insert(&pid, &now, 0);
    }
}

#[tracepoint]
pub fn wakeup(ctx: TracePointContext) -> u32 {
    // SAFETY: the record has its pid there.
    if let Ok(pid) = unsafe { ctx.read_at::<u32>(WAKEUP_PID) } {
        begins_to_wait(pid);
    }
    0
}

#[tracepoint]
pub fn switch(ctx: TracePointContext) -> u32 {
    // SAFETY: the record has these fields there.
    unsafe {
        // A thread that is still runnable starts to wait now.
        if ctx.read_at::<u64>(SWITCH_PREV_STATE) == Ok(0)
            && let Ok(pid) = ctx.read_at::<u32>(SWITCH_PREV_PID)
        {
            begins_to_wait(pid);
        }
        if let Ok(pid) = ctx.read_at::<u32>(SWITCH_NEXT_PID)
            && let (Some(woken), Some(bound)) = (WOKEN.get(&pid).copied(), FOLLOWED.get(&pid).copied())
        {
            let _ = WOKEN.remove(&pid);
            let waited = bpf_ktime_get_ns() - woken;
            if waited > bound
                && let Ok(mut comm) = ctx.read_at::<[u8; 16]>(SWITCH_NEXT_COMM)
            {
                let _ = synth_event_trace!(long_wait, &ctx, pid as i32, &mut comm, waited / 1000);
            }
        }
    }
    0
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
