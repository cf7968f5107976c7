//! Sources of the fields of well-known events, by the names and types of the kernel's source.
//!
//! There is one entry per event, derived from its `TP_PROTO` and `TP_fast_assign` (`include/trace/events/`). An entry
//! lists every field that the event has in any kernel since 6.1. A format with another field, or with a string of
//! varying length, gets no raw plan. The table lists only events that a thread can provoke in itself, because each plan
//! is checked against the real event before use. That excludes `sched_process_exit`, which happens in the thread that
//! ends, and the events of workqueue and `cpu_idle`, which happen in kernel threads.

use super::raw::Provoke;

/// The fields of an event, each with its source.
type Fields = &'static [(&'static str, From)];

/// One event.
pub(super) struct Entry {
    pub(super) system: &'static str,
    pub(super) name: &'static str,
    pub(super) provoke: Provoke,
    pub(super) fields: Fields,
}

/// Source of a field.
pub(super) enum From {
    /// An argument.
    Arg(Param),
    /// A value at a pointer argument, as `a.b->c`; of several paths, the first that exists in the kernel.
    Read(Param, &'static [&'static str]),
    /// The number that a pointer argument points to, or an argument that is the number.
    Target(Param),
    /// `prev_state` of sched_switch.
    SwitchState { preempt: Param, state: Param, task: Param },
    /// The number of the system call in the registers.
    SyscallNumber(Param),
    /// The six arguments of the system call in the registers.
    SyscallArgs(Param),
}

/// An argument: the `nth` (from 0) of its type; the name is checked if BTF has it.
pub(super) struct Param {
    pub(super) name: &'static str,
    /// One type, or several types of different kernels, separated by `|`.
    pub(super) ty: &'static str,
    pub(super) nth: u8,
}

/// The entry of an event.
pub(super) fn find(system: &str, name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.system == system && entry.name == name)
}

const fn entry(system: &'static str, name: &'static str, provoke: Provoke, fields: Fields) -> Entry {
    Entry { system, name, provoke, fields }
}

const fn param(name: &'static str, ty: &'static str, nth: u8) -> Param {
    Param { name, ty, nth }
}

const fn task(name: &'static str, nth: u8) -> Param {
    param(name, "struct task_struct *", nth)
}

/// `task_cpu()`: since Linux 5.16 it is in `thread_info` on x86 too.
const TASK_CPU: &[&str] = &["thread_info.cpu", "cpu"];

const WAKEUP: Fields = &[
    ("comm", From::Read(task("p", 0), &["comm"])),
    ("pid", From::Read(task("p", 0), &["pid"])),
    ("prio", From::Read(task("p", 0), &["prio"])),
    ("target_cpu", From::Read(task("p", 0), TASK_CPU)),
];

