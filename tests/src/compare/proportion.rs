//! A sequential test of a proportion. The share of lines that differ varies between runs, so one run does not decide
//! whether it is below a limit. A test accumulates runs until the upper bound of the share's confidence interval
//! (Wilson, "Probable inference", 1927) is below the limit, or fails after a fixed number of runs.

/// Quantile of the normal distribution for a confidence of 99 %.
const QUANTILE: f64 = 2.326;

/// A number of lines among all lines of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proportion {
    /// The lines.
    pub part: u64,
    /// All lines.
    pub of: u64,
}

impl Proportion {
    /// Whether the lines show that the share is below this many thousandths. A share near the limit needs many lines.
    pub fn is_below(self, thousandths: u64) -> bool {
        let (part, of, square) = (self.part as f64, self.of as f64, QUANTILE * QUANTILE);
        let spread = (part * (of - part) / of.max(1.0) + square / 4.0).sqrt();
        let upper = (part + square / 2.0 + QUANTILE * spread) / (of + square);
        upper < thousandths as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Rng;

    fn is_below(part: u64, of: u64, thousandths: u64) -> bool {
        Proportion { part, of }.is_below(thousandths)
    }

    #[test]
    fn few_lines_and_shares_near_the_limit_need_more_lines() {
        assert!(!is_below(0, 0, 20) && !is_below(0, 200, 20) && is_below(0, 300, 20));
        assert!(!is_below(18, 1_000, 20) && !is_below(180, 10_000, 20) && is_below(1_800, 100_000, 20));
        assert!(!is_below(2_000, 100_000, 20) && !is_below(2_200, 100_000, 20) && !is_below(10, 10, 1000));
    }

    /// Up to eight runs of 1,000 lines each, with shares of both sides of the limit.
    #[test]
    fn accumulated_runs_find_the_side_of_the_limit() {
        let mut rng = Rng::new(11);
        let mut accepted = |thousandths: usize| {
            (0..300)
                .filter(|_| {
                    let mut lines = Proportion { part: 0, of: 0 };
                    (0..8).any(|_| {
                        lines.part += (0..1000).filter(|_| rng.below(1000) < thousandths).count() as u64;
                        lines.of += 1000;
                        lines.is_below(20)
                    })
                })
                .count()
        };
        assert_eq!(accepted(5), 300);
        assert_eq!(accepted(40), 0);
        // The interval holds for one look at the lines, and each run is a look.
        let at_limit = accepted(20);
        assert!(at_limit <= 15, "{at_limit} of 300");
    }
}
