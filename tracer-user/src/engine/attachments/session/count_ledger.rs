//! Counts of hits that outlive the rows of the kernel side.
//!
//! A row of counters belongs to another event once its event is detached. The ledger keeps what such rows had, what was
//! already reported as lost, and where the counts stood when the buffers were last emptied.

use tracer_abi::Counters;

/// What is known of counts by CPU.
#[derive(Debug)]
pub(in crate::engine) struct CountLedger {
    /// Counts of rows that their events gave back.
    returned: Vec<Counters>,
    /// Lost hits that are in the counts of the buffers.
    reported: Vec<u64>,
    /// All counts when the CPU's buffer was last emptied.
    baseline: Vec<Counters>,
    /// Missed hits when all buffers were last emptied.
    missed_baseline: u64,
}

impl CountLedger {
    /// A ledger for so many CPUs.
    pub(in crate::engine) fn new(cpus: usize) -> Self {
        Self {
            returned: vec![Counters::default(); cpus],
            reported: vec![0; cpus],
            baseline: vec![Counters::default(); cpus],
            missed_baseline: 0,
        }
    }

    /// Keeps the counts of a row that its event gives back.
    pub(in crate::engine) fn add_row(&mut self, row: impl Fn(u32) -> Counters) {
        for (cpu, returned) in (0..).zip(&mut self.returned) {
            *returned = returned.plus(row(cpu));
        }
    }

    /// Takes them out again: the event has the row once more.
    pub(in crate::engine) fn remove_row(&mut self, row: impl Fn(u32) -> Counters) {
        for (cpu, returned) in (0..).zip(&mut self.returned) {
            *returned = returned.minus(row(cpu));
        }
    }

    /// The counts of returned rows on a CPU.
    pub(in crate::engine) fn returned(&self, cpu: u32) -> Counters {
        self.returned.get(cpu as usize).copied().unwrap_or_default()
    }

    /// How many of these lost hits of a CPU were not reported yet; they are from here on.
    pub(in crate::engine) fn report_lost(&mut self, cpu: u32, lost: u64) -> u64 {
        let before = self.reported.get_mut(cpu as usize).map_or(lost, |all| std::mem::replace(all, lost));
        lost.saturating_sub(before)
    }

    /// Remembers the counts of a CPU whose buffer is emptied.
    pub(in crate::engine) fn set_baseline(&mut self, cpu: u32, all: Counters) {
        if let Some(baseline) = self.baseline.get_mut(cpu as usize) {
            *baseline = all;
        }
    }

    /// Remembers the missed hits when all buffers are emptied.
    pub(in crate::engine) fn set_missed_baseline(&mut self, all: u64) {
        self.missed_baseline = all;
    }

    /// Of all counts of a CPU, those since its buffer was last emptied.
    pub(in crate::engine) fn since_emptied(&self, cpu: u32, all: Counters) -> Counters {
        all.minus(self.baseline.get(cpu as usize).copied().unwrap_or_default())
    }

    /// Of all missed hits, those since the buffers were last emptied.
    pub(in crate::engine) fn missed_since_emptied(&self, all: u64) -> u64 {
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
        ledger.add_row(row);
        ledger.add_row(row);
        ledger.remove_row(row);
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
