//! The selection of measurements of a benchmark run, and the number of rounds.

use super::tool::Tool;

/// The measurements and the number of rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds, at least one.
    pub rounds: usize,
    /// The competitors; tracefs is the base of the ratios.
    pub tools: Vec<Tool>,
    /// The measurements to run.
    pub parts: Vec<Part>,
    /// Restricts [`Part::Cost`] and [`Part::Probes`] to the rows whose names contain this text.
    pub rows: String,
    /// Appended to the title of each table, such as `, in an emulated machine`.
    pub place: String,
}

/// One kind of measurement, with its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Added cost of a hit of a trace event.
    Cost,
    /// Added cost of a system call that is not traced.
    Untraced,
    /// Added cost of a further consumer of a traced event.
    Consumers,
    /// Added cost of a hit of a probe or a histogram.
    Probes,
    /// Time to attach to many functions.
    Functions,
    /// Program events: the cost of untraced ones, and their memory.
    Events,
    /// Time to the first event.
    First,
    /// Unread records at full rate.
    Unread,
    /// Draining and rendering, and memory.
    Throughput,
    /// Enabling and disabling all events.
    All,
    /// Small requests to a mirror while something else is in progress.
    Delays,
    /// Instructions and helpers of which a hit consists.
    Parts,
}

impl Part {
    /// All parts, in the order of their tables.
    pub const ALL: [Self; 12] = [
        Self::Cost,
        Self::Untraced,
        Self::Consumers,
        Self::Probes,
        Self::Functions,
        Self::Events,
        Self::First,
        Self::Unread,
        Self::Throughput,
        Self::All,
        Self::Delays,
        Self::Parts,
    ];

    /// The part's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Untraced => "untraced",
            Self::Consumers => "consumers",
            Self::Probes => "probes",
            Self::Functions => "functions",
            Self::Events => "events",
            Self::First => "first",
            Self::Unread => "unread",
            Self::Throughput => "throughput",
            Self::All => "all",
            Self::Delays => "delays",
            Self::Parts => "parts",
        }
    }
}
