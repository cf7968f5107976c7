//! Compares the times of paired lines. Both sides handle a hit before the next hit of the same context occurs, so the
//! order of the hits limits the offset between the two clocks, at any speed of the machine. Without this check a
//! stopped clock would pass.

use std::fmt;

use crate::oracle::{Line, Trace};

/// Largest difference of two readings of one clock at one time, in nanoseconds: the text has microseconds, and the
/// clock `mono` of tracefs is read without the lock of the timekeeper.
pub const RESOLUTION: i64 = 2_000;

/// The offsets of the tracer's clock from the kernel's that the order of the hits allows, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    least: i64,
    most: i64,
}

impl Default for Offsets {
    fn default() -> Self {
        Self { least: i64::MIN, most: i64::MAX }
    }
}

impl Offsets {
    /// Adds two successive hits of one context, each with the kernel's time and the tracer's.
    pub fn take(&mut self, earlier: (u64, u64), later: (u64, u64)) {
        self.least = self.least.max(earlier.1.cast_signed() - later.0.cast_signed());
        self.most = self.most.min(later.1.cast_signed() - earlier.0.cast_signed());
    }

    /// Adds the hits of another comparison.
    pub fn add(&mut self, other: Self) {
        self.least = self.least.max(other.least);
        self.most = self.most.min(other.most);
    }

    /// Whether the two clocks may be one clock whose readings differ by at most this.
    pub fn is_one_clock(self, resolution: i64) -> bool {
        self.is_known() && self.least <= resolution && !self.is_early(resolution)
    }

    /// Whether a time of the tracer's clock is earlier than the kernel's by more than this.
    pub fn is_early(self, resolution: i64) -> bool {
        self.most < -resolution
    }

    /// Whether the two clocks may run equally, up to this.
    pub fn is_constant(self, resolution: i64) -> bool {
        self.is_known() && self.least.saturating_sub(self.most) <= 2 * resolution
    }

    fn is_known(self) -> bool {
        self.least > i64::MIN && self.most < i64::MAX
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the order of the hits allows clock offsets from {} to {} ns", self.least, self.most)
    }
}

/// The lines that are older than the line before them although nothing interrupted their hit.
///
/// Records of an interrupted program are put in order, except where the interrupt's record left the ring much earlier
/// (`docs/reference/differences.md`, records).
pub fn backwards(trace: &Trace) -> Vec<String> {
    let lines = &trace.lines;
    let nesting = |line: &Line| ".shH".find(line.flags.at(2)).unwrap_or(4);
    let is_excused = |at: usize| {
        let late = |line: &&Line| line.cpu == lines[at].cpu && line.time > lines[at].time;
        lines[..at].iter().rev().filter(late).any(|line| nesting(line) > nesting(&lines[at]))
    };
    (1..lines.len())
        .filter(|at| lines[*at].time < lines[at - 1].time && !is_excused(*at))
        .map(|at| format!("{:?}\n{:?}", lines[at - 1], lines[at]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_and_another_clock_are_found() {
        let [mut live, mut dead, mut late] = [Offsets::default(); 3];
        assert!(!live.is_one_clock(RESOLUTION) && !live.is_constant(RESOLUTION), "an empty comparison");
        for hit in 0..1000_u64 {
            let [time, next] = [hit, hit + 1].map(|hit| 5_000_000_000 + hit * 20_000);
            live.take((time, time + 900), (next, next + 19_000));
            dead.take((time, 5_000_000_000), (next, 5_000_000_000));
            late.take((time, time + 30_000), (next, next + 31_000));
        }
        assert!(live.is_one_clock(RESOLUTION) && live.is_constant(RESOLUTION), "{live}");
        assert!(!dead.is_one_clock(RESOLUTION) && !dead.is_constant(RESOLUTION), "{dead}");
        assert!(!late.is_one_clock(RESOLUTION) && late.is_constant(RESOLUTION), "{late}");
        assert_eq!([live, dead, late].map(|offsets| offsets.is_early(RESOLUTION)), [false, true, false]);
    }

    #[test]
    fn steps_back_need_an_interrupt() {
        let line = |micros: u32, flags: &str, cpu: u32| {
            format!("{:>16}-7       [{cpu:03}] {flags} 1.{micros:06}: a: 1\n", "task")
        };
        let of = |lines: &[String]| backwards(&Trace::parse(lines.concat().as_bytes()));
        let found = of(&[line(3, ".....", 0), line(4, ".....", 0), line(2, ".....", 0), line(2, ".....", 0)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("time: 1000004000"), "{found:?}");
        assert!(of(&[line(4, "d.h..", 0), line(5, ".....", 1), line(3, ".....", 0)]).is_empty());
        assert_eq!(of(&[line(4, "d.h..", 1), line(3, ".....", 0)]).len(), 1, "of another CPU");
        assert_eq!(
            of(&[line(4, "..s..", 0), line(3, "d.h..", 0)]).len(),
            1,
            "an interrupt is not interrupted"
        );
    }
}
