//! Following the tasks that take part in user events: who is born to one of them, and which of them ends or becomes
//! another program. The table says who they are; what happened goes to user space as [`tracer_abi::TaskEvent`].

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, generated::bpf_ringbuf_output},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tracer_abi::{TASKS_LOST, TaskEvent, task_event};

use crate::{
    ctx::peek,
    map::{TASK_RING, TASKS},
};

/// Byte offsets in `struct task_struct`; user space replaces the zeroes.
#[unsafe(no_mangle)]
static TASKS_PID: u32 = 0;
#[unsafe(no_mangle)]
static TASKS_MM: u32 = 0;

macro_rules! offset {
    ($name:ident) => {
        // SAFETY: a static of a plain integer.
        u64::from(unsafe { (&raw const $name).read_volatile() })
    };
}

/// Tells user space, or, where there is no room, that something was not told.
#[inline(always)]
fn tell(kind: u32, task: u32, other: u32, shares: u32) {
    // SAFETY: no arguments.
    let event = TaskEvent { kind, task, other, shares, time: unsafe { bpf_ktime_get_ns() } };
    // SAFETY: the event lives through the call.
    let told = unsafe {
        bpf_ringbuf_output(
            TASK_RING.as_ptr(),
            (&raw const event).cast_mut().cast(),
            size_of::<TaskEvent>() as u64,
            0,
        )
    };
    if told != 0 {
        lost();
    }
}

#[inline(always)]
fn lost() {
    if let Some(lost) = TASKS.get(TASKS_LOST) {
        // SAFETY: a looked-up map value is valid for the program's run.
        unsafe { lost.write(1) };
    }
}

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`, hit by the parent before the child runs.
#[raw_tracepoint]
pub fn tasks_fork(ctx: RawTracePointContext) -> i32 {
    let parent = bpf_get_current_pid_tgid() as u32;
    if TASKS.get(parent).is_none() {
        return 0;
    }
    let (from, child): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    let pid: u32 = peek(child + offset!(TASKS_PID));
    let (mm, its): (u64, u64) = (peek(from + offset!(TASKS_MM)), peek(child + offset!(TASKS_MM)));
    // A number that is still there is an ended task's whose end was not told.
    TASKS.remove(pid);
    if !TASKS.insert(pid, 1) {
        lost();
        return 0;
    }
    tell(task_event::FORK, parent, pid, u32::from(mm == its));
    0
}

/// `sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`
#[raw_tracepoint]
pub fn tasks_exec(ctx: RawTracePointContext) -> i32 {
    let own = bpf_get_current_pid_tgid() as u32;
    let old: u64 = ctx.arg(1);
    // A thread that does it takes the place of its process's first one.
    gone(old as u32);
    gone(own);
    0
}

/// `sched_process_exit(struct task_struct *p, ...)`
#[raw_tracepoint]
pub fn tasks_exit(_ctx: RawTracePointContext) -> i32 {
    gone(bpf_get_current_pid_tgid() as u32);
    0
}

#[inline(always)]
fn gone(task: u32) {
    if task != TASKS_LOST && TASKS.get(task).is_some() {
        TASKS.remove(task);
        tell(task_event::GONE, task, 0, 0);
    }
}
