//! The record of a run that every change passes: `target/gate.json`, which a green run without options writes.
//!
//! `cargo xtask test --was-green` compares it with the checkout. A tool that lands changes can therefore ask whether the
//! tests passed, without parsing their output.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::libtest::Verdict;
use super::report::{Section, Totals};
use crate::host;

/// The state of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checkout {
    /// The commit's full hash.
    commit: String,
    /// Whether no file differs from the commit, including new files that git does not ignore.
    clean: bool,
}

impl Checkout {
    /// The state of the tree at `root`.
    ///
    /// # Errors
    /// If it is not a git repository with a commit.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let commit = host::output(host::git(root).args(["rev-parse", "--verify", "HEAD"]))?.trim().to_owned();
        let status = host::output(host::git(root).args(["status", "--porcelain"]))?;
        Ok(Self { commit, clean: status.is_empty() })
    }

    /// The commit, with or without changes in the tree.
    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    /// Whether the tree is still in this state.
    pub(super) fn is_unchanged(&self) -> bool {
        Self::of(host::root()).is_ok_and(|now| now == *self)
    }

    /// The commit, if no file differs from it.
    pub(super) fn commit_if_clean(&self) -> Option<&str> {
        self.clean.then_some(&*self.commit)
    }
}

fn path(root: &Path) -> PathBuf {
    root.join("target/gate.json")
}

/// Removes the record of an earlier run.
pub(super) fn forget(root: &Path) -> Result<()> {
    match std::fs::remove_file(path(root)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes the record of a green run. The checkout is that of the run's begin.
pub(super) fn write(root: &Path, checkout: &Checkout, sections: &[Section], time: Duration) -> Result<()> {
    let file = path(root);
    let text = serde_json::to_string_pretty(&record(checkout, sections, time))? + "\n";
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

/// The content of the record. Times are in seconds.
fn record(checkout: &Checkout, sections: &[Section], time: Duration) -> Value {
    let Totals { passed, failed, skipped, .. } = Totals::of(sections);
    let flaky: Vec<String> = sections
        .iter()
        .flat_map(|section| section.tests.iter().map(move |test| (section, test)))
        .filter(|(_, test)| matches!(test.verdict, Verdict::Flaky(_)))
        .map(|(section, test)| format!("{}: {}::{}", section.title, test.binary, test.name))
        .collect();
    let steps: Vec<Value> = sections
        .iter()
        .map(|section| json!({ "title": section.title, "seconds": section.time.as_secs() }))
        .collect();
    json!({
        "commit": checkout.commit,
        "clean": checkout.clean,
        "seconds": time.as_secs(),
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "flaky": flaky,
        "steps": steps,
    })
}

/// Checks that the checkout is a commit that passed, without changes.
///
/// # Errors
/// If it is not; the error says why.
pub(super) fn was_green(root: &Path) -> Result<String> {
    let file = path(root);
    let text = std::fs::read_to_string(&file).context("no run of `./x test` has passed here")?;
    let record: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    judge(&record, &Checkout::of(root)?)
}

fn judge(record: &Value, now: &Checkout) -> Result<String> {
    let commit = record["commit"].as_str().unwrap_or_default();
    let (passed, skipped) = (&record["passed"], &record["skipped"]);
    ensure!(commit == now.commit, "the tests passed at {commit}, and this is {}", now.commit);
    ensure!(record["clean"] == true, "the tests passed in a tree with changes");
    ensure!(now.clean, "the tree has changes");
    Ok(format!("{commit}: {passed} passed, {skipped} skipped in {} s", record["seconds"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::libtest::Ended;
    use crate::test::report::Kind;

    fn checkout(commit: &str, clean: bool) -> Checkout {
        Checkout { commit: commit.to_owned(), clean }
    }

    #[test]
    fn only_the_same_commit_without_changes_was_green() {
        let test = |name: &str, verdict| Ended {
            binary: "b".into(),
            name: name.into(),
            verdict,
            time: Duration::from_secs(1),
        };
        let tests = vec![test("m::a", Verdict::Passed), test("m::f", Verdict::Flaky("slow".into()))];
        let host = Section { title: "host".into(), kind: Kind::Host, tests, time: Duration::from_secs(7) };
        let sections = [Section::step("build", Duration::from_secs(3)), host];
        let record = |clean| record(&checkout("abc", clean), &sections, Duration::from_secs(11));
        let written = record(true);
        assert_eq!((&written["seconds"], &written["passed"]), (&json!(11), &json!(2)));
        assert_eq!(written["flaky"], json!(["host: b::m::f"]));
        assert_eq!(written["steps"][0], json!({ "title": "build", "seconds": 3 }));
        assert_eq!(judge(&written, &checkout("abc", true)).unwrap(), "abc: 2 passed, 0 skipped in 11 s");
        for (record, now, why) in [
            (&written, checkout("def", true), "passed at abc"),
            (&written, checkout("abc", false), "the tree has changes"),
            (&record(false), checkout("abc", true), "passed in a tree with changes"),
            (&json!({}), checkout("abc", true), "passed at "),
        ] {
            let error = judge(record, &now).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_record_is_a_file_of_the_tree() {
        let root = std::env::temp_dir().join(format!("tracer-gate-{}", std::process::id()));
        std::fs::create_dir_all(root.join("target")).unwrap();
        forget(&root).unwrap();
        assert!(was_green(&root).unwrap_err().to_string().contains("no run"));
        assert!(Checkout::of(&root).is_err(), "no repository");
        let git = |arguments: &[&str]| host::output(host::git(&root).args(arguments)).unwrap();
        git(&["init", "-q"]);
        std::fs::write(root.join(".gitignore"), "/target\n").unwrap();
        git(&["add", "."]);
        git(&["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "x"]);
        let checkout = Checkout::of(&root).unwrap();
        write(&root, &checkout, &[], Duration::from_secs(1)).unwrap();
        assert!(was_green(&root).is_ok());
        std::fs::write(root.join("new"), "").unwrap();
        assert!(was_green(&root).unwrap_err().to_string().contains("the tree has changes"));
        forget(&root).unwrap();
        assert!(was_green(&root).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
