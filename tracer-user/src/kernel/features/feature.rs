//! A feature of the kernel, and the answer to whether it is available.

use crate::kernel::Answer;

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
    /// What to do about it, if something other than the kernel's version decides.
    pub advice: Option<&'static str>,
}

/// Parts of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// What this process may do.
    Privileges,
    /// What a distribution or container sets up around this process.
    Surroundings,
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
            Self::Surroundings => "surroundings",
            Self::Bpf => "BPF",
            Self::Facts => "kernel facts",
            Self::Tracefs => "the kernel's own tracefs",
        }
    }
}

pub(super) fn feature(
    group: Group,
    name: &'static str,
    purpose: &'static str,
    since: &'static str,
    answer: Answer,
    detail: Option<String>,
) -> Feature {
    Feature { group, name, purpose, since, answer, detail, advice: None }
}
