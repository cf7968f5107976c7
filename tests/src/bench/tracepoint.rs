//! The measured tracepoint events and their filters.

use super::victim::{Kind, Victim};

/// A measured tracepoint event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// `system:name`.
    pub(crate) name: &'static str,
    /// The raw tracepoint of the event.
    pub(crate) raw: &'static str,
    /// The victim that provokes the event.
    pub(crate) kind: Kind,
    /// A filter that no hit passes, for tracefs and for bpftrace.
    pub(crate) never: (&'static str, &'static str),
    /// Arguments of bpftrace's `printf`: all fields of the event, as tracefs shows them.
    pub(crate) print: &'static str,
}

/// The measured tracepoint events.
pub(crate) const EVENTS: &[Event] = &[
    Event {
        name: "raw_syscalls:sys_enter",
        raw: "sys_enter",
        kind: Kind::Getppid,
        never: ("id == 5000", "args->id == 5000"),
        print: r#""%d %lx %lx %lx %lx %lx %lx\n", args->id, args->args[0], args->args[1], args->args[2], args->args[3], args->args[4], args->args[5]"#,
    },
    Event {
        name: "syscalls:sys_enter_getppid",
        raw: "sys_enter",
        kind: Kind::Getppid,
        never: ("__syscall_nr == 5000", "args->__syscall_nr == 5000"),
        print: r#""%d\n", args->__syscall_nr"#,
    },
    Event {
        name: "sched:sched_switch",
        raw: "sched_switch",
        kind: Kind::Switch,
        never: ("next_prio == 5000", "args->next_prio == 5000"),
        print: r#""%s %d %d %lx %s %d %d\n", args->prev_comm, args->prev_pid, args->prev_prio, args->prev_state, args->next_comm, args->next_pid, args->next_prio"#,
    },
];

impl Event {
    /// A bpftrace script that prints the hits that pass the predicate.
    pub(crate) fn bpftrace(&self, predicate: &str) -> String {
        format!("tracepoint:{} /{predicate}/ {{ printf({}); }}", self.name, self.print)
    }

    /// A filter that only the victim's hits pass, for tracefs and for bpftrace.
    pub(crate) fn own(&self, victim: &Victim) -> (String, String) {
        match self.kind {
            Kind::Getppid | Kind::Call | Kind::Nop | Kind::LongNop | Kind::Event => {
                (format!("common_pid == {}", victim.pid()), format!("tid == {}", victim.pid()))
            }
            Kind::Switch => {
                let each = |field: &str| {
                    let tests: Vec<_> =
                        victim.threads.iter().map(|thread| format!("{field} == {thread}")).collect();
                    tests.join(" || ")
                };
                (each("prev_pid"), each("args->prev_pid"))
            }
        }
    }
}
