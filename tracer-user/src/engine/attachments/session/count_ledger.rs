//! Counts of hits that outlive the rows of the counters.
//!
//! When an event is detached, its row of counters becomes free for another event. The ledger keeps the counts of such
//! rows, the lost hits that were already reported, and the counts at the time when the buffers were last emptied.

use std::collections::HashMap;

use tracer_abi::Counters;

use crate::event::Slot;

#[derive(Debug)]
pub(crate) struct CountLedger {
    cpus: Vec<CpuCounts>,
    /// The part of `returned` that is of the last event of each row, for the CPUs with hits.
    last: HashMap<Slot, Vec<(u32, Counters)>>,
    /// Missed hits when all buffers were last emptied.
    missed_baseline: u64,
}

#[derive(Clone, Debug, Default)]
struct CpuCounts {
    /// Counts of rows that their events released.
    returned: Counters,
    /// Lost hits that are already in the counts of the buffer.
    reported: u64,
    /// All counts when the buffer was last emptied.
    baseline: Counters,
}

impl CountLedger {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { cpus: vec![CpuCounts::default(); cpus], last: HashMap::new(), missed_baseline: 0 }
    }

    /// Adds the counts of a row that its event releases.
    pub(crate) fn add_row(&mut self, slot: Slot, row: impl Fn(u32) -> Counters) {
        let mut last = Vec::new();
        for (cpu, counts) in (0..).zip(&mut self.cpus) {
            let row = row(cpu);
            if row != Counters::default() {
                counts.returned = counts.returned.plus(row);
                last.push((cpu, row));
            }
        }
        self.last.insert(slot, last);
    }

    /// Subtracts what [`CountLedger::add_row`] added, because the row's event uses it again. The row itself may have
    /// more hits by now.
    pub(crate) fn remove_row(&mut self, slot: Slot) {
        for (cpu, row) in self.last.remove(&slot).unwrap_or_default() {
            if let Some(counts) = self.cpus.get_mut(cpu as usize) {
                counts.returned = counts.returned.minus(row);
            }
        }
    }

    pub(crate) fn returned(&self, cpu: u32) -> Counters {
        self.cpus.get(cpu as usize).map_or(Counters::default(), |counts| counts.returned)
    }

    /// Reports all lost hits of a CPU. Returns how many of them were not reported before.
    pub(crate) fn report_lost(&mut self, cpu: u32, lost: u64) -> u64 {
        let counts = self.cpus.get_mut(cpu as usize);
        lost.saturating_sub(counts.map_or(lost, |counts| std::mem::replace(&mut counts.reported, lost)))
    }

    /// Stores the counts of a CPU whose buffer is emptied.
    pub(crate) fn set_baseline(&mut self, cpu: u32, all: Counters) {
        if let Some(counts) = self.cpus.get_mut(cpu as usize) {
            counts.baseline = all;
        }
    }

    pub(crate) fn set_missed_baseline(&mut self, all: u64) {
        self.missed_baseline = all;
    }

    /// The part of a CPU's counts since its buffer was last emptied.
    pub(crate) fn since_emptied(&self, cpu: u32, all: Counters) -> Counters {
        all.minus(self.cpus.get(cpu as usize).map_or(Counters::default(), |counts| counts.baseline))
    }

    pub(crate) fn missed_since_emptied(&self, all: u64) -> u64 {
        all.saturating_sub(self.missed_baseline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_go_and_come_keep_the_sum() {
        let mut ledger = CountLedger::new(2);
        let row = |cpu: u32| Counters { dropped: u64::from(cpu) + 3, ..Counters::default() };
        let [first, second] = [Slot::new(1), Slot::new(2)];
        ledger.add_row(first, row);
        ledger.add_row(second, row);
        ledger.remove_row(second);
        assert_eq!((ledger.returned(0), ledger.returned(1)), (row(0), row(1)));
        // Another event has the row since.
        ledger.remove_row(second);
        ledger.add_row(second, |_| Counters::default());
        ledger.remove_row(second);
        assert_eq!((ledger.returned(0), ledger.returned(1)), (row(0), row(1)));
        assert_eq!(ledger.returned(9), Counters::default());
        assert_eq!((ledger.report_lost(1, 4), ledger.report_lost(1, 6), ledger.report_lost(0, 2)), (4, 2, 2));
        ledger.set_baseline(0, row(0));
        assert_eq!(ledger.since_emptied(0, row(2)).dropped, 2);
        assert_eq!(ledger.since_emptied(1, row(2)), row(2));
        ledger.set_missed_baseline(5);
        assert_eq!((ledger.missed_since_emptied(7), ledger.missed_since_emptied(4)), (2, 0));
    }
}
