//! Follows the processes that take part in user events: their children, their end and their execution of another
//! program. The table holds the process ids; user space receives each change as a [`tracer_abi::TaskEvent`].
//!
//! Threads are not followed: all threads of a process take part, and the table has one entry for the process.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, generated::bpf_ringbuf_output},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tracer_abi::{TASKS_LOST, TaskEvent, task_event};

use crate::{
    ctx::read_kernel,
    map::{TASK_RING, TASKS},
};

/// Byte offsets in `struct task_struct`, and of `live` in `struct signal_struct`; user space replaces the zeroes.
#[unsafe(no_mangle)]
static TASKS_TGID: u32 = 0;
#[unsafe(no_mangle)]
static TASKS_MM: u32 = 0;
#[unsafe(no_mangle)]
static TASKS_SIGNAL: u32 = 0;
#[unsafe(no_mangle)]
static TASKS_LIVE: u32 = 0;

macro_rules! offset {
    ($name:ident) => {
        // SAFETY: a static of a plain integer.
        u64::from(unsafe { (&raw const $name).read_volatile() })
    };
}

/// Sends an event to user space, or marks the loss if the ring has no space. Returns whether the event was sent.
#[inline(always)]
fn send(event: TaskEvent) -> bool {
    // SAFETY: the event lives through the call.
    let failed = unsafe {
        bpf_ringbuf_output(
            TASK_RING.as_ptr(),
            (&raw const event).cast_mut().cast(),
            size_of::<TaskEvent>() as u64,
            0,
        )
    };
    if failed != 0
        && let Some(lost) = TASKS.get(TASKS_LOST)
    {
        // SAFETY: a looked-up map value is valid for the program's run.
        unsafe { lost.write(1) };
    }
    failed == 0
}

/// The time at which a process began to take part; `None` if it does not.
#[inline(always)]
fn since(process: u32) -> Option<u64> {
    if process == TASKS_LOST {
        return None;
    }
    // SAFETY: a looked-up map value is valid for the program's run.
    TASKS.get(process).map(|since| unsafe { since.read() })
}

#[inline(always)]
fn current() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`, run by the parent before the child
/// runs.
#[raw_tracepoint]
pub fn tasks_fork(ctx: RawTracePointContext) -> i32 {
    let parent = current();
    if since(parent).is_none() {
        return 0;
    }
    let (from, child): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    let process: u32 = read_kernel(child + offset!(TASKS_TGID));
    if process == parent {
        return 0;
    }
    let (mm, its): (u64, u64) =
        (read_kernel(from + offset!(TASKS_MM)), read_kernel(child + offset!(TASKS_MM)));
    // SAFETY: no arguments.
    let time = unsafe { bpf_ktime_get_ns() };
    // An entry under this id belongs to an ended process whose end the programs missed.
    TASKS.remove(process);
    if !TASKS.insert(process, time) {
        return 0;
    }
    let event = TaskEvent {
        kind: task_event::FORK,
        task: parent,
        other: process,
        shares: u32::from(mm == its),
        time,
    };
    // User space does not know this process and would never remove it, so it gets no entry in the table.
    if !send(event) {
        TASKS.remove(process);
    }
    0
}

/// `sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`: the calling thread has the
/// process id by now.
#[raw_tracepoint]
pub fn tasks_exec(_ctx: RawTracePointContext) -> i32 {
    let own = current();
    if let Some(time) = since(own) {
        gone(own, time);
    }
    0
}

/// `sched_process_exit(struct task_struct *p, ...)`, run by each thread after the kernel decremented `signal->live` for
/// it.
#[raw_tracepoint]
pub fn tasks_exit(ctx: RawTracePointContext) -> i32 {
    let own = current();
    let Some(time) = since(own) else { return 0 };
    let task: u64 = ctx.arg(0);
    let signal: u64 = read_kernel(task + offset!(TASKS_SIGNAL));
    let live: u32 = read_kernel(signal + offset!(TASKS_LIVE));
    if live == 0 {
        gone(own, time);
    }
    0
}

#[inline(always)]
fn gone(process: u32, time: u64) {
    TASKS.remove(process);
    send(TaskEvent { kind: task_event::GONE, task: process, other: 0, shares: 0, time });
}
