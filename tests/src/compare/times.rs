//! Compares the times of paired lines: the distance between the two sides' readings of one clock, and whether a
//! trace's times ever decrease. Without this check a stopped clock would pass.

use std::fmt;

use crate::host;
use crate::oracle::Trace;

/// Time differences in nanoseconds: the tracer's time minus the kernel's.
#[derive(Clone, Debug, Default)]
pub struct Apart(Vec<i64>);

/// Largest distance between two readings of one clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Limit of the median difference.
    pub median: u64,
    /// Limit of 99 of 100 differences.
    pub p99: u64,
}

impl Bound {
    /// The limits on this machine. Between the two readings the other tracer writes its record. Rarely an interrupt
    /// occurs too. Emulation is 10 to 20 times slower, and may preempt the virtual CPU in the middle of a hit.
    pub fn here() -> Self {
        if host::part() > 1 {
            Self { median: 100_000, p99: 5_000_000 }
        } else {
            Self { median: 20_000, p99: 80_000 }
        }
    }
}

impl Apart {
    /// Adds the two times of a hit, in nanoseconds.
    pub fn take(&mut self, kernel: u64, ours: u64) {
        self.0.push(i64::try_from(i128::from(ours) - i128::from(kernel)).unwrap_or(i64::MAX));
    }

    /// Number of hits.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The difference, in nanoseconds, that this fraction of all differences does not exceed; 0 without differences.
    pub fn quantile(&self, part: f64) -> u64 {
        let mut sizes: Vec<u64> = self.0.iter().map(|difference| difference.unsigned_abs()).collect();
        sizes.sort_unstable();
        let at = (sizes.len() as f64 * part).ceil() as usize;
        sizes.get(at.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// The violation of this limit, if any.
    pub fn wrong(&self, bound: Bound) -> Option<String> {
        let far = self.quantile(0.5) > bound.median || self.quantile(0.99) > bound.p99;
        (far || self.is_empty()).then(|| format!("times are apart by more than {bound:?}: {self}"))
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.0.iter().filter(|difference| **difference > 0).count();
        write!(
            f,
            "{} times, half within {} ns, 99 % within {} ns, the farthest {} ns; ours is the later one in {after}",
            self.len(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.quantile(1.0)
        )
    }
}

/// Lines that are older than the line before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backwards {
    /// Number of such lines.
    pub count: usize,
    /// The first such line, after the line before it.
    pub first: String,
    lines: usize,
}

impl Backwards {
    /// Finds these lines in a trace.
    pub fn of(trace: &Trace) -> Self {
        let older = |two: &&[crate::oracle::Line]| two[1].time < two[0].time;
        let mut found = trace.lines.windows(2).filter(older);
        let first = found.next().map(|two| format!("{:?}\n{:?}", two[0], two[1]));
        let count = usize::from(first.is_some()) + found.count();
        Self { count, first: first.unwrap_or_default(), lines: trace.lines.len() }
    }

    /// The violation of the limit, if any: the lines are more frequent than one in 5,000, or in 1,000 under
    /// emulation. Records of an interrupted program are put in order, except where the younger record left the ring
    /// much earlier (`docs/reference/differences.md`, records). Emulation makes that more likely.
    pub fn wrong(&self) -> Option<String> {
        let one_of = if host::part() > 1 { 1000 } else { 5000 };
        let wrong = self.count * one_of > self.lines;
        wrong.then(|| {
            format!("{} of {} lines are older than the line before:\n{}", self.count, self.lines, self.first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_is_found() {
        let (mut live, mut dead) = (Apart::default(), Apart::default());
        for hit in 0..1000_u64 {
            let time = 5_000_000_000 + hit * 100_000;
            live.take(time, time + 900);
            dead.take(time, 5_000_000_000);
        }
        let bound = Bound { median: 20_000, p99: 80_000 };
        assert_eq!(live.wrong(bound), None);
        assert_eq!((live.quantile(0.5), live.quantile(1.0)), (900, 900));
        assert!(dead.wrong(bound).is_some());
        // An empty comparison fails.
        assert!(Apart::default().wrong(bound).is_some());
        // More than one of a hundred differences is too large.
        for hit in 0..25 {
            live.take(0, 1_000_000 + hit);
        }
        assert!(live.wrong(bound).is_some());
    }

    #[test]
    fn steps_back_are_counted() {
        let line = |micros: u32| format!("{:>16}-7       [000] ..... 1.{micros:06}: a: 1\n", "task");
        let trace = Trace::parse([line(3), line(4), line(2), line(2), line(1)].concat().as_bytes());
        let found = Backwards::of(&trace);
        assert_eq!(found.count, 2);
        assert!(found.first.contains("time: 1000004000") && found.wrong().is_some(), "{found:?}");
        let even = Backwards::of(&Trace::parse([line(1), line(1)].concat().as_bytes()));
        assert_eq!((even.count, even.wrong()), (0, None));
    }
}
