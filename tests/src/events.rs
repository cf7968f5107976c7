//! Program events that resemble the kernel's own, so that tests can compare formats and texts: a class with two
//! events (`sched_wakeup`, `sched_wakeup_new`), flags (`module_load`), symbolic numbers (`softirq_entry`), and an
//! event with every kind of field.

use tracer_events::{declare_event_class, define_event, define_event_print, trace_event};

/// The properties of a task that the events record.
#[derive(Debug)]
pub struct Task {
    /// The task's name.
    pub comm: &'static str,
    /// The task's id.
    pub pid: i32,
    /// The task's priority.
    pub prio: i32,
}

type Pid = i32;

declare_event_class! {
    pub wakeup_template(task: &Task, cpu: i32),
    entry {
        array(char, comm, 16),
        field(Pid as "pid_t", pid),
        field(i32, prio),
        field(i32, target_cpu),
    },
    assign {
        entry.comm.set(task.comm);
        entry.pid = task.pid;
        entry.prio = task.prio;
        entry.target_cpu = cpu;
    },
    printk("comm=%s pid=%d prio=%d target_cpu=%03d", entry.comm, entry.pid, entry.prio, entry.target_cpu),
}

define_event! {
    /// A task was woken.
    pub sched_wakeup, class = wakeup_template, system = "demo"
}
define_event! {
    /// A new task was woken.
    pub sched_wakeup_new, class = wakeup_template, system = "demo"
}
define_event_print! {
    /// A task is being woken; the text is shorter.
    pub sched_waking, class = wakeup_template, system = "demo",
    printk("%s:%d", entry.comm, entry.pid)
}

/// include/linux/panic.h
const TAINT_PROPRIETARY_MODULE: u32 = 0;
const TAINT_OOT_MODULE: u32 = 12;
const TAINT_CRAP: u32 = 10;
const TAINT_UNSIGNED_MODULE: u32 = 13;

trace_event! {
    /// A module was loaded.
    pub module_load(name: &str, taints: u32),
    system = "demo",
    entry {
        field(u32, taints),
        string(name, name),
    },
    assign {
        entry.taints = taints;
    },
    printk("%s %s", __get_str(name), __print_flags(entry.taints, "",
        { 1 << TAINT_PROPRIETARY_MODULE, "P" },
        { 1 << TAINT_OOT_MODULE, "O" },
        { 1 << TAINT_CRAP, "C" },
        { 1 << TAINT_UNSIGNED_MODULE, "E" })),
}

/// include/linux/interrupt.h
#[derive(Clone, Copy)]
enum Softirq {
    Hi,
    Timer,
    NetTx,
    NetRx,
    Block,
    IrqPoll,
    Tasklet,
    Sched,
    Hrtimer,
    Rcu,
}

trace_event! {
    /// A softirq begins.
    pub softirq_entry(vec: u32),
    system = "demo",
    entry {
        field(u32, vec),
    },
    assign {
        entry.vec = vec;
    },
    printk("vec=%u [action=%s]", entry.vec, __print_symbolic(entry.vec,
        { Softirq::Hi, "HI" }, { Softirq::Timer, "TIMER" }, { Softirq::NetTx, "NET_TX" },
        { Softirq::NetRx, "NET_RX" }, { Softirq::Block, "BLOCK" }, { Softirq::IrqPoll, "IRQ_POLL" },
        { Softirq::Tasklet, "TASKLET" }, { Softirq::Sched, "SCHED" }, { Softirq::Hrtimer, "HRTIMER" },
        { Softirq::Rcu, "RCU" })),
}

trace_event! {
    /// One of each kind of field.
    pub everything(round: u32, path: &std::ffi::CStr, text: &str, values: &[u16]),
    system = "demo",
    entry {
        field(u8, small),
        field(i64, big),
        field(bool, odd),
        field_ext(*const std::ffi::c_char, path, FILTER_PTR_STRING),
        array(u16, pair, 2),
        array(u8, mac, 6),
        string(text, text),
        dynamic_array(u16, values, values.len()),
        string(other, format!("<{text}>")),
    },
    assign {
        entry.small = round as u8;
        entry.big = -i64::from(round) - 1;
        entry.odd = round % 2 == 1;
        entry.path = path.as_ptr();
        entry.pair = [round as u16, 0xffff];
        entry.mac = [0, 0x11, 0x22, 0x33, 0x44, round as u8];
        entry.values().copy_from_slice(values);
    },
    printk("small=%u big=%lld %s pair=%u,%#x mac=%pM text=%s values=%s (%u) other=%s 100%%",
        entry.small, entry.big, if entry.odd { "odd" } else { "even" },
        entry.pair[0], entry.pair[1] & 0xff00, entry.mac, entry.text,
        __print_array(__get_dynamic_array(values), __get_dynamic_array_len(values) / 2, 2),
        __get_dynamic_array_len(values), __get_str(other)),
}

/// Hits every event once.
pub fn round(round: u32) {
    let task =
        Task { comm: if round.is_multiple_of(2) { "even" } else { "odd" }, pid: round as i32, prio: 120 };
    trace_sched_wakeup(&task, 1);
    trace_sched_wakeup_new(&task, 2);
    trace_sched_waking(&task, 3);
    trace_module_load("demo_module", 1 << TAINT_OOT_MODULE | 1 << TAINT_UNSIGNED_MODULE);
    trace_softirq_entry(round % 11);
    // Reads the path first, because a probe does not wait for a page fault.
    let path = if round.is_multiple_of(2) { c"/even/path" } else { c"/odd/path" };
    std::hint::black_box(path.to_bytes().iter().map(|byte| u32::from(*byte)).sum::<u32>());
    trace_everything(round, path, "some text", &[1, 2, round as u16][..(round % 4).min(3) as usize]);
}
