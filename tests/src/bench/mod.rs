//! Benchmarks against the kernel's own tracefs and bpftrace, on the running machine.
//!
//! A victim process is pinned to the last CPU and repeats one operation; the tracers run on the first CPU. All run at
//! high priority. The competitors take turns in every round, each beside a measurement of the untraced victim. The
//! tables compare medians, because the machine is shared and noisy.

mod all;
mod cost;
mod events;
mod first;
mod kernel_event;
mod plan;
mod probe;
mod report;
mod statistics;
mod throughput;
mod tool;
mod tracepoint;
mod victim;

use anyhow::Result;

pub use plan::{Part, Plan};
pub use report::write_between_marks;
pub use tool::Tool;
pub use victim::{Kind, serve};

/// Runs a part and returns its tables.
fn measure(part: Part, plan: &Plan) -> Result<String> {
    match part {
        Part::Cost => cost::run(plan),
        Part::Probes => probe::run(plan),
        Part::Events => events::run(plan),
        Part::First => first::run(plan),
        Part::Throughput => throughput::run(plan),
        Part::All => all::run(plan),
    }
}

/// Runs the benchmarks and returns their tables in markdown. `show` receives each table as soon as it is complete;
/// progress is written to standard error.
///
/// # Errors
/// When this process may not trace on the machine, or a tool fails.
pub fn run(plan: &Plan, show: impl Fn(&str)) -> Result<String> {
    let cpus = crate::host::last_cpu()? + 1;
    // Child processes inherit the CPU and the priority; the victim pins itself to the last CPU.
    crate::workload::pin_to_cpu(0)?;
    // bpftrace requires a mounted tracefs.
    let _mounted = crate::host::Tracefs::find_or_mount()?;
    rustix::process::setpriority_process(None, -20)?;
    let mut text = String::new();
    for part in Part::ALL.into_iter().filter(|part| plan.parts.contains(part)) {
        let table = report::dated(&measure(part, plan)?, plan, cpus);
        show(&table);
        text.push_str(&table);
    }
    Ok(text)
}
