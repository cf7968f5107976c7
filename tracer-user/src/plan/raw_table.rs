//! Sources of the fields of well-known events, by the names and types of the kernel's source.
//!
//! There is one entry per event, derived from its `TP_PROTO` and `TP_fast_assign` (`include/trace/events/`). An entry
//! lists every field that the event has in any kernel since 6.1. A format with another field, or with a string of
//! varying length, gets no raw plan. The table lists only events that a thread can provoke in itself, because each plan
//! is checked against the real event before use. That excludes `sched_process_exit`, which happens in the thread that
//! ends, and the events of workqueue and `cpu_idle`, which happen in kernel threads.

use super::raw::Provoke;

/// One event.
pub(super) struct Entry {
    pub(super) system: &'static str,
    pub(super) name: &'static str,
    pub(super) provoke: Provoke,
    pub(super) fields: &'static [(&'static str, From)],
}

/// Source of a field.
pub(super) enum From {
    /// An argument.
    Arg(Param),
    /// A value at a pointer argument, as `a.b->c`; of several paths, the first that exists in the kernel.
    Read(Param, &'static [&'static str]),
    /// The number that a pointer argument points to.
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

const fn param(name: &'static str, ty: &'static str, nth: u8) -> Param {
    Param { name, ty, nth }
}

const fn task(name: &'static str, nth: u8) -> Param {
    param(name, "struct task_struct *", nth)
}

/// `task_cpu()`: since Linux 5.16 it is in `thread_info` on x86 too.
const TASK_CPU: &[&str] = &["thread_info.cpu", "cpu"];

const WAKEUP: &[(&str, From)] = &[
    ("comm", From::Read(task("p", 0), &["comm"])),
    ("pid", From::Read(task("p", 0), &["pid"])),
    ("prio", From::Read(task("p", 0), &["prio"])),
    ("target_cpu", From::Read(task("p", 0), TASK_CPU)),
];

const HRTIMER: Param = param("hrtimer", "struct hrtimer *", 0);
const HRTIMER_SETUP: &[(&str, From)] = &[
    ("hrtimer", From::Arg(HRTIMER)),
    ("clockid", From::Arg(param("clockid", "clockid_t", 0))),
    ("mode", From::Arg(param("mode", "enum hrtimer_mode", 0))),
];
const HRTIMER_CLASS: &[(&str, From)] = &[("hrtimer", From::Arg(HRTIMER))];
const SOFTIRQ: &[(&str, From)] = &[("vec", From::Arg(param("vec_nr", "unsigned int", 0)))];
const VECTOR: &[(&str, From)] = &[("vector", From::Arg(param("vector", "int", 0)))];
const PAGE_FAULT: &[(&str, From)] = &[
    ("address", From::Arg(param("address", "unsigned long", 0))),
    ("ip", From::Read(param("regs", "struct pt_regs *", 0), &["ip", "pc"])),
    ("error_code", From::Arg(param("error_code", "unsigned long", 1))),
];
const CALL_SITE: From = From::Arg(param("call_site", "unsigned long", 0));
const ALLOCATED: From = From::Arg(param("ptr", "const void *", 0));
const REGS: Param = param("regs", "struct pt_regs *", 0);

