//! Events that always happen with interrupts off. BPF cannot see this state.

use std::sync::LazyLock;

use super::Format;

/// Events of the scheduler under the lock of a run queue or task (kernel/sched/core.c), events of timers and work queues
/// under the lock of their base or pool, soft interrupts that are raised, calls from other CPUs, and page faults on x86,
/// whose entry disables interrupts.
const LOCKED: &[(&str, &str)] = &[
    ("sched", "sched_switch"),
    ("sched", "sched_waking"),
    ("sched", "sched_wakeup"),
    ("sched", "sched_wakeup_new"),
    ("sched", "sched_migrate_task"),
    ("sched", "sched_stat_runtime"),
    ("timer", "timer_start"),
    ("timer", "timer_cancel"),
    ("timer", "hrtimer_start"),
    ("timer", "hrtimer_cancel"),
    ("workqueue", "workqueue_queue_work"),
    ("workqueue", "workqueue_activate_work"),
    ("irq", "softirq_raise"),
    ("csd", "csd_function_entry"),
    ("csd", "csd_function_exit"),
    #[cfg(target_arch = "x86_64")]
    ("exceptions", "page_fault_user"),
    #[cfg(target_arch = "x86_64")]
    ("exceptions", "page_fault_kernel"),
];

/// Events that happen with interrupts off except in a real-time kernel, where their locks leave interrupts on: locks
/// of signals, of a mapping's pages, of the lists of pages, and of per-CPU memory.
const SPINNING: &[(&str, &str)] = &[
    ("signal", "signal_generate"),
    ("signal", "signal_deliver"),
    ("timer", "itimer_state"),
    ("filemap", "mm_filemap_delete_from_page_cache"),
    ("writeback", "writeback_dirty_folio"),
    ("writeback", "track_foreign_dirty"),
    ("writeback", "sb_mark_inode_writeback"),
    ("pagemap", "mm_lru_insertion"),
    ("pagemap", "mm_lru_activate"),
    ("percpu", "percpu_free_percpu"),
];

/// Whether an event always happens with interrupts off.
pub fn holds_at_event(format: &Format) -> bool {
    is_any(|(system, name)| *system == format.system && *name == format.name)
}

/// Whether the tracepoint of this name always happens with interrupts off.
pub fn holds_at_tracepoint(tracepoint: &str) -> bool {
    is_any(|(_, name)| *name == tracepoint)
}

fn is_any(is: impl Fn(&(&'static str, &'static str)) -> bool) -> bool {
    LOCKED.iter().any(&is) || (SPINNING.iter().any(&is) && !is_real_time())
}

/// Whether this kernel's spin locks leave interrupts on.
fn is_real_time() -> bool {
    static REAL_TIME: LazyLock<bool> =
        LazyLock::new(|| rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT"));
    *REAL_TIME
}
