//! What a run of the benchmarks measures, and how often.

use super::tool::Tool;

/// What to measure and how often.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)]
pub struct Plan {
    /// Rounds, at least one; docs/PERFORMANCE.md shows seven or more.
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
}
