//! Measures the added cost of a further consumer of an event that is traced already, in tracefs and in a mirror.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::bench::plan::Plan;
use crate::bench::raw::RawData;
use crate::bench::sampling::{Competitor, fastest, measure};
use crate::bench::statistics::median;
use crate::bench::tool::{Active, BUFFER_KB, Tool};
use crate::bench::victim::Kind;
use crate::mirror::{self, Mounted, set};
use crate::oracle::Oracle;

const TITLE: &str = "Added cost of a further consumer";
const EVENT: &str = "raw_syscalls/sys_enter";
/// A condition that no hit meets.
const NEVER: &str = "id == 5000";

/// A consumer in addition to the first instance, in which the event is enabled with a filter that drops all hits.
#[derive(Clone, Copy, Debug)]
enum Consumer {
    /// The event in a second instance, with the same filter.
    Instance,
    /// A histogram in the first instance.
    Histogram,
    /// A trigger in the first instance, whose condition is never met.
    Trigger,
}

impl Consumer {
    const ALL: [Self; 3] = [Self::Instance, Self::Histogram, Self::Trigger];

    fn name(self) -> &'static str {
        match self {
            Self::Instance => "a second instance",
            Self::Histogram => "a histogram by id",
            Self::Trigger => "a trigger with a condition",
        }
    }

    /// The line of `trigger`, for a consumer that is one.
    fn trigger(self) -> Option<String> {
        match self {
            Self::Instance => None,
            Self::Histogram => Some("hist:keys=id".to_owned()),
            Self::Trigger => Some(format!("traceoff if {NEVER}")),
        }
    }
}

/// Starts the first instance, and the further consumer if there is one.
type Start = fn(Option<Consumer>) -> Result<Active>;

/// Measures all rows, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### {TITLE}\n\nNanoseconds that a hit of raw_syscalls:sys_enter takes longer with a second consumer, over the \
         same hit with\none instance (differences of medians). The filter of each instance drops all hits.\n\n\
         | consumer | tracefs: one | and this | difference | mirror: one | and this | difference |\n\
         |---|---:|---:|---:|---:|---:|---:|\n"
    );
    let tools: Vec<Tool> =
        [Tool::Tracefs, Tool::Tracer].into_iter().filter(|tool| plan.tools.contains(tool)).collect();
    for consumer in Consumer::ALL {
        let mut columns: Vec<Competitor<'_>> = Vec::new();
        let mut measured = Vec::new();
        for tool in &tools {
            if *tool == Tool::Tracefs && !kernel_has(consumer)? {
                continue;
            }
            for further in [None, Some(consumer)] {
                let (name, start): (_, Start) = match (tool, further) {
                    (Tool::Tracefs, None) => ("tracefs, one", in_tracefs),
                    (Tool::Tracefs, Some(_)) => ("tracefs, and this", in_tracefs),
                    (_, None) => ("mirror, one", in_mirror),
                    (_, Some(_)) => ("mirror, and this", in_mirror),
                };
                columns.push(Competitor { name, start: Box::new(move |_| start(further)) });
            }
            measured.push(*tool);
        }
        let cells = measure(plan.rounds, Kind::Getppid, consumer.name(), &columns)?;
        raw.keep_cells(TITLE, consumer.name(), &columns, &cells);
        let base = fastest(&cells);
        let _ = write!(table, "| {} |", consumer.name());
        for tool in [Tool::Tracefs, Tool::Tracer] {
            let cells = measured.iter().zip(cells.chunks_exact(2)).find(|(one, _)| **one == tool);
            let Some((_, [one, both])) = cells else {
                table.push_str(" | | |");
                continue;
            };
            let [one, both] = [one, both].map(|cell| median(&cell.added(base)));
            let _ = write!(table, " {one:.0} | {both:.0} | {:.0} |", both - one);
        }
        table.push('\n');
    }
    Ok(table)
}

/// Whether the kernel's tracefs has the consumer. Some kernels are built without histograms.
fn kernel_has(consumer: Consumer) -> Result<bool> {
    let root = crate::host::Tracefs::find_or_mount()?.root().to_owned();
    Ok(!matches!(consumer, Consumer::Histogram) || root.join(format!("events/{EVENT}/hist")).exists())
}

/// Enables the event in the directory of an instance.
fn enable(dir: &Path) -> Result<()> {
    set(dir, "buffer_size_kb", &BUFFER_KB.to_string())?;
    set(dir, &format!("events/{EVENT}/filter"), NEVER)?;
    set(dir, &format!("events/{EVENT}/enable"), "1")
}

fn add_trigger(dir: &Path, line: &str) -> Result<()> {
    let written = mirror::write(dir, &format!("events/{EVENT}/trigger"), line.as_bytes(), true);
    Ok(written.map_err(std::io::Error::from_raw_os_error)?)
}

fn in_tracefs(further: Option<Consumer>) -> Result<Active> {
    let start = |name: &str| -> Result<Oracle> {
        let oracle = Oracle::create(name)?;
        enable(oracle.dir())?;
        oracle.tracing(true)?;
        Ok(oracle)
    };
    let first = start("bench")?;
    let second = match further {
        Some(Consumer::Instance) => Some(Box::new(start("bench-second")?)),
        _ => None,
    };
    let trigger = further.and_then(Consumer::trigger);
    if let Some(line) = &trigger {
        add_trigger(first.dir(), line)?;
    }
    Ok(Active::Consumed { first: Box::new(first), second, trigger: trigger.map(|line| (EVENT, line)) })
}

fn in_mirror(further: Option<Consumer>) -> Result<Active> {
    let mounted = Mounted::start("bench")?;
    let dir = mounted.instance("bench")?;
    enable(&dir)?;
    if let Some(Consumer::Instance) = further {
        enable(&mounted.instance("second")?)?;
    }
    if let Some(line) = further.and_then(Consumer::trigger) {
        add_trigger(&dir, &line)?;
    }
    Ok(Active::Mirror(Box::new(mounted), dir))
}
