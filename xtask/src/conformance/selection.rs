//! The cases of the suite that a test run takes: the core, or all in scope.

use std::path::Path;

use anyhow::{Context as _, Result};

/// Directories of `test.d` that cover the functions of `tracer`.
const IN_SCOPE: [&str; 8] =
    ["00basic", "event", "filter", "instances", "trigger", "trigger/inter-event", "dynevent", "kprobe"];
/// The directories of `test.d` that are in scope.
pub(crate) fn directories() -> impl Iterator<Item = &'static str> {
    IN_SCOPE.into_iter()
}

/// Cases that every run takes. They use what the mirror implements in its own way: snapshots, functions, instances,
/// types of arguments, and synthetic events from histograms. A case takes half a minute in an emulated machine, because
/// the suite resets every event before it, and some run twice, in an instance too.
const CORE: [&str; 5] = [
    "00basic/snapshot.tc",
    "dynevent/add_remove_fprobe.tc",
    "instances/instance-event.tc",
    "kprobe/kprobe_args_type.tc",
    "trigger/inter-event/trigger-onmatch-action-hist.tc",
];

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

/// The cases of the core.
pub(super) fn core() -> Vec<String> {
    CORE.map(str::to_owned).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_in_scope() {
        let dir = |case: &str| case.rsplit_once('/').unwrap().0.to_owned();
        assert!(CORE.iter().all(|case| IN_SCOPE.contains(&dir(case).as_str())));
    }
}
