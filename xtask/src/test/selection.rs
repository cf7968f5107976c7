//! The groups of integration tests, their modules, and the names that select them.
//!
//! A group is a folder `tests/tests/GROUP`, which cargo builds as one binary. Each other file in the folder of
//! `main.rs` is a module with tests. Every module runs in a separate process, because modules change the state of
//! their process: mounts, signals, thread names, attached programs. The options of the test harness select the
//! module.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Directory of the integration tests, relative to the tree's root.
const TESTS: &str = "tests/tests";

/// The modules of each group.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Groups(BTreeMap<String, Vec<String>>);

/// The names in a folder that `wanted` keeps, sorted.
fn names(folder: &Path, wanted: impl Fn(&Path) -> Option<String>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        names.extend(wanted(&entry?.path()));
    }
    names.sort();
    Ok(names)
}

/// The name of a source file without `.rs`.
fn stem(path: &Path) -> Option<String> {
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    path.file_stem().filter(|_| is_source).map(|stem| stem.to_string_lossy().into_owned())
}

/// The name of a folder that contains `file`.
fn folder_with(path: &Path, file: &str) -> Option<String> {
    let name = path.file_name().filter(|_| path.join(file).is_file());
    name.map(|name| name.to_string_lossy().into_owned())
}

impl Groups {
    /// The groups of a tree. A program of one file is a group without modules.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let folder = root.join(TESTS);
        let mut groups = Self::default();
        for name in names(&folder, stem)? {
            groups.0.insert(name, Vec::new());
        }
        for name in names(&folder, |path| folder_with(path, "main.rs"))? {
            let mut modules = names(&folder.join(&name), |path| folder_with(path, "mod.rs").or(stem(path)))?;
            modules.retain(|module| module != "main");
            groups.add(name, modules)?;
        }
        Ok(groups)
    }

    /// One group, for tests.
    #[cfg(test)]
    pub(super) fn of(group: &str, modules: &[String]) -> Self {
        Self(BTreeMap::from([(group.to_owned(), modules.to_vec())]))
    }

    /// Adds a group.
    fn add(&mut self, group: String, modules: Vec<String>) -> Result<()> {
        for one in &modules {
            // The test harness selects names that contain a text: `hist::` would select `trigger_hist::` too.
            let longer = modules.iter().find(|other| *other != one && other.ends_with(one.as_str()));
            if let Some(longer) = longer {
                bail!("{TESTS}/{group}: `{longer}` ends with the name of another module, `{one}`");
            }
        }
        ensure!(!self.0.contains_key(&group), "{TESTS}: `{group}` is a folder and a file");
        self.0.insert(group, modules);
        Ok(())
    }

    /// The modules of a group.
    pub(super) fn modules(&self, group: &str) -> &[String] {
        self.0.get(group).map_or(&[], Vec::as_slice)
    }

    /// All modules with tests, `GROUP::MODULE`, and the groups without modules.
    pub(super) fn with_tests(&self, root: &Path) -> Vec<String> {
        let of = |(group, modules): (&String, &Vec<String>)| match modules.as_slice() {
            [] => vec![group.clone()],
            modules => modules.iter().map(|module| format!("{group}::{module}")).collect(),
        };
        let has_tests = |module: &String| source(root, module).is_some_and(|text| text.contains("#[test]"));
        self.0.iter().flat_map(of).filter(has_tests).collect()
    }

    /// Whether a name is the name of a group or of a module, `GROUP::MODULE`.
    pub(super) fn has(&self, name: &str) -> bool {
        match name.split_once("::") {
            None => self.0.contains_key(name),
            Some((group, module)) => self.modules(group).iter().any(|known| known == module),
        }
    }

    /// Whether a test `GROUP::MODULE::TEST` is in the sources of its module.
    #[cfg(test)]
    pub(super) fn has_test(&self, root: &Path, name: &str) -> bool {
        let Some((module, test)) = name.rsplit_once("::") else { return false };
        self.has(module) && source(root, module).is_some_and(|text| text.contains(&format!("fn {test}()")))
    }

    /// Checks the names that a command line selects. The error lists the known names.
    pub(super) fn check(&self, selected: &[String]) -> Result<()> {
        let Some(unknown) = selected.iter().find(|name| !self.has(name)) else { return Ok(()) };
        let known: Vec<String> = self.0.iter().map(|(group, modules)| line(group, modules)).collect();
        bail!("no integration tests are named `{unknown}`; known are:\n{}", known.join("\n"))
    }
}

