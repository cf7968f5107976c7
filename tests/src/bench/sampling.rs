//! Measures a call beside competitors that trace it, in turns.

use std::time::Duration;

use anyhow::Result;

use super::process::cpu_of;
use super::tool::Active;
use super::victim::{Batches, Kind, Victim, calls_made};

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

/// How long the collector gets for the records of a measurement, before its CPU time is read.
const COLLECT: Duration = Duration::from_millis(30);

/// Starts a competitor on a victim.
pub(crate) type Start<'a> = Box<dyn Fn(&Victim) -> Result<Active> + 'a>;

/// A named competitor with its start function.
pub(crate) struct Competitor<'a> {
    pub(crate) name: &'static str,
    pub(crate) start: Start<'a>,
}

/// One measurement, in nanoseconds per call.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Mean of the untraced calls before and after.
    pub(crate) untraced: f64,
    pub(crate) traced: Batches,
    /// CPU time of the competitor's processes, if it has any.
    pub(crate) collector: Option<f64>,
}

/// The samples of all rounds of one cell.
#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) samples: Vec<Sample>,
    pub(crate) lost: u64,
}

/// The fastest untraced call of all cells, in nanoseconds.
pub(crate) fn fastest(cells: &[Cell]) -> f64 {
    let untraced = cells.iter().flat_map(|cell| cell.samples.iter().map(|s| s.untraced));
    untraced.fold(f64::INFINITY, f64::min)
}

impl Cell {
    /// The added cost of a hit in each round, scaled to the speed at which the untraced call takes `base`
    /// nanoseconds.
    pub(crate) fn added(&self, base: f64) -> Vec<f64> {
        self.samples.iter().map(|s| (s.traced.p10() - s.untraced) * base / s.untraced).collect()
    }

    /// CPU nanoseconds of the competitor's processes for a hit in each round. Empty if it has no process.
    pub(crate) fn collector(&self) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| sample.collector).collect()
    }
}

/// Hits of a competitor in this many rounds.
pub(crate) fn hits_of(rounds: usize) -> usize {
    rounds * calls_made(BATCHES, CALLS)
}

/// Measures one row. The competitors take turns in every round, each between two measurements of the untraced victim.
pub(crate) fn measure(rounds: usize, kind: Kind, label: &str, all: &[Competitor<'_>]) -> Result<Vec<Cell>> {
    let mut victim = Victim::start(kind)?;
    let mut cells: Vec<Cell> = all.iter().map(|_| Cell::default()).collect();
    victim.batches(BATCHES, CALLS)?;
    for round in 0..rounds {
        for turn in 0..all.len() {
            // The first competitor changes with every round.
            let at = (turn + round) % all.len();
            let mut before = victim.batches(BATCHES, CALLS)?.p10();
            for attempt in 1..=TRIES {
                let active = (all[at].start)(&victim)?;
                std::thread::sleep(SETTLE);
                let earlier = collectors_cpu(&active)?;
                let traced = victim.batches(BATCHES, CALLS)?;
                let collector = match earlier {
                    Some(earlier) => {
                        std::thread::sleep(COLLECT);
                        collectors_cpu(&active)?.map(|now| now - earlier)
                    }
                    None => None,
                };
                let collector = collector.map(|cpu| cpu * 1e9 / calls_made(BATCHES, CALLS) as f64);
                let lost = active.stop()?;
                let after = victim.batches(BATCHES, CALLS)?.p10();
                if (before - after).abs() > STEADY * before && attempt < TRIES {
                    before = after;
                    continue;
                }
                let untraced = f64::midpoint(before, after);
                eprintln!(
                    "{label} round {}: {} {untraced:.0} -> {:.0} ns (try {attempt})",
                    round + 1,
                    all[at].name,
                    traced.p10(),
                );
                cells[at].lost += lost;
                cells[at].samples.push(Sample { untraced, traced, collector });
                break;
            }
        }
    }
    Ok(cells)
}

/// CPU seconds of a competitor's processes; None if it has none.
fn collectors_cpu(active: &Active) -> Result<Option<f64>> {
    let Some(process) = active.process() else { return Ok(None) };
    cpu_of(process).map(Some)
}
