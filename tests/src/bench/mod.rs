//! Benchmarks against the kernel's own tracefs and bpftrace, on the running machine.
//!
//! A victim process is pinned to the last CPU and repeats one operation; the tracers run on the first CPU. All run at
//! high priority. The competitors take turns in every round, each next to a measurement of the untraced victim. The
//! tables compare medians, because the machine is shared and noisy.

mod bpftrace;
mod kernel_event;
mod measure;
mod plan;
mod process;
mod raw;
mod report;
mod sampling;
mod statistics;
mod tool;
mod tracepoint;
mod victim;

use std::path::Path;

use anyhow::{Context, Result};

use raw::RawData;
use report::Machine;

pub use bpftrace::Bpftrace;
pub use plan::{Part, Plan};
pub use report::write_page;
pub use tool::Tool;
pub use victim::{Kind, serve};

/// Runs the benchmarks and returns their tables in markdown. `show` receives each table as soon as it is complete;
/// progress is written to standard error. `json` is a file for the values of all rounds, `save` one for the tables;
/// both are written after each part.
///
/// # Errors
/// When this process may not trace on the machine, a tool fails, or the file cannot be written.
pub fn run(plan: &Plan, json: Option<&Path>, save: Option<&Path>, show: impl Fn(&str)) -> Result<String> {
    let mut text = String::new();
    if plan.parts.is_empty() {
        return Ok(text);
    }
    let cpus = crate::host::last_cpu()? + 1;
    // Child processes inherit the CPU and the priority; the victim pins itself to the last CPU.
    crate::workload::pin_to_cpu(0)?;
    // bpftrace requires a mounted tracefs.
    let _mounted = crate::host::Tracefs::find_or_mount()?;
    rustix::process::setpriority_process(None, -20)?;
    let machine = Machine::of(plan, cpus);
    let mut raw = RawData::default();
    for part in Part::ALL.into_iter().filter(|part| plan.parts.contains(part)) {
        let table = report::dated(&measure::part(part, plan, &mut raw)?, &machine, plan);
        show(&table);
        text.push_str(&table);
        if let Some(save) = save {
            std::fs::write(save, &text).with_context(|| save.display().to_string())?;
        }
        if let Some(json) = json {
            raw.write(json, &machine, plan.rounds)?;
        }
    }
    Ok(text)
}
