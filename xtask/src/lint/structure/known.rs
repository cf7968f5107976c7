//! The entries of `known.txt`, which list the known excesses, and the differences between them and the tree.
//!
//! The number of an entry may decrease, never increase. A difference is a finding. An entry that no longer applies is
//! a finding too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use crate::lint::finding::Finding;

/// The quantity that an entry limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The number of files in a folder.
    Folder(String),
    /// The number of methods of a type.
    Methods { krate: String, module: String, name: String },
    /// The number of files in a cycle.
    Cycle { krate: String, first: String },
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: Key,
    number: usize,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match &self.key {
            Key::Folder(folder) => write!(f, "folder {folder} {number}"),
            Key::Methods { krate, module, name } => write!(f, "methods {krate} {module} {name} {number}"),
            Key::Cycle { krate, first } => write!(f, "cycle {krate} {number} {first}"),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let (key, number) = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["folder", folder, number] => (Key::Folder(folder.to_owned()), number),
            ["methods", krate, module, name, number] => (
                Key::Methods { krate: krate.to_owned(), module: module.to_owned(), name: name.to_owned() },
                number,
            ),
            ["cycle", krate, number, first] => {
                (Key::Cycle { krate: krate.to_owned(), first: first.to_owned() }, number)
            }
            _ => return None,
        };
        Some(Self { key, number: number.parse().ok()? })
    }
}

/// A folder, type or cycle that exceeds its limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub(super) key: Key,
    pub(super) number: usize,
    /// Its location: a file or folder, and a line.
    pub(super) file: String,
    pub(super) line: usize,
    /// The error, with details.
    pub(super) text: String,
}

impl Excess {
    fn entry(&self) -> Entry {
        Entry { key: self.key.clone(), number: self.number }
    }

    fn finding(&self, text: String) -> Finding {
        Finding { file: self.file.clone().into(), line: self.line, text }
    }
}

/// The differences between the tree and the entries of `file`, whose text is `text`.
pub(super) fn compare(file: &Path, text: &str, excesses: &[Excess]) -> Vec<Finding> {
    let at = |line, text| Finding { file: file.to_path_buf(), line, text };
    let mut findings = Vec::new();
    let mut known: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
    for (line, text) in text.lines().enumerate().map(|(before, text)| (before + 1, text.trim())) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match Entry::parse(text) {
            None => findings.push(at(line, format!("`{text}` is no entry"))),
            Some(Entry { key, number }) => {
                if let Some((first, _)) = known.insert(key, (line, number)) {
                    findings.push(at(line, format!("the same as line {first}: remove one of them")));
                }
            }
        }
    }
    let new: Vec<&Excess> = excesses.iter().filter(|excess| !known.contains_key(&excess.key)).collect();
    for excess in excesses {
        let text = &excess.text;
        match known.get(&excess.key) {
            None => findings.push(excess.finding(text.clone())),
            Some((_, number)) if excess.number > *number => {
                let text = format!("more than the {number} in {}: {text}", file.display());
                findings.push(excess.finding(text));
            }
            Some((line, number)) if excess.number < *number => {
                findings.push(at(*line, format!("fewer now: change this line to `{}`", excess.entry())));
            }
            Some(_) => {}
        }
    }
    let found: BTreeSet<&Key> = excesses.iter().map(|excess| &excess.key).collect();
    for (key, (line, number)) in known.iter().filter(|(key, _)| !found.contains(key)) {
        findings.push(at(*line, format!("no longer true: {}", instead(key, *number, &new))));
    }
    findings
}

/// Instructions for an entry that no longer applies. A cycle may have lost its first file or have split.
fn instead(key: &Key, number: usize, new: &[&Excess]) -> String {
    let same = |excess: &&&Excess| match (key, &excess.key) {
        (Key::Cycle { krate, .. }, Key::Cycle { krate: other, .. }) => {
            krate == other && excess.number <= number
        }
        _ => false,
    };
    let left: Vec<String> = new.iter().filter(same).map(|excess| format!("`{}`", excess.entry())).collect();
    if left.is_empty() {
        "remove this line".to_owned()
    } else {
        format!(
            "remove this line, or change it to what is left of this cycle, if it is among {}",
            left.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excess(line: &str) -> Excess {
        let Entry { key, number } = Entry::parse(line).unwrap();
        Excess { key, number, file: "c/x.rs".to_owned(), line: 3, text: "too much".to_owned() }
    }

    fn findings(known: &str, found: &[&str]) -> Vec<String> {
        let found: Vec<Excess> = found.iter().map(|line| excess(line)).collect();
        compare(Path::new("known.txt"), known, &found).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn entries_read_as_they_are_written() {
        for line in ["folder c/src/a 38", "methods c engine Mirror 195", "cycle c 14 c/src/a.rs"] {
            assert_eq!(Entry::parse(line).unwrap().to_string(), line);
        }
        for bad in ["folder c", "folder c/src x", "folder a b 3", "cycle c c/src/a.rs 14", "other c 3"] {
            assert_eq!(Entry::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn known_excesses_pass() {
        let lines = ["folder c/src/a 38", "methods c engine Mirror 195", "cycle c 14 c/src/a.rs"];
        assert_eq!(findings(&format!("# Why.\n\n{}\n", lines.join("\n")), &lines), [""; 0]);
    }

    #[test]
    fn new_and_grown_excesses_fail_at_their_location() {
        assert_eq!(findings("", &["folder c/src 16"]), ["c/x.rs:3: too much"]);
        assert_eq!(
            findings("folder c/src 16", &["folder c/src 17"]),
            ["c/x.rs:3: more than the 16 in known.txt: too much"]
        );
    }

    #[test]
    fn a_smaller_excess_fails_with_the_new_line() {
        assert_eq!(
            findings("# Why.\nmethods c a T 50\n", &["methods c a T 49"]),
            ["known.txt:2: fewer now: change this line to `methods c a T 49`"]
        );
        assert_eq!(
            findings("cycle c 5 c/a.rs", &["cycle c 4 c/a.rs"]),
            ["known.txt:1: fewer now: change this line to `cycle c 4 c/a.rs`"]
        );
    }

    #[test]
    fn outdated_entries_fail() {
        assert_eq!(findings("folder c/src 16", &[]), ["known.txt:1: no longer true: remove this line"]);
        assert_eq!(
            findings("cycle c 5 c/a.rs\ncycle d 9 d/a.rs", &["cycle c 4 c/b.rs", "cycle c 6 c/h.rs"]),
            [
                "c/x.rs:3: too much",
                "c/x.rs:3: too much",
                "known.txt:1: no longer true: remove this line, or change it to what is left of this \
                 cycle, if it is among `cycle c 4 c/b.rs`",
                "known.txt:2: no longer true: remove this line",
            ]
        );
    }

    #[test]
    fn invalid_lines_are_reported() {
        assert_eq!(
            findings("what\nfolder c/src 16\nfolder c/src 17", &["folder c/src 17"]),
            ["known.txt:1: `what` is no entry", "known.txt:3: the same as line 2: remove one of them"]
        );
    }
}
