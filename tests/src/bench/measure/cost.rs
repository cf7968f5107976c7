//! Measures the added cost of a hit: the additional time of a traced call over the same untraced call.

use std::fmt::Write as _;

use anyhow::Result;

use crate::bench::plan::Plan;
use crate::bench::raw::RawData;
use crate::bench::sampling::{Cell, Competitor, fastest, hits_of, measure};
use crate::bench::statistics::{ratio, spread};
use crate::bench::tool::{Active, Tool, empty, mirror};
use crate::bench::tracepoint::{EVENTS, Event};
use crate::bench::victim::Victim;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject {
    Tool(Tool),
    /// An instance of the mirror.
    Mirror,
    /// An empty program at the raw tracepoint: the lower bound, which records nothing.
    Empty,
}

impl Subject {
    /// The columns of a plan; the empty program is last.
    pub(crate) fn all(plan: &Plan) -> Vec<Self> {
        let mirror = plan.tools.contains(&Tool::Tracer).then_some(Self::Mirror);
        plan.tools.iter().map(|tool| Self::Tool(*tool)).chain(mirror).chain([Self::Empty]).collect()
    }

    pub(crate) fn name(self) -> &'static str {
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

    /// The competitor for an event.
    pub(crate) fn competitor(self, event: &Event, recorded: bool) -> Competitor<'_> {
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

const TITLE: &str = "Added cost of a hit";

/// Measures all rows, and returns the tables.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let all = Subject::all(plan);
    let mut table = format!(
        "\n### {TITLE}\n\nNanoseconds over the untraced call (median of the rounds, smallest and largest in \
         parentheses), and the\nmedian as a ratio to tracefs's. The empty program returns at once: the minimum for tracing \
         by eBPF.\nA ratio is `unsteady` where half of the rounds lie further apart than a quarter of the median.\n\n"
    );
    table.push_str(&heading("| event | filter |", &all));
    let mut collectors = String::from(
        "\n### CPU of the collector\n\nNanoseconds of a CPU for each recorded hit, in the processes of the tracer (median \
         of the rounds, smallest and\nlargest in parentheses). tracefs and the mirror have no reader.\n\n| event |",
    );
    let measured = &all[..all.len() - 1];
    for who in measured {
        let _ = write!(collectors, " {} |", who.name());
    }
    let _ = writeln!(collectors, "\n|---|{}", "---:|".repeat(measured.len()));
    let mut lost_lines = Vec::new();
    for event in EVENTS.iter().filter(|event| event.name.contains(&plan.rows)) {
        for recorded in [false, true] {
            let columns = if recorded { measured } else { &all };
            let mode = if recorded { "recorded" } else { "false" };
            let cells = row(plan, raw, TITLE, &format!("{}, {mode}", event.name), event, recorded, columns)?;
            let first = format!("| {} | {mode} |", event.name);
            table.push_str(&line(&first, plan, &cells, all.len()));
            if !recorded {
                continue;
            }
            let _ = write!(collectors, "| {} |", event.name);
            for (who, cell) in columns.iter().zip(&cells) {
                let cpu = cell.collector();
                let cpu = if cpu.is_empty() { "no process".to_owned() } else { spread(&cpu) };
                let _ = write!(collectors, " {cpu} |");
                if cell.lost > 0 {
                    lost_lines.push(format!("{} lost {} hits of {}", who.name(), cell.lost, event.name));
                }
            }
            collectors.push('\n');
        }
    }
    let hits = hits_of(plan.rounds);
    let lost = if lost_lines.is_empty() { "no tracer lost a hit".to_owned() } else { lost_lines.join("; ") };
    let _ = writeln!(table, "\nOf {hits} recorded hits a cell: {lost}.");
    Ok(table + &collectors)
}

/// The first lines of a table with a column and a ratio for each competitor.
pub(crate) fn heading(first: &str, all: &[Subject]) -> String {
    let mut text = format!("{first} untraced |");
    for who in all {
        let _ = write!(text, " {} | ratio |", who.name());
    }
    let own = first.matches('|').count() - 1;
    let _ = writeln!(text, "\n|{}---:|{}", "---|".repeat(own), "---:|---:|".repeat(all.len()));
    text
}

/// Measures the row of an event, and keeps its values.
pub(crate) fn row(
    plan: &Plan,
    raw: &mut RawData,
    table: &str,
    label: &str,
    event: &Event,
    recorded: bool,
    columns: &[Subject],
) -> Result<Vec<Cell>> {
    let competitors: Vec<_> = columns.iter().map(|who| who.competitor(event, recorded)).collect();
    let cells = measure(plan.rounds, event.kind, label, &competitors)?;
    raw.keep_cells(table, label, &competitors, &cells);
    Ok(cells)
}

/// The line of a table with a column and a ratio for each of `columns` competitors.
pub(crate) fn line(first: &str, plan: &Plan, cells: &[Cell], columns: usize) -> String {
    let base = fastest(cells);
    let mut text = format!("{first} {base:.0} |");
    let anchor = plan.tools.iter().position(|tool| *tool == Tool::Tracefs);
    let anchor = anchor.map_or_else(Vec::new, |at| cells[at].added(base));
    for cell in cells {
        let added = cell.added(base);
        let _ = write!(text, " {} | {} |", spread(&added), ratio(&added, &anchor));
    }
    text.push_str(&" | |".repeat(columns - cells.len()));
    text.push('\n');
    text
}
