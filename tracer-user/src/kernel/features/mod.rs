//! The features that this kernel and these privileges allow, for `tracer doctor`, with a reason for every "no".
//!
//! A feature is tried if trying leaves no trace: programs are loaded and dropped. Otherwise it is read from files;
//! the configuration is consulted only if neither works. Nothing is inferred from the kernel's version: each question
//! cites the version or commit that introduced the feature, for people to read.

mod file;
mod privilege;
mod program;

use super::Answer;

/// A feature and whether it is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The part of the list it belongs to.
    pub group: Group,
    /// Short name, stable, for machines.
    pub name: &'static str,
    /// What this program uses it for.
    pub purpose: &'static str,
    /// Version or commit that introduced it, or the setting that controls it.
    pub since: &'static str,
    /// The result of the probe.
    pub answer: Answer,
    /// Additional information (a value, a path).
    pub detail: Option<String>,
}

/// Parts of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// What this process may do.
    Privileges,
    /// BPF programs, maps and links.
    Bpf,
    /// Files that are the sources of facts.
    Facts,
    /// Features that the kernel's own tracefs is built with.
    Tracefs,
}

impl Group {
    /// Heading of the part.
    pub fn title(self) -> &'static str {
        match self {
            Self::Privileges => "privileges",
            Self::Bpf => "BPF",
            Self::Facts => "kernel facts",
            Self::Tracefs => "the kernel's own tracefs",
        }
    }
}

/// Probes all features. Takes some tens of milliseconds.
pub fn probe() -> Vec<Feature> {
    let privileges = privilege::Privileges::read();
    let mut features = privilege::features(&privileges);
    features.extend(program::features(&privileges));
    features.extend(file::features());
    features
}

/// A feature without detail.
fn feature(
    group: Group,
    name: &'static str,
    purpose: &'static str,
    since: &'static str,
    answer: Answer,
) -> Feature {
    Feature { group, name, purpose, since, answer, detail: None }
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
