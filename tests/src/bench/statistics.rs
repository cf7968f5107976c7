//! The median of a measurement's rounds, and ratios of medians.

/// The median; the mean of the middle two values when their number is even, and 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The median as a cell of a table, with the smallest and the largest value in parentheses.
pub(crate) fn spread(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.0} ({low:.0}..{high:.0})", median(values))
}

/// Largest spread of the middle half of a measurement's rounds, relative to their median.
const SPREAD: f64 = 0.25;

/// The lower and the upper quartile.
fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| sorted.get((sorted.len().saturating_sub(1)) * part / 4).copied().unwrap_or(0.0);
    (at(1), at(3))
}

/// Whether the rounds agree well enough to compare their median with another one.
fn is_steady(values: &[f64]) -> bool {
    let (low, high) = quartiles(values);
    !values.is_empty() && high - low <= SPREAD * median(values).abs()
}

/// A ratio of medians as a cell of a table; `unsteady` where the rounds of one side spread too far.
/// Empty without values of the other side.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> String {
    if theirs.is_empty() {
        return String::new();
    }
    if is_steady(ours) && is_steady(theirs) {
        format!("{:.2}", median(ours) / median(theirs))
    } else {
        "unsteady".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{is_steady, median, ratio};

    #[test]
    fn rounds_that_spread_give_no_ratio() {
        let (steady, wild) = ([100.0, 101.0, 99.0, 100.0, 300.0], [100.0, 200.0, 20.0, 150.0, 40.0]);
        // A median tolerates one disturbed round.
        assert!(is_steady(&steady) && !is_steady(&wild) && !is_steady(&[]));
        assert_eq!(ratio(&steady, &[50.0; 5]), "2.00");
        assert_eq!(ratio(&wild, &steady), "unsteady");
        assert_eq!(ratio(&steady, &wild), "unsteady");
    }

    #[test]
    fn medians() {
        for (values, expected) in
            [(vec![], 0.0), (vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 9.0], 3.0)]
        {
            assert!((median(&values) - expected).abs() < 1e-9, "{values:?}");
        }
    }
}
