//! Limits on the structure of the workspace's crates: files per folder, methods per type, and cycles of files that use
//! each other.
//!
//! - A folder has at most [`FILES_MAX`] files.
//! - A type has at most [`METHODS_MAX`] methods in one top-level module: inherent ones, and for a type of `engine` also
//!   functions that take a reference to it first.
//! - Cycles are allowed only within one folder, with at most [`CYCLE_MAX`] files. [`modules`] defines a use.
//!
//! [`KNOWN`] lists the folders, types and cycles that exceed these limits, with numbers that may only decrease
//! ([`known`]).

mod cycles;
mod known;
mod modules;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use self::known::{Excess, Key};
use self::modules::{Crate, Files};
use super::finding::Finding;

/// Maximum number of files directly in a folder.
const FILES_MAX: usize = 15;
/// Maximum number of methods of a type.
const METHODS_MAX: usize = 40;
/// Maximum number of files of a cycle within a folder.
const CYCLE_MAX: usize = 3;
/// The list of known excesses; its path is relative to the root.
const KNOWN: &str = "xtask/src/lint/structure/known.txt";

/// Whether a file is a source of one of the workspace's crates. Build scripts, examples, fuzz targets and files that
/// a test builds are not.
fn is_source(file: &str) -> bool {
    let folders: Vec<&str> = file.split('/').collect();
    matches!(folders[..], [_, "src", _, ..] | ["tests", "tests", _, ..])
}

/// The excesses of a tree, and totals.
#[derive(Debug, Default)]
struct Measured {
    folders: Vec<Excess>,
    types: Vec<Excess>,
    cycles: Vec<Excess>,
    /// Number of cycles with files of different folders.
    across: usize,
}

/// The folders with too many files.
fn folders(files: &Files) -> Vec<Excess> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files.keys() {
        *folders.entry(modules::folder(file)).or_default() += 1;
    }
    let over = folders.into_iter().filter(|(_, number)| *number > FILES_MAX);
    over.map(|(folder, number)| Excess {
        key: Key::Folder(folder.to_owned()),
        number,
        file: folder.to_owned(),
        line: 1,
        text: format!("{number} files in one folder, at most {FILES_MAX} are allowed"),
    })
    .collect()
}

/// The types with too many methods. If a key fits several types, the largest counts.
fn types(of: &Crate) -> Vec<Excess> {
    let mut largest = BTreeMap::new();
    let mut types = of.types();
    types.sort_by_key(|found| found.methods);
    for found in types.into_iter().filter(|found| found.methods > METHODS_MAX) {
        largest.insert((found.module, found.name), found);
    }
    let excess = |found: modules::Type| {
        let (name, number) = (found.name, found.methods);
        let files = found.files.iter().map(|(file, (methods, _))| format!("\n    {file}: {methods}"));
        let (file, line) = found.files.first_key_value().map_or(("", 1), |(file, (_, line))| (*file, *line));
        Excess {
            key: Key::Methods {
                krate: of.name.to_owned(),
                module: found.module.to_owned(),
                name: name.to_owned(),
            },
            number,
            file: file.to_owned(),
            line,
            text: format!(
                "`{name}` has {number} methods, at most {METHODS_MAX} are allowed:{}",
                files.collect::<String>()
            ),
        }
    };
    largest.into_values().map(excess).collect()
}

impl Measured {
    fn new(files: &Files) -> Self {
        let mut measured = Self { folders: folders(files), ..Self::default() };
        for of in modules::crates(files) {
            measured.types.extend(types(&of));
            measured.add_cycles(&of);
        }
        measured
    }

    /// Adds the cycles of a crate.
    fn add_cycles(&mut self, of: &Crate) {
        let graph = of.graph();
        for cycle in cycles::find(&graph) {
            let (across, number, first) = (cycle.is_across(), cycle.files.len(), cycle.files[0]);
            let why = match (across, number > CYCLE_MAX) {
                (true, _) => "of different folders".to_owned(),
                (false, true) => format!("of one folder, more than {CYCLE_MAX},"),
                (false, false) => continue,
            };
            self.across += usize::from(across);
            self.cycles.push(Excess {
                key: Key::Cycle { krate: of.name.to_owned(), first: first.to_owned() },
                number,
                file: first.to_owned(),
                line: 1,
                text: format!("{number} files {why} use each other in a circle:{}", cycle.edges(&graph)),
            });
        }
    }

    /// The totals in one line.
    fn summary(&self) -> String {
        format!(
            "folders of more than {FILES_MAX} files: {}; types of more than {METHODS_MAX} methods: {}; \
             cycles: {}, across folders {}, the largest of {} files",
            self.folders.len(),
            self.types.len(),
            self.cycles.len(),
            self.across,
            self.cycles.iter().map(|cycle| cycle.number).max().unwrap_or(0),
        )
    }

    fn into_excesses(self) -> Vec<Excess> {
        [self.folders, self.types, self.cycles].into_iter().flatten().collect()
    }
}