pub(super) const TABLE: &[Entry] = &[
    Entry {
        system: "raw_syscalls",
        name: "sys_enter",
        provoke: Provoke::Getppid,
        fields: &[("id", From::Arg(param("id", "long", 0))), ("args", From::SyscallArgs(REGS))],
    },
    Entry {
        system: "raw_syscalls",
        name: "sys_exit",
        provoke: Provoke::Getppid,
        fields: &[("id", From::SyscallNumber(REGS)), ("ret", From::Arg(param("ret", "long", 0)))],
    },
    Entry {
        system: "sched",
        name: "sched_switch",
        provoke: Provoke::Sleep,
        fields: &[
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
        ],
    },
    Entry { system: "sched", name: "sched_waking", provoke: Provoke::Wake, fields: WAKEUP },
    Entry { system: "sched", name: "sched_wakeup", provoke: Provoke::Wake, fields: WAKEUP },
    Entry { system: "sched", name: "sched_wakeup_new", provoke: Provoke::Thread, fields: WAKEUP },
    Entry {
        system: "sched",
        name: "sched_stat_runtime",
        provoke: Provoke::Sleep,
        fields: &[
            ("comm", From::Read(task("tsk", 0), &["comm"])),
            ("pid", From::Read(task("tsk", 0), &["pid"])),
            ("runtime", From::Arg(param("runtime", "u64", 0))),
            // Until 6.6.
            ("vruntime", From::Arg(param("vruntime", "u64", 1))),
        ],
    },
    Entry {
        system: "sched",
        name: "sched_process_fork",
        provoke: Provoke::Thread,
        fields: &[
            ("parent_comm", From::Read(task("parent", 0), &["comm"])),
            ("parent_pid", From::Read(task("parent", 0), &["pid"])),
            ("child_comm", From::Read(task("child", 1), &["comm"])),
            ("child_pid", From::Read(task("child", 1), &["pid"])),
        ],
    },
    Entry {
        system: "task",
        name: "task_newtask",
        provoke: Provoke::Thread,
        fields: &[
            ("pid", From::Read(task("task", 0), &["pid"])),
            ("comm", From::Read(task("task", 0), &["comm"])),
            ("clone_flags", From::Arg(param("clone_flags", "unsigned long|u64", 0))),
            ("oom_score_adj", From::Read(task("task", 0), &["signal->oom_score_adj"])),
        ],
    },
    Entry { system: "irq", name: "softirq_raise", provoke: Provoke::Loopback, fields: SOFTIRQ },
    Entry { system: "irq", name: "softirq_entry", provoke: Provoke::Loopback, fields: SOFTIRQ },
    Entry { system: "irq", name: "softirq_exit", provoke: Provoke::Loopback, fields: SOFTIRQ },
    Entry { system: "timer", name: "hrtimer_init", provoke: Provoke::Timerfd, fields: HRTIMER_SETUP },
    Entry { system: "timer", name: "hrtimer_setup", provoke: Provoke::Timerfd, fields: HRTIMER_SETUP },
    Entry {
        system: "timer",
        name: "hrtimer_start",
        provoke: Provoke::Timerfd,
        fields: &[
            ("hrtimer", From::Arg(HRTIMER)),
            ("function", From::Read(HRTIMER, &["function"])),
            ("expires", From::Read(HRTIMER, &["node.expires"])),
            ("softexpires", From::Read(HRTIMER, &["_softexpires"])),
            ("mode", From::Arg(param("mode", "enum hrtimer_mode", 0))),
            ("was_armed", From::Arg(param("was_armed", "bool", 0))),
        ],
    },
    Entry { system: "timer", name: "hrtimer_cancel", provoke: Provoke::Timerfd, fields: HRTIMER_CLASS },
    Entry {
        system: "timer",
        name: "hrtimer_expire_entry",
        provoke: Provoke::Spin,
        fields: &[
            ("hrtimer", From::Arg(HRTIMER)),
            ("now", From::Target(param("now", "ktime_t *", 0))),
            ("function", From::Read(HRTIMER, &["function"])),
        ],
    },
    Entry { system: "timer", name: "hrtimer_expire_exit", provoke: Provoke::Spin, fields: HRTIMER_CLASS },
    Entry {
        system: "kmem",
        name: "kmalloc",
        provoke: Provoke::Pipe,
        fields: &[
            ("call_site", CALL_SITE),
            ("ptr", ALLOCATED),
            ("bytes_req", From::Arg(param("bytes_req", "size_t", 0))),
            ("bytes_alloc", From::Arg(param("bytes_alloc", "size_t", 1))),
            ("gfp_flags", From::Arg(param("gfp_flags", "gfp_t", 0))),
            ("node", From::Arg(param("node", "int", 0))),
        ],
    },
    Entry {
        system: "kmem",
        name: "kfree",
        provoke: Provoke::Pipe,
        fields: &[("call_site", CALL_SITE), ("ptr", ALLOCATED)],
    },
    Entry { system: "exceptions", name: "page_fault_user", provoke: Provoke::Fault, fields: PAGE_FAULT },
    Entry { system: "irq_vectors", name: "local_timer_entry", provoke: Provoke::Spin, fields: VECTOR },
    Entry { system: "irq_vectors", name: "local_timer_exit", provoke: Provoke::Spin, fields: VECTOR },
    Entry {
        system: "rcu",
        name: "rcu_utilization",
        provoke: Provoke::Sleep,
        fields: &[("s", From::Arg(param("s", "const char *", 0)))],
    },
];
