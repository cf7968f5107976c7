//! The features that this kernel and these privileges allow, for `tracer doctor`, with a reason for every "no".
//!
//! A feature is tried if trying leaves no trace: programs are loaded and dropped. Otherwise it is read from files;
//! the configuration is consulted only if neither works. Nothing is inferred from the kernel's version: each question
//! cites the version or commit that introduced the feature, for people to read.

mod advice;
mod feature;
mod file;
pub mod filter_parser;
mod privilege;
mod program;
mod surroundings;

use std::path::Path;

pub use feature::{Feature, Group};

/// Probes all features. Takes some tens of milliseconds.
pub fn probe() -> Vec<Feature> {
    let surroundings = surroundings::Surroundings::read(Path::new("/"));
    let privileges = privilege::Privileges::read(&surroundings);
    let mut features = privilege::features(&privileges);
    features.extend(surroundings.features());
    features.extend(program::features(&privileges));
    features.extend(file::features());
    let refuser = privileges.refuser();
    for feature in &mut features {
        feature.advice = advice::advice(feature, &refuser, &surroundings);
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_no_has_a_reason() {
        let features = probe();
        let mut names: Vec<_> = features.iter().map(|feature| feature.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for feature in &features {
            if let Some(reason) = feature.answer.reason() {
                assert!(!reason.is_empty(), "{}", feature.name);
            }
            assert!(!feature.since.is_empty() && !feature.purpose.is_empty(), "{}", feature.name);
        }
    }
}
