//! Measures the added cost of a system call that is not traced, while another system call is.

use anyhow::Result;

use super::cost::{Subject, heading, line, row};
use crate::bench::plan::Plan;
use crate::bench::raw::RawData;
use crate::bench::tracepoint::Event;
use crate::bench::victim::Kind;

const TITLE: &str = "Added cost of a system call that is not traced";

/// The traced events. The victim calls getppid, so they never happen.
const OTHERS: &[Event] = &[
    Event {
        name: "syscalls:sys_enter_getpgid",
        raw: "sys_enter",
        kind: Kind::Getppid,
        never: ("__syscall_nr == 5000", "args->__syscall_nr == 5000"),
        print: r#""%d\n", args->__syscall_nr"#,
    },
    Event {
        name: "syscalls:sys_exit_getpgid",
        raw: "sys_exit",
        kind: Kind::Getppid,
        never: ("__syscall_nr == 5000", "args->__syscall_nr == 5000"),
        print: r#""%d\n", args->__syscall_nr"#,
    },
];

/// Measures all rows, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let all = Subject::all(plan);
    let mut table = format!(
        "\n### {TITLE}\n\nNanoseconds that getppid takes longer while the event of another system call is enabled \
         (median of the rounds,\nsmallest and largest in parentheses), and the median as a ratio to tracefs's. A program at the raw \
         tracepoint costs at\nleast as much as the empty one.\n\n"
    );
    table.push_str(&heading("| enabled |", &all));
    for event in OTHERS {
        let cells = row(plan, raw, TITLE, event.name, event, false, &all)?;
        table.push_str(&line(&format!("| {} |", event.name), plan, &cells, all.len()));
    }
    Ok(table)
}
