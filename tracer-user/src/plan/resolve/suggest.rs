//! Suggests a field name for a misspelled one. Only the tracer's own command line shows it; the kernel has no such
//! feature.

use crate::lang::filter::{ErrorKind, Fault};

/// The nearest of `known` names if `fault` is a field that was not found; None if all are too far away.
pub(super) fn for_fault(fault: Fault, text: &[u8], known: impl FnOnce() -> Vec<String>) -> Option<String> {
    if fault.kind != ErrorKind::FieldNotFound {
        return None;
    }
    nearest(&String::from_utf8_lossy(fault.span.of(text)), known().into_iter())
}

/// The nearest of `known` names; None if all are too far away.
pub fn nearest(wrong: &str, known: impl Iterator<Item = String>) -> Option<String> {
    candidates(wrong, known).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// The `known` names at the smallest distance, at most three, in alphabetical order; empty if all are too far away.
pub fn like(wrong: &str, known: impl Iterator<Item = String>) -> Vec<String> {
    const MOST: usize = 3;
    let mut all: Vec<(usize, String)> = candidates(wrong, known).collect();
    all.sort();
    all.dedup();
    let nearest = all.first().map_or(0, |(distance, _)| *distance);
    let equal = all.into_iter().take_while(|(distance, _)| *distance == nearest);
    equal.map(|(_, name)| name).take(MOST).collect()
}

/// The names within the maximum distance, and their distances.
fn candidates(wrong: &str, known: impl Iterator<Item = String>) -> impl Iterator<Item = (usize, String)> {
    let most = wrong.len().div_ceil(3);
    known
        .filter(move |name| name.len().abs_diff(wrong.len()) <= most)
        .map(move |name| (distance(wrong, &name), name))
        .filter(move |(distance, _)| *distance <= most)
}

/// Number of insertions, deletions, replacements and swaps of neighbours that turn one into the other; case is ignored.
fn distance(left: &str, right: &str) -> usize {
    strsim::osa_distance(&left.to_ascii_lowercase(), &right.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_are_named() {
        let known = || ["vfs_read", "vfs_readv", "vfs_write", "vfs_reap"].map(str::to_owned).into_iter();
        assert_eq!(like("vfs_raed", known()), ["vfs_read"]);
        assert_eq!(like("vfs_rea", known()), ["vfs_read", "vfs_reap"]);
        assert_eq!(like("completely_else", known()), [""; 0]);
    }

    #[test]
    fn distances() {
        for (left, right, expected) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("kitten", "sitting", 3),
            ("pdi", "pid", 1),
            ("COMM", "comm", 0),
            ("prev_pidd", "prev_pid", 1),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
