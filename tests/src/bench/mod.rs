//! Benchmarks against the kernel's own tracefs and bpftrace, on the running machine.
//!
//! A victim process is pinned to the last CPU and repeats one operation; the tracers run on the first CPU. All run at
//! high priority. The competitors take turns in every round, each beside a measurement of the untraced victim. The
//! tables compare medians, because the machine is shared and noisy.

mod all;
mod cost;
mod events;
mod first;
mod probe;
mod report;
mod throughput;
mod tool;
mod victim;

use anyhow::Result;

pub use report::write_between_marks;
pub use tool::Tool;
pub use victim::{Kind, serve};

/// What to measure and how often.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)]
pub struct Plan {
    /// Rounds, at least one; docs/reference/performance.md shows seven or more.
    pub rounds: usize,
    /// The competitors; tracefs is the base of the ratios.
    pub tools: Vec<Tool>,
    /// The measurements to run.
    pub parts: Vec<Part>,
    /// Restricts [`Part::Probes`] to the rows whose names contain this text.
    pub rows: String,
}

/// One kind of measurement, with its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Added cost of a hit of a trace event.
    Cost,
    /// Added cost of a hit of a probe or a histogram.
    Probes,
    /// Program events: the cost of untraced ones, and their memory.
    Events,
    /// Time to the first event.
    First,
    /// Draining and rendering, and memory.
    Throughput,
    /// Turning all events on and off.
    All,
}

impl Part {
    /// All parts, in the order of their tables.
    pub const ALL: [Self; 6] =
        [Self::Cost, Self::Probes, Self::Events, Self::First, Self::Throughput, Self::All];

    /// The part's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Probes => "probes",
            Self::Events => "events",
            Self::First => "first",
            Self::Throughput => "throughput",
            Self::All => "all",
        }
    }

    fn run(self, plan: &Plan) -> Result<String> {
        match self {
            Self::Cost => cost::run(plan),
            Self::Probes => probe::run(plan),
            Self::Events => events::run(plan),
            Self::First => first::run(plan),
            Self::Throughput => throughput::run(plan),
            Self::All => all::run(plan),
        }
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
        let table = report::dated(&part.run(plan)?, plan, cpus);
        show(&table);
        text.push_str(&table);
    }
    Ok(text)
}

/// The median; the mean of the middle two values when their number is even, and 0 without values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Largest spread of the middle half of a measurement's rounds, relative to their median.
const SPREAD: f64 = 0.25;

/// The lower and the upper quartile.
fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| sorted.get((sorted.len().saturating_sub(1)) * part / 4).copied().unwrap_or(0.0);
    (at(1), at(3))
}

/// Whether the rounds agree well enough to compare their median with another one.
fn is_steady(values: &[f64]) -> bool {
    let (low, high) = quartiles(values);
    !values.is_empty() && high - low <= SPREAD * median(values).abs()
}

/// A ratio of medians as a cell of a table; `unsteady` where the rounds of one side spread too far.
fn ratio(ours: &[f64], theirs: &[f64]) -> String {
    if is_steady(ours) && is_steady(theirs) {
        format!("{:.2}", median(ours) / median(theirs))
    } else {
        "unsteady".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{is_steady, median, ratio};

    #[test]
    fn rounds_that_spread_give_no_ratio() {
        let (steady, wild) = ([100.0, 101.0, 99.0, 100.0, 300.0], [100.0, 200.0, 20.0, 150.0, 40.0]);
        // A median tolerates one disturbed round.
        assert!(is_steady(&steady) && !is_steady(&wild) && !is_steady(&[]));
        assert_eq!(ratio(&steady, &[50.0; 5]), "2.00");
        assert_eq!(ratio(&wild, &steady), "unsteady");
        assert_eq!(ratio(&steady, &wild), "unsteady");
    }

    #[test]
    fn medians() {
        for (values, expected) in
            [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 9.0], 3.0)]
        {
            assert!((median(&values) - expected).abs() < 1e-9, "{values:?}");
        }
    }
}
