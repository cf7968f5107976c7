//! The committed results of the kernel's suite, and the differences between them and a run.
//!
//! A baseline is a file in `tests/conformance` with one line per case: the result, the case's file below `test.d`, and
//! `(instance)` if the suite ran the file in an instance. Lines are sorted, so that a change affects only its own line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::host;

/// The files' directory, relative to the tree.
const DIR: &str = "tests/conformance";
/// Suffix of a case that ran in an instance.
const INSTANCE: &str = " (instance)";

/// Results by case.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Baseline(BTreeMap<String, String>);

/// The name of a case: its file below `test.d`, and whether the suite ran it in an instance.
pub(super) fn case(file: &str, in_instance: bool) -> String {
    format!("{file}{}", if in_instance { INSTANCE } else { "" })
}

/// The file of a case below `test.d`.
pub(super) fn file(case: &str) -> &str {
    case.strip_suffix(INSTANCE).unwrap_or(case)
}

/// The path of a machine's baseline.
pub(super) fn path(machine: &str) -> PathBuf {
    host::root().join(DIR).join(format!("{machine}.txt"))
}

impl Baseline {
    /// Reads a file; `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| path.display().to_string()).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut results = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some((result, case)) = line.split_once(' ') else { bail!("no case in {line:?}") };
            if results.insert(case.trim().to_owned(), result.to_owned()).is_some() {
                bail!("{} is there twice", case.trim());
            }
        }
        Ok(Self(results))
    }

    /// Replaces the expected results of these cases with the results of a run.
    pub(super) fn bless(&mut self, results: &BTreeMap<String, String>) {
        self.0.extend(results.iter().map(|(case, result)| (case.clone(), result.clone())));
    }

    /// The file's text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (case, result) in &self.0 {
            let _ = writeln!(text, "{result:11} {case}");
        }
        text
    }

    /// The expected result of a case.
    pub(super) fn expected(&self, case: &str) -> Option<&str> {
        self.0.get(case).map(String::as_str)
    }

    /// Cases of these files that did not run.
    pub(super) fn missing<'a>(
        &'a self,
        files: &'a [String],
        results: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a str> {
        let file = |case: &str| file(case).to_owned();
        self.0
            .keys()
            .map(String::as_str)
            .filter(move |case| files.contains(&file(case)) && !results.contains_key(*case))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(case, result)| ((*case).to_owned(), (*result).to_owned())).collect()
    }

    #[test]
    fn a_baseline_is_read_back_as_it_was_written() {
        let mut baseline = Baseline::default();
        baseline.bless(&results(&[("event/a.tc", "PASS"), (&case("event/a.tc", true), "FAIL")]));
        assert_eq!(baseline.text(), "PASS        event/a.tc\nFAIL        event/a.tc (instance)\n");
        assert_eq!(Baseline::parse(&format!("# head\n\n{}", baseline.text())).unwrap(), baseline);
        baseline.bless(&results(&[("event/a.tc", "XFAIL")]));
        assert_eq!(baseline.expected("event/a.tc"), Some("XFAIL"));
        assert_eq!(baseline.expected("event/b.tc"), None);
        assert!(Baseline::parse("PASS").is_err() && Baseline::parse("PASS a\nFAIL a").is_err());
    }

    #[test]
    fn a_case_that_did_not_run_is_missing() {
        let baseline = Baseline::parse("PASS a.tc\nPASS a.tc (instance)\nPASS b.tc").unwrap();
        let ran = results(&[("a.tc", "PASS")]);
        let files = ["a.tc".to_owned()];
        assert_eq!(baseline.missing(&files, &ran).collect::<Vec<_>>(), ["a.tc (instance)"]);
    }
}
