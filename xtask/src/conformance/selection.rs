//! The cases of the suite that a test run takes: always the core, and one slice of the others.
//!
//! The number of commits determines the slice. A commit therefore always runs the same cases, and a series of commits
//! runs all of them.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::host;

/// Directories of `test.d` that cover the functions of `tracer`.
const IN_SCOPE: [&str; 8] =
    ["00basic", "event", "filter", "instances", "trigger", "trigger/inter-event", "dynevent", "kprobe"];
/// Cases that every run takes. Each is short and represents a part of the mirror.
const CORE: [&str; 14] = [
    "00basic/basic2.tc",
    "00basic/snapshot.tc",
    "dynevent/add_remove_eprobe.tc",
    "dynevent/add_remove_fprobe.tc",
    "dynevent/generic_clear_event.tc",
    "event/event-enable.tc",
    "event/event-pid.tc",
    "filter/event-filter-function.tc",
    "instances/instance-event.tc",
    "kprobe/kprobe_args_type.tc",
    "trigger/inter-event/trigger-synthetic_event_syntax_errors.tc",
    "trigger/inter-event/trigger-onmatch-action-hist.tc",
    "trigger/trigger-filter.tc",
    "trigger/trigger-hist.tc",
];
/// Number of slices into which all other cases are divided.
pub(super) const SLICES: usize = 8;

/// The files of `test.d` in scope, sorted.
pub(super) fn in_scope(suite: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for dir in IN_SCOPE {
        let path = suite.join("test.d").join(dir);
        for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if Path::new(&name).extension().is_some_and(|extension| extension == "tc") {
                files.push(format!("{dir}/{name}"));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The core and one slice of the others.
pub(super) fn of_slice(all: &[String], slice: usize) -> Vec<String> {
    let is_core = |file: &&String| CORE.contains(&file.as_str());
    let others = all.iter().filter(|file| !is_core(file)).skip(slice % SLICES).step_by(SLICES);
    all.iter().filter(is_core).chain(others).cloned().collect()
}

/// The slice of the current commit.
pub(super) fn slice() -> Result<usize> {
    Ok(commits()? % SLICES)
}

/// The number of commits up to the current one, by which runs choose their slices; 0 in a tree without history.
pub(crate) fn commits() -> Result<usize> {
    match host::output(host::git(host::root()).args(["rev-list", "--count", "HEAD"])) {
        Ok(count) => Ok(count.trim().parse::<usize>().context("the number of commits")?),
        Err(error) => {
            eprintln!("warning: no git repository, so slice 0: {error:#}");
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_slices_together_are_all_cases() {
        let mut all: Vec<String> = (0..40).map(|n| format!("event/{n:02}.tc")).collect();
        all.extend(CORE.map(str::to_owned));
        all.sort();
        let mut seen = std::collections::BTreeSet::new();
        for slice in 0..SLICES {
            let taken = of_slice(&all, slice);
            assert!(CORE.iter().all(|core| taken.contains(&(*core).to_owned())));
            assert_eq!(taken.len(), CORE.len() + 40 / SLICES);
            seen.extend(taken);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    }
}