/// Checks the files of a tree. Their paths are relative to `root`.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let read = |file: &Path| {
        std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
    };
    let mut sources = Files::new();
    for file in files {
        let name = file.to_string_lossy().into_owned();
        if is_source(&name) {
            sources.insert(name, source::read(&read(file)?));
        }
    }
    let known = Path::new(KNOWN);
    let measured = Measured::new(&sources);
    eprintln!("{}", measured.summary());
    Ok(known::compare(known, &read(known)?, &measured.into_excesses()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(tree: &[(String, String)]) -> Measured {
        let files = tree.iter().map(|(file, text)| (file.clone(), source::read(text))).collect();
        Measured::new(&files)
    }

    /// A crate `c` with these sources.
    fn small(tree: &[(&str, &str)]) -> Measured {
        let tree: Vec<_> =
            tree.iter().map(|(file, text)| (format!("c/src/{file}"), (*text).to_owned())).collect();
        measured(&tree)
    }

    fn numbers(excesses: &[Excess]) -> Vec<(&str, usize)> {
        excesses.iter().map(|excess| (&*excess.file, excess.number)).collect()
    }

    #[test]
    fn sources_are_those_of_crates() {
        for file in
            ["a/src/lib.rs", "a/src/b/c.rs", "tests/src/x.rs", "tests/tests/x.rs", "tests/tests/y/main.rs"]
        {
            assert!(is_source(file), "{file}");
        }
        for file in ["a/build.rs", "a/tests/ui/x.rs", "tests/fuzz/src/lib.rs", "tests/benches/x.rs", "src"] {
            assert!(!is_source(file), "{file}");
        }
    }

    #[test]
    fn a_folder_has_a_limit_without_its_subfolders() {
        let tree = |files| {
            let mut tree: Vec<_> = (0..files).map(|i| (format!("c/src/a/f{i}.rs"), String::new())).collect();
            tree.push(("c/src/a/b/mod.rs".to_owned(), String::new()));
            tree
        };
        assert_eq!(numbers(&measured(&tree(15)).folders), []);
        assert_eq!(numbers(&measured(&tree(16)).folders), [("c/src/a", 16)]);
    }

    #[test]
    fn a_type_has_a_limit_over_the_files_of_a_module() {
        let methods = |number: usize| format!("impl super::T {{ {} }}", "fn f() {} ".repeat(number));
        let tree = |last| {
            let files = [
                ("c/src/lib.rs", "mod a; mod z;".to_owned()),
                ("c/src/a/mod.rs", "mod b; mod c; pub struct T;".to_owned()),
                ("c/src/a/b.rs", methods(30)),
                ("c/src/a/c.rs", methods(last)),
                ("c/src/z.rs", methods(40)),
            ];
            files.map(|(file, text)| (file.to_owned(), text))
        };
        assert_eq!(numbers(&measured(&tree(10)).types), []);
        let types = measured(&tree(11)).types;
        assert_eq!(numbers(&types), [("c/src/a/b.rs", 41)]);
        let name = |name: &str| name.to_owned();
        assert_eq!(types[0].key, Key::Methods { krate: name("c"), module: name("a"), name: name("T") });
        assert!(types[0].text.ends_with("\n    c/src/a/b.rs: 30\n    c/src/a/c.rs: 11"), "{}", types[0].text);
    }

    #[test]
    fn a_cycle_within_a_folder_has_a_limit() {
        let tree = |last| {
            small(&[
                ("lib.rs", "mod a;"),
                ("a/mod.rs", "mod b; mod c; mod d; use b::B;"),
                ("a/b.rs", "use super::c::C;"),
                ("a/c.rs", last),
                ("a/d.rs", "use super::A;"),
            ])
        };
        assert_eq!(numbers(&tree("use super::A;").cycles), []);
        let found = tree("use super::{A, d::D};");
        assert_eq!(numbers(&found.cycles), [("c/src/a/b.rs", 4)]);
        assert_eq!(found.across, 0);
        assert!(
            found.cycles[0].text.starts_with(
                "4 files of one folder, more than 3, use each other in a circle:\n    \
                 c/src/a/b.rs -> c/src/a/c.rs: C\n    c/src/a/c.rs -> c/src/a/d.rs: D\n"
            ),
            "{}",
            found.cycles[0].text
        );
    }

    #[test]
    fn a_cycle_across_folders_is_never_allowed() {
        let found = small(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c; use crate::b::B; pub struct A;"),
            ("a/c.rs", ""),
            ("b.rs", "use crate::a::A;"),
        ]);
        assert_eq!(numbers(&found.cycles), [("c/src/a/mod.rs", 2)]);
        assert_eq!(found.across, 1);
        assert!(
            found.cycles[0].text.starts_with("2 files of different folders use"),
            "{}",
            found.cycles[0].text
        );
        assert_eq!(
            found.summary(),
            "folders of more than 15 files: 0; types of more than 40 methods: 0; cycles: 1, \
             across folders 1, the largest of 2 files"
        );
    }

    #[test]
    fn re_exports_of_a_mod_file_make_no_cycle() {
        let found = small(&[
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a/mod.rs", "mod c; pub use c::C; pub use crate::b::B;"),
            ("a/c.rs", "use super::B; use crate::B as Root;"),
            ("b.rs", ""),
        ]);
        assert_eq!(numbers(&found.cycles), []);
    }

    #[test]
    fn this_tree_agrees_with_the_list() {
        let root = crate::host::root();
        let findings = check(root, &crate::lint::files::with_extension(root, "rs").unwrap()).unwrap();
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(texts.is_empty(), "{}", texts.join("\n"));
    }
}
