//! The features that this kernel and these privileges allow, for `tracer doctor`, with a reason for every "no".
//!
//! A feature is tried if trying leaves no trace: programs are loaded and dropped. Otherwise it is read from files;
//! the configuration is consulted only if neither works. Nothing is inferred from the kernel's version: each question
//! cites the version or commit that introduced the feature, for people to read.

mod feature;
mod file;
pub mod filter_parser;
mod privilege;
mod program;

pub use feature::{Feature, Group};

/// Probes all features. Takes some tens of milliseconds.
pub fn probe() -> Vec<Feature> {
    let privileges = privilege::Privileges::read();
    let mut features = privilege::features(&privileges);
    features.extend(program::features(&privileges));
    features.extend(file::features());
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
