//! Updates the thread table when tasks start and end (`event-fork` of tracefs). Children inherit the lists of their
//! parent. A freed task is removed, so that a reused thread id is not traced by mistake.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_map_delete_elem, bpf_map_update_elem},
    },
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};

use crate::{ctx::read_kernel, map::PIDS};

/// Byte offset of `pid` in `struct task_struct`; user space replaces the zero.
#[unsafe(no_mangle)]
static TASK_PID: u32 = 0;

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`, run by the parent.
#[raw_tracepoint]
pub fn pids_fork(ctx: RawTracePointContext) -> i32 {
    let Some(lists) = PIDS.get(bpf_get_current_pid_tgid() as u32) else { return 0 };
    let child: u64 = ctx.arg(1);
    // SAFETY: a static of a plain integer.
    let offset = unsafe { (&raw const TASK_PID).read_volatile() };
    let pid: u32 = read_kernel(child + u64::from(offset));
    // SAFETY: a looked-up map value is valid for the program's run.
    let lists: u8 = unsafe { lists.read() };
    // SAFETY: key and value live through the call.
    unsafe {
        bpf_map_update_elem(PIDS.as_ptr(), (&raw const pid).cast::<c_void>(), (&raw const lists).cast(), 0);
    }
    0
}

/// `sched_process_free(struct task_struct *task)`: the last tracepoint of a task.
#[raw_tracepoint]
pub fn pids_free(ctx: RawTracePointContext) -> i32 {
    let task: u64 = ctx.arg(0);
    // SAFETY: a static of a plain integer.
    let offset = unsafe { (&raw const TASK_PID).read_volatile() };
    let pid: u32 = read_kernel(task + u64::from(offset));
    // SAFETY: the key lives through the call.
    unsafe {
        bpf_map_delete_elem(PIDS.as_ptr(), (&raw const pid).cast::<c_void>());
    }
    0
}
