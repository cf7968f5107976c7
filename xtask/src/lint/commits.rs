//! The subjects of the last commits: `area: imperative`, at most 72 characters (`.gitmessage`, CONTRIBUTING.md).
//!
//! A shallow clone has fewer commits. In a tree without history the check is skipped with its reason.

use std::path::Path;

use anyhow::{Result, bail};

use crate::host;

/// Maximum number of characters of a subject.
const LONGEST: usize = 72;
/// Number of commits that are checked.
const LAST: u32 = 50;

/// The error of a subject, if any.
fn wrong(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LONGEST {
        return Some(format!("{length} characters, {LONGEST} at most"));
    }
    let is_of_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-,./ ".contains(c);
    let Some((area, what)) = subject.split_once(": ") else {
        return Some("no `area: ` in front".to_owned());
    };
    if !area.starts_with(|c: char| c.is_ascii_lowercase()) || !area.chars().all(is_of_area) {
        return Some(format!("`{area}` is not an area, such as `fs` or `xtask`"));
    }
    if what.trim() != what || what.is_empty() || what.ends_with('.') {
        return Some("what the commit does follows the area, without a full stop".to_owned());
    }
    None
}

/// Checks the last commits of the repository at `root`; returns the reason if there is no history.
pub(super) fn check(root: &Path) -> Result<Option<String>> {
    let count = format!("--max-count={LAST}");
    // In a tree that was unpacked inside another repository, git reports the path from that repository's root.
    let prefix = host::output(host::git(root).args(["rev-parse", "--show-prefix"]));
    if prefix.is_ok_and(|prefix| !prefix.trim().is_empty()) {
        return Ok(Some("no git repository: the one around the tree is another".to_owned()));
    }
    let log = match host::output(host::git(root).args(["log", "--no-merges", &count, "--format=%h %s"])) {
        Ok(log) => log,
        Err(error) => return Ok(Some(format!("no git repository: {error:#}"))),
    };
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let found: Vec<String> = commits
        .filter_map(|(commit, subject)| Some(format!("{commit} {subject:?}: {}", wrong(subject)?)))
        .collect();
    if found.is_empty() {
        return Ok(None);
    }
    for line in &found {
        eprintln!("{line}");
    }
    bail!("{} subjects of commits", found.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_an_area_and_fit_a_line() {
        let longest = format!("fs: {}", "x".repeat(LONGEST - 4));
        for fine in [
            "fs: close files at the end",
            "lang, event: cut `a: b` by parts",
            "tests/fuzz: add a target",
            &longest,
        ] {
            assert_eq!(wrong(fine), None, "{fine}");
        }
        let longer = format!("{longest}x");
        for bad in [
            "",
            "close files",
            "fs:close",
            "fs: ",
            "fs:  two spaces",
            "Fs: close",
            "fixup! fs: close",
            "fs: close it.",
            &longer,
        ] {
            assert!(wrong(bad).is_some(), "{bad}");
        }
        // Characters are counted, not bytes.
        assert_eq!(wrong(&format!("fs: {}", "ä".repeat(LONGEST - 4))), None);
    }

    #[test]
    fn the_template_agrees_with_the_check() {
        let template = std::fs::read_to_string(host::root().join(".gitmessage")).unwrap();
        assert!(
            template.lines().all(|line| line.is_empty() || line.starts_with('#')),
            "it is no message itself"
        );
        assert!(template.contains(&format!("{LONGEST} characters")), "{template}");
    }

    #[test]
    fn a_tree_without_history_is_a_skip() {
        let place = std::env::temp_dir().join(format!("xtask-commits-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        assert!(check(&place).unwrap().is_some_and(|why| why.starts_with("no git repository")));
        let git = |arguments: &[&str]| host::output(host::git(&place).args(arguments)).unwrap();
        git(&["init", "-q"]);
        let commit = |subject: &str| {
            let who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"];
            git(&[&who[..], &["commit", "-q", "--no-verify", "--allow-empty", "-m", subject]].concat());
        };
        assert!(check(&place).unwrap().is_some(), "no commit yet");
        commit("fs: begin");
        assert_eq!(check(&place).unwrap(), None);
        commit("Begin again");
        assert_eq!(check(&place).unwrap_err().to_string(), "1 subjects of commits");
        std::fs::remove_dir_all(place).unwrap();
    }
}