const REGS: Param = param("regs", "struct pt_regs *", 0);
const HRTIMER: Param = param("hrtimer", "struct hrtimer *", 0);
const HRTIMER_SETUP: Fields = &[
    ("hrtimer", From::Arg(HRTIMER)),
    ("clockid", From::Arg(param("clockid", "clockid_t", 0))),
    ("mode", From::Arg(param("mode", "enum hrtimer_mode", 0))),
];
const HRTIMER_CLASS: Fields = &[("hrtimer", From::Arg(HRTIMER))];
const SOFTIRQ: Fields = &[("vec", From::Arg(param("vec_nr", "unsigned int", 0)))];
const VECTOR: Fields = &[("vector", From::Arg(param("vector", "int", 0)))];
const PAGE_FAULT: Fields = &[
    ("address", From::Arg(param("address", "unsigned long", 0))),
    ("ip", From::Read(REGS, &["ip", "pc"])),
    ("error_code", From::Arg(param("error_code", "unsigned long", 1))),
];
const CALL_SITE: From = From::Arg(param("call_site", "unsigned long", 0));
const ALLOCATED: From = From::Arg(param("ptr", "const void *", 0));
const SYS_ENTER: Fields = &[("id", From::Arg(param("id", "long", 0))), ("args", From::SyscallArgs(REGS))];
const SYS_EXIT: Fields = &[("id", From::SyscallNumber(REGS)), ("ret", From::Arg(param("ret", "long", 0)))];
const SCHED_SWITCH: Fields = &[
    ("prev_comm", From::Read(task("prev", 0), &["comm"])),
    ("prev_pid", From::Read(task("prev", 0), &["pid"])),
    ("prev_prio", From::Read(task("prev", 0), &["prio"])),
    (
        "prev_state",
        From::SwitchState {
            preempt: param("preempt", "bool", 0),
            state: param("prev_state", "unsigned int", 0),
            task: task("prev", 0),
        },
    ),
    ("next_comm", From::Read(task("next", 1), &["comm"])),
    ("next_pid", From::Read(task("next", 1), &["pid"])),
    ("next_prio", From::Read(task("next", 1), &["prio"])),
];
const SCHED_STAT_RUNTIME: Fields = &[
    ("comm", From::Read(task("tsk", 0), &["comm"])),
    ("pid", From::Read(task("tsk", 0), &["pid"])),
    ("runtime", From::Arg(param("runtime", "u64", 0))),
    // Until 6.6.
    ("vruntime", From::Arg(param("vruntime", "u64", 1))),
];
const SCHED_PROCESS_FORK: Fields = &[
    ("parent_comm", From::Read(task("parent", 0), &["comm"])),
    ("parent_pid", From::Read(task("parent", 0), &["pid"])),
    ("child_comm", From::Read(task("child", 1), &["comm"])),
    ("child_pid", From::Read(task("child", 1), &["pid"])),
];
const TASK_NEWTASK: Fields = &[
    ("pid", From::Read(task("task", 0), &["pid"])),
    ("comm", From::Read(task("task", 0), &["comm"])),
    ("clone_flags", From::Arg(param("clone_flags", "unsigned long|u64", 0))),
    ("oom_score_adj", From::Read(task("task", 0), &["signal->oom_score_adj"])),
];
const HRTIMER_START: Fields = &[
    ("hrtimer", From::Arg(HRTIMER)),
    ("function", From::Read(HRTIMER, &["function"])),
    ("expires", From::Read(HRTIMER, &["node.expires"])),
    ("softexpires", From::Read(HRTIMER, &["_softexpires"])),
    ("mode", From::Arg(param("mode", "enum hrtimer_mode", 0))),
    ("was_armed", From::Arg(param("was_armed", "bool", 0))),
];
const HRTIMER_EXPIRE_ENTRY: Fields = &[
    ("hrtimer", From::Arg(HRTIMER)),
    ("now", From::Target(param("now", "ktime_t *|ktime_t", 0))),
    ("function", From::Read(HRTIMER, &["function"])),
];
const KMALLOC: Fields = &[
    ("call_site", CALL_SITE),
    ("ptr", ALLOCATED),
    ("bytes_req", From::Arg(param("bytes_req", "size_t", 0))),
    ("bytes_alloc", From::Arg(param("bytes_alloc", "size_t", 1))),
    ("gfp_flags", From::Arg(param("gfp_flags", "gfp_t", 0))),
    ("node", From::Arg(param("node", "int", 0))),
];
const KFREE: Fields = &[("call_site", CALL_SITE), ("ptr", ALLOCATED)];
const RCU_UTILIZATION: Fields = &[("s", From::Arg(param("s", "const char *", 0)))];

pub(super) const TABLE: &[Entry] = &[
    entry("raw_syscalls", "sys_enter", Provoke::Getppid, SYS_ENTER),
    entry("raw_syscalls", "sys_exit", Provoke::Getppid, SYS_EXIT),
    entry("sched", "sched_switch", Provoke::Sleep, SCHED_SWITCH),
    entry("sched", "sched_waking", Provoke::Wake, WAKEUP),
    entry("sched", "sched_wakeup", Provoke::Wake, WAKEUP),
    entry("sched", "sched_wakeup_new", Provoke::Thread, WAKEUP),
    entry("sched", "sched_stat_runtime", Provoke::Sleep, SCHED_STAT_RUNTIME),
    entry("sched", "sched_process_fork", Provoke::Thread, SCHED_PROCESS_FORK),
    entry("task", "task_newtask", Provoke::Thread, TASK_NEWTASK),
    entry("irq", "softirq_raise", Provoke::Loopback, SOFTIRQ),
    entry("irq", "softirq_entry", Provoke::Loopback, SOFTIRQ),
    entry("irq", "softirq_exit", Provoke::Loopback, SOFTIRQ),
    entry("timer", "hrtimer_init", Provoke::Timerfd, HRTIMER_SETUP),
    entry("timer", "hrtimer_setup", Provoke::Timerfd, HRTIMER_SETUP),
    entry("timer", "hrtimer_start", Provoke::Timerfd, HRTIMER_START),
    entry("timer", "hrtimer_cancel", Provoke::Timerfd, HRTIMER_CLASS),
    entry("timer", "hrtimer_expire_entry", Provoke::Spin, HRTIMER_EXPIRE_ENTRY),
    entry("timer", "hrtimer_expire_exit", Provoke::Spin, HRTIMER_CLASS),
    entry("kmem", "kmalloc", Provoke::Pipe, KMALLOC),
    entry("kmem", "kfree", Provoke::Pipe, KFREE),
    entry("exceptions", "page_fault_user", Provoke::Fault, PAGE_FAULT),
    entry("irq_vectors", "local_timer_entry", Provoke::Spin, VECTOR),
    entry("irq_vectors", "local_timer_exit", Provoke::Spin, VECTOR),
    entry("rcu", "rcu_utilization", Provoke::Sleep, RCU_UTILIZATION),
];
