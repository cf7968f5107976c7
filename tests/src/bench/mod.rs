//! Benchmarks against the kernel's own tracefs and bpftrace, on the running machine.
//!
//! A victim process is pinned to the last CPU and does the same thing over and over; whoever traces it runs on the
//! first, all at high priority. Measurements of the competitors are interleaved round by round, each beside one of the
//! untraced victim, and medians are compared, because the machine is shared and noisy.

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
    /// Rounds, at least one; docs/PERFORMANCE.md shows seven or more.
    pub rounds: usize,
    /// Who competes; tracefs is the anchor of the ratios.
    pub tools: Vec<Tool>,
    /// What is measured.
    pub parts: Vec<Part>,
    /// Only those lines of [`Part::Probes`] that have this in their names.
    pub rows: String,
}

/// One kind of measurement, which gives its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Added cost of a hit of trace events.
    Cost,
    /// The same of probes and histograms.
    Probes,
    /// Events of programs: those that nobody traces, and their memory.
    Events,
    /// Time to the first event.
    First,
    /// Draining and rendering, and memory.
    Throughput,
    /// Turning all events on and off.
    All,
}

impl Part {
    /// All of them, in the order of their tables.
    pub const ALL: [Self; 6] =
        [Self::Cost, Self::Probes, Self::Events, Self::First, Self::Throughput, Self::All];

    /// Its name on the command line.
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

/// Runs the benchmarks and gives their tables in markdown, each to `show` as soon as it is there, and all in the end;
/// progress goes to standard error.
///
/// # Errors
/// When the machine does not let us trace, or a tool fails.
pub fn run(plan: &Plan, show: impl Fn(&str)) -> Result<String> {
    let cpus = crate::host::last_cpu()? + 1;
    // Tools that are started from here inherit both; the victim pins itself to the last CPU.
    crate::workload::pin_to_cpu(0)?;
    // bpftrace finds tracefs mounted or not at all.
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

/// The middle value; of an even number the mean of the middle two. 0 for none.
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

/// How far the middle half of a measurement's rounds may spread, as a part of their median.
const SPREAD: f64 = 0.25;

/// Half of the values lie between these.
fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| sorted.get((sorted.len().saturating_sub(1)) * part / 4).copied().unwrap_or(0.0);
    (at(1), at(3))
}

/// Whether the rounds agree well enough for their median to be compared with another's.
fn is_steady(values: &[f64]) -> bool {
    let (low, high) = quartiles(values);
    !values.is_empty() && high - low <= SPREAD * median(values).abs()
}

/// A ratio of medians as a cell of a table; `unsteady` where the rounds of one of the two spread too far for one.
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
        // One round that was disturbed is what medians are for.
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
