//! The values of a run as they were measured, which `--json` writes into a file.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::report::Machine;
use super::sampling::{Cell, Competitor, Sample};

/// All values of a run, in the order of their tables.
#[derive(Default)]
pub(crate) struct RawData {
    series: Vec<Value>,
}

/// The place of a series of values: the title of its table, the row, and the column.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) table: &'a str,
    pub(crate) row: &'a str,
    pub(crate) column: &'a str,
}

impl RawData {
    /// Keeps one value of each round. `quantity` names what they are, and `unit` their unit.
    pub(crate) fn keep(&mut self, at: At<'_>, quantity: &str, unit: &str, values: &[f64]) {
        self.series.push(json!({
            "table": at.table,
            "row": at.row,
            "column": at.column,
            "quantity": quantity,
            "unit": unit,
            "values": values,
        }));
    }

    /// Keeps all samples of a row: each batch of the traced calls, and the untraced calls beside them.
    pub(crate) fn keep_cells(&mut self, table: &str, row: &str, columns: &[Competitor<'_>], cells: &[Cell]) {
        for (column, cell) in columns.iter().zip(cells) {
            let at = At { table, row, column: column.name };
            let of = |value: fn(&Sample) -> f64| -> Vec<f64> { cell.samples.iter().map(value).collect() };
            self.keep(at, "untraced call, mean of before and after", "ns", &of(|sample| sample.untraced));
            self.keep(
                at,
                "traced call, tenth percentile of the batches",
                "ns",
                &of(|sample| sample.traced.p10()),
            );
            if cell.samples.iter().all(|sample| sample.collector.is_some()) {
                self.keep(
                    at,
                    "CPU of the collector a call",
                    "ns",
                    &of(|sample| sample.collector.unwrap_or_default()),
                );
            }
            self.keep(at, "lost hits of all rounds", "hits", &[cell.lost as f64]);
            for (round, sample) in cell.samples.iter().enumerate() {
                let quantity = format!("traced call, batches of round {}", round + 1);
                self.keep(at, &quantity, "ns", &sample.traced.0);
            }
        }
    }

    /// Writes the values and the description of the machine.
    pub(crate) fn write(&self, path: &Path, machine: &Machine, rounds: usize) -> Result<()> {
        let whole = json!({
            "kernel": machine.kernel,
            "cpu": machine.cpu,
            "cpus": machine.cpus,
            "virtual": machine.is_virtual,
            "bpftrace": machine.bpftrace,
            "rounds": rounds,
            "series": self.series,
        });
        let mut text = serde_json::to_string(&whole)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