/// The text of a module `GROUP::MODULE`, or of a group of one file.
fn source(root: &Path, module: &str) -> Option<String> {
    let folder = root.join(TESTS).join(module.replace("::", "/"));
    let files = [folder.with_extension("rs"), folder.join("mod.rs")];
    files.iter().find_map(|file| std::fs::read_to_string(file).ok())
}

/// A group and the names of its modules.
fn line(group: &str, modules: &[String]) -> String {
    let modules: Vec<String> = modules.iter().map(|module| format!("{group}::{module}")).collect();
    format!("  {group}: {}", modules.join(", ")).trim_end_matches([':', ' ']).to_owned()
}

/// Arguments of the test harness that select the tests of a module, or of a whole binary, whose names contain one of
/// `words`. All modules of the binary are `modules`.
pub(super) fn arguments(module: Option<&str>, modules: &[String], words: &[String]) -> Vec<String> {
    let Some(module) = module else { return words.to_vec() };
    if words.is_empty() {
        return vec![format!("{module}::")];
    }
    // The harness takes the tests that contain any of the words, so the module cannot be one of them.
    let others = modules.iter().filter(|other| *other != module);
    let skipped = others.flat_map(|other| ["--skip".to_owned(), format!("{other}::")]);
    skipped.chain(words.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn groups() -> Groups {
        let mut groups = Groups::of("api", &strings(&["bpf", "synth"]));
        groups.add("single".to_owned(), Vec::new()).unwrap();
        groups
    }

    #[test]
    fn groups_and_modules_have_names() {
        let groups = groups();
        assert!(groups.check(&strings(&["api", "api::synth", "single"])).is_ok());
        for unknown in ["", "ap", "bpf", "api::", "api::hist", "single::bpf", "api::bpf::test"] {
            let error = groups.check(&strings(&["api", unknown])).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "no integration tests are named `{unknown}`; known are:\n  api: api::bpf, api::synth\n  single"
                )
            );
        }
    }

    #[test]
    fn a_name_that_ends_with_another_is_refused() {
        let mut groups = groups();
        let error = groups.add("hist".to_owned(), strings(&["hist", "trigger_hist"])).unwrap_err();
        assert!(error.to_string().contains("`trigger_hist` ends with the name of another module, `hist`"));
        assert!(groups.add("api".to_owned(), Vec::new()).is_err());
    }

    #[test]
    fn a_module_is_selected_with_and_without_words() {
        let modules = strings(&["bpf", "kprobe", "synth"]);
        assert_eq!(arguments(Some("bpf"), &modules, &[]), ["bpf::"]);
        assert_eq!(
            arguments(Some("kprobe"), &modules, &strings(&["a", "b"])),
            ["--skip", "bpf::", "--skip", "synth::", "a", "b"]
        );
        assert_eq!(arguments(None, &[], &strings(&["a"])), ["a"]);
    }

    #[test]
    fn the_harness_takes_the_arguments() {
        // The modules of this binary that have tests.
        let modules = strings(&[
            "arch",
            "cli",
            "conformance",
            "ebpf",
            "facts",
            "fresh",
            "fuzz",
            "host",
            "lint",
            "setup",
            "sources",
            "test",
            "toolchain",
            "vm",
        ]);
        let listed = |arguments: Vec<String>| {
            let mut own = std::process::Command::new(std::env::current_exe().unwrap());
            let output = own.args(["--list", "--format", "terse"]).args(arguments).output().unwrap();
            assert!(output.status.success());
            let lines = String::from_utf8(output.stdout).unwrap();
            lines
                .lines()
                .filter_map(|line| line.strip_suffix(": test").map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let all = listed(arguments(Some("lint"), &modules, &[]));
        assert!(all.len() > 10 && all.iter().all(|name| name.starts_with("lint::")), "{all:?}");
        let words = strings(&["are_", "_a_"]);
        let some = listed(arguments(Some("lint"), &modules, &words));
        let expected: Vec<_> =
            all.iter().filter(|name| words.iter().any(|word| name.contains(word.as_str()))).collect();
        assert!(some.len() > 3 && some.len() < all.len(), "{some:?}");
        assert_eq!(some.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn this_trees_groups_are_read() {
        let groups = Groups::read(crate::host::root()).unwrap();
        assert!(groups.0.len() >= 9, "{groups:?}");
    }
}
