//! Measures the added cost of a hit: what the traced process pays over the same untraced call.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use super::plan::Plan;
use super::statistics::{median, ratio};
use super::tool::{Active, Tool, empty, mirror};
use super::tracepoint::{EVENTS, Event};
use super::victim::{Kind, Victim};

/// Batches of one measurement, and calls of a batch.
const BATCHES: usize = 60;
const CALLS: usize = 400;

/// Largest relative difference between the untraced calls before and after an accepted measurement. A virtual CPU
/// changes its speed by a third when its neighbours start or stop.
const STEADY: f64 = 0.04;

/// Largest number of tries until the machine is steady; the last try is accepted in any case.
const TRIES: usize = 6;

/// How long a competitor runs before it is measured, so that its start-up is not part of the cost of a hit.
const SETTLE: Duration = Duration::from_millis(300);

/// A competitor in the table.
#[derive(Clone, Copy, Debug)]
enum Who {
    Tool(Tool),
    /// An instance of the mirror.
    Mirror,
    /// An empty program at the raw tracepoint: the lower bound, which records nothing.
    Empty,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Tool(tool) => tool.name(),
            Self::Mirror => "mirror",
            Self::Empty => "empty program",
        }
    }

    fn start(self, event: &Event, filter: &str, predicate: &str) -> Result<Active> {
        match self {
            Self::Tool(tool) => tool.start(event, filter, predicate),
            Self::Mirror => mirror(event, filter),
            Self::Empty => empty(event.raw),
        }
    }
}

impl Who {
    /// The competitor for an event.
    fn competitor(self, event: &Event, recorded: bool) -> Competitor<'_> {
        let start = move |victim: &Victim| {
            let (filter, predicate) = if recorded {
                event.own(victim)
            } else {
                (event.never.0.to_owned(), event.never.1.to_owned())
            };
            self.start(event, &filter, &predicate)
        };
        Competitor { name: self.name(), start: Box::new(start) }
    }
}

/// Starts a competitor on a victim.
pub(super) type Start<'a> = Box<dyn Fn(&Victim) -> Result<Active> + 'a>;

/// A named competitor with its start function.
pub(super) struct Competitor<'a> {
    pub(super) name: &'static str,
    pub(super) start: Start<'a>,
}

/// One measurement, in nanoseconds per call.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Mean of the untraced calls before and after.
    untraced: f64,
    traced: f64,
}

/// The samples of all rounds of one cell.
#[derive(Default)]
pub(super) struct Cell {
    samples: Vec<Sample>,
    pub(super) lost: u64,
}

/// The fastest untraced call of all cells, in nanoseconds.
pub(super) fn fastest(cells: &[Cell]) -> f64 {
    let untraced = cells.iter().flat_map(|cell| cell.samples.iter().map(|s| s.untraced));
    untraced.fold(f64::INFINITY, f64::min)
}

impl Cell {
    /// The added cost of a hit in each round, scaled to the speed at which the untraced call takes `base`
    /// nanoseconds.
    pub(super) fn added(&self, base: f64) -> Vec<f64> {
        self.samples.iter().map(|s| (s.traced - s.untraced) * base / s.untraced).collect()
    }
}

/// Measures all rows, and returns the table.
pub(super) fn run(plan: &Plan) -> Result<String> {
    let mut table = String::from(
        "\n### Added cost of a hit\n\nNanoseconds over the untraced call (median of the rounds, smallest and largest in \
         parentheses), and the\nmedian as a ratio to tracefs's. The empty program returns at once: the floor for whoever \
         traces by eBPF.\nA ratio is `unsteady` where half of the rounds lie further apart than a quarter of the median.\n\n| event | filter | untraced |",
    );
    let mirror = plan.tools.contains(&Tool::Tracer).then_some(Who::Mirror);
    let all: Vec<Who> =
        plan.tools.iter().map(|tool| Who::Tool(*tool)).chain(mirror).chain([Who::Empty]).collect();
    for who in &all {
        let _ = write!(table, " {} | ratio |", who.name());
    }
    table.push_str("\n|---|---|---:|");
    table.push_str(&"---:|---:|".repeat(all.len()));
    table.push('\n');
    let mut lost_lines = Vec::new();
    for event in EVENTS {
        for recorded in [false, true] {
            let measured = if recorded { &all[..all.len() - 1] } else { &all };
            let mode = if recorded { "recorded" } else { "false" };
            let competitors: Vec<_> = measured.iter().map(|who| who.competitor(event, recorded)).collect();
            let cells = measure(plan.rounds, event.kind, &format!("{} {mode}", event.name), &competitors)?;
            let base = fastest(&cells);
            let _ = write!(table, "| {} | {mode} | {base:.0} |", event.name);
            let anchor = plan.tools.iter().position(|tool| *tool == Tool::Tracefs);
            let anchor = anchor.map_or_else(Vec::new, |at| cells[at].added(base));
            for (who, cell) in measured.iter().zip(&cells) {
                let added = cell.added(base);
                let (low, high) =
                    added.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
                let middle = median(&added);
                let _ = write!(table, " {middle:.0} ({low:.0}..{high:.0}) | {} |", ratio(&added, &anchor));
                if cell.lost > 0 {
                    lost_lines.push(format!("{} lost {} hits of {}", who.name(), cell.lost, event.name));
                }
            }
            table.push_str(&" | |".repeat(all.len() - measured.len()));
            table.push('\n');
        }
    }
    let hits = plan.rounds * BATCHES * (CALLS + 100);
    let lost = if lost_lines.is_empty() { "nobody lost a hit".to_owned() } else { lost_lines.join("; ") };
    let _ = writeln!(table, "\nOf {hits} recorded hits a cell: {lost}.");
    Ok(table)
}

/// Measures one row. The competitors take turns in every round, each between two measurements of the untraced victim.
pub(super) fn measure(rounds: usize, kind: Kind, label: &str, all: &[Competitor<'_>]) -> Result<Vec<Cell>> {
    let mut victim = Victim::start(kind)?;
    let mut cells: Vec<Cell> = all.iter().map(|_| Cell::default()).collect();
    victim.batches(BATCHES, CALLS)?;
    for round in 0..rounds {
        for turn in 0..all.len() {
            // The first competitor changes with every round.
            let at = (turn + round) % all.len();
            let mut before = victim.batches(BATCHES, CALLS)?;
            for attempt in 1..=TRIES {
                let active = (all[at].start)(&victim)?;
                std::thread::sleep(SETTLE);
                let traced = victim.batches(BATCHES, CALLS)?;
                cells[at].lost += active.stop()?;
                let after = victim.batches(BATCHES, CALLS)?;
                if (before - after).abs() > STEADY * before && attempt < TRIES {
                    before = after;
                    continue;
                }
                let untraced = f64::midpoint(before, after);
                cells[at].samples.push(Sample { untraced, traced });
                eprintln!(
                    "{label} round {}: {} {untraced:.0} -> {traced:.0} ns (try {attempt})",
                    round + 1,
                    all[at].name,
                );
                break;
            }
        }
    }
    Ok(cells)
}
