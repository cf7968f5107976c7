//! `cargo xtask lint`: formatting, clippy, the direction of imports, the shape of files, their structure,
//! spelling, dependencies and the unit file.
//!
//! The fast checks come first. `--all` adds the checks whose tools are compiled here, and only `--online` asks another
//! host than a package registry. The verb runs all checks even if one fails, so that one run shows all findings. A test
//! run ends after the first failure.

mod book;
mod commits;
mod files;
mod finding;
mod imports;
mod links;
mod paths;
mod rust_version;
mod scan;
mod shape;
mod structure;
mod supply;
mod unit;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use self::finding::Finding;
use crate::setup::{self, Group};
use crate::{ebpf, host};

/// The checks that need no compiler.
fn text_checks(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in files::with_extension(root, "rs")? {
        let text = std::fs::read_to_string(root.join(&file))
            .with_context(|| format!("cannot read {}", file.display()))?;
        findings.extend(shape::check(&file, &text));
        findings.extend(paths::check(&file, &text));
        if let Ok(inside) = file.strip_prefix("tracer-user/src") {
            findings.extend(imports::check(&file, inside, &text));
        }
    }
    Ok(findings)
}

/// Prints the findings and returns an error if there are any.
fn none_of(findings: &[Finding]) -> Result<()> {
    for finding in findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() { Ok(()) } else { bail!("{} findings", findings.len()) }
}

/// The result of one check.
pub(crate) struct Checked {
    /// The name of the check.
    pub(crate) what: String,
    /// The failure in one line. The check has already printed the details.
    pub(crate) wrong: Option<String>,
    /// Why the check could not run.
    pub(crate) skipped: Option<String>,
    /// Its duration.
    pub(crate) time: Duration,
}

/// The checks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Checks of texts, which take seconds.
    Text,
    /// Clippy of the workspace. A test run gets its findings from the build of the tests.
    Clippy,
    /// Checks that compile the library as its users see it.
    Library,
    /// Checks with tools that are compiled here; with `online`, advisories are fetched from another host.
    Audit { online: bool },
}

impl Kind {
    /// The setup group that the checks need beside [`Group::Build`].
    pub(crate) fn group(self) -> Group {
        match self {
            Self::Text | Self::Clippy | Self::Library => Group::Lint,
            Self::Audit { .. } => Group::Audit,
        }
    }

    /// Runs its checks.
    fn run(self, checks: &mut Checks) {
        let root = host::root();
        match self {
            Self::Text => text(checks, root),
            Self::Clippy => clippy(checks),
            Self::Library => library(checks),
            Self::Audit { online } => audit(checks, root, online),
        }
    }
}

/// Runs checks one after the other and collects their results.
#[derive(Default)]
struct Checks {
    /// Words that select checks: a name must contain one of them. Empty for all checks.
    only: Vec<String>,
    /// Whether the first failure ends the run.
    stops: bool,
    done: Vec<Checked>,
}

impl Checks {
    fn is_wanted(&self, what: &str) -> bool {
        let name = what.to_lowercase();
        let has_failed = || self.done.iter().any(|check| check.wrong.is_some());
        (self.only.is_empty() || self.only.iter().any(|word| name.contains(&word.to_lowercase())))
            && !(self.stops && has_failed())
    }

    fn check(&mut self, what: &str, run: impl FnOnce() -> Result<()>) {
        self.check_or_skip(what, || run().map(|()| None));
    }

    /// Runs a check that may return a reason why it was skipped.
    fn check_or_skip(&mut self, what: &str, run: impl FnOnce() -> Result<Option<String>>) {
        if !self.is_wanted(what) {
            return;
        }
        host::step(what);
        let start = Instant::now();
        let (wrong, skipped) = match run() {
            Ok(skipped) => (None, skipped),
            Err(error) => (Some(format!("{error:#}")), None),
        };
        if let Some(text) = wrong.as_ref().or(skipped.as_ref()) {
            eprintln!("{text}");
        }
        self.done.push(Checked { what: what.to_owned(), wrong, skipped, time: start.elapsed() });
    }
}

/// Checks that need no compiler.
fn text(checks: &mut Checks, root: &Path) {
    checks.check("Imports and files", || none_of(&text_checks(root)?));
    checks.check("Structure", || none_of(&structure::check(root, &files::with_extension(root, "rs")?)?));
    checks.check("Digests of eBPF sources", || ebpf::compare_digests(root));
    checks.check("Links between pages", || none_of(&links::check(root)?));
    checks.check("Pages of the book", || none_of(&book::unlisted(root)?));
    checks.check("Spelling", || {
        host::run(Command::new("codespell").current_dir(root))
            .context("correct the words, or add those that are right to .codespell-words")
    });
    checks.check_or_skip("Subjects of commits", || commits::check(root));
    checks.check("Unit file", || unit::check(root));
    checks.check("Rust version of dependencies", rust_version::dependencies);
    checks.check("Formatting", || host::run(host::cargo().args(["fmt", "--all", "--check"])));
    for apart in ["tracer-ebpf", "tests/emitter", "tests/fuzz"] {
        let manifest = root.join(apart).join("Cargo.toml");
        checks.check(&format!("Formatting {apart}"), || {
            host::run(host::cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest))
        });
    }
}

/// Arguments of clippy after which a warning is an error.
const STRICT: [&str; 3] = ["--", "-D", "warnings"];

/// Clippy of all targets.
fn clippy(checks: &mut Checks) {
    checks.check("Clippy", || {
        let mut clippy = host::cargo();
        host::run(clippy.args(["clippy", "--workspace", "--all-targets", "--keep-going"]).args(STRICT))
    });
}

/// Clippy's compiler, which takes the arguments of rustc and belongs to the same toolchain; `None` if it is not
/// installed.
pub(crate) fn clippy_driver() -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot =
        host::output(Command::new(rustc).current_dir(host::root()).args(["--print", "sysroot"])).ok()?;
    let beside = Path::new(sysroot.trim()).join("bin/clippy-driver");
    Some(beside).filter(|driver| host::is_executable(driver))
}

/// Checks of the library without the workspace's tests.
fn library(checks: &mut Checks) {
    // The workspace's tests enable the feature `internals`. It makes items public and thus hides that they are
    // unused.
    checks.check("Clippy without internals", || {
        let mut clippy = host::cargo();
        host::run(clippy.args(["clippy", "-p", "tracer-user", "--bins", "--examples"]).args(STRICT))
    });
    checks.check("API documentation", || {
        let mut doc = host::cargo();
        host::run(doc.args(["doc", "-p", "tracer-user", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
    });
}

/// Checks of dependencies and of the book.
fn audit(checks: &mut Checks, root: &Path, online: bool) {
    checks.check("Book", || book::build(root));
    checks.check("Licences, duplicates and sources of dependencies", || supply::licences(root));
    checks.check_or_skip("Advisories about dependencies", || {
        Ok(match supply::advisories(root, online)? {
            supply::Advisories::None => None,
            supply::Advisories::Unknown(why) => Some(why),
        })
    });
    checks.check_or_skip("Compiling with the oldest Rust", || rust_version::compile(root));
}

/// Runs the checks of these kinds until the first failure.
pub(crate) fn until_failure(kinds: &[Kind]) -> Vec<Checked> {
    let mut checks = Checks { stops: true, ..Checks::default() };
    for kind in kinds {
        kind.run(&mut checks);
    }
    checks.done
}

/// Options of `cargo xtask lint`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Check the book, and licences, duplicates and sources of dependencies too
    #[arg(long)]
    all: bool,
    /// With --all: fetch advisories about dependencies from github.com
    #[arg(long, requires = "all")]
    online: bool,
    /// Run only the checks whose names contain one of these words, such as `structure`
    only: Vec<String>,
}

/// Runs the verb `lint`.
pub(crate) fn verb(options: &Options) -> Result<()> {
    let mut kinds = vec![Kind::Text, Kind::Clippy, Kind::Library];
    kinds.extend(options.all.then_some(Kind::Audit { online: options.online }));
    let groups: Vec<Group> = kinds.iter().map(|kind| kind.group()).collect();
    setup::ensure(&[&[Group::Build], &groups[..]].concat())?;
    let mut checks = Checks { only: options.only.clone(), ..Checks::default() };
    for kind in kinds {
        kind.run(&mut checks);
    }
    let checks = checks.done;
    if checks.is_empty() {
        bail!("no check has one of these words in its name: {}", options.only.join(", "));
    }
    let failed: Vec<&str> =
        checks.iter().filter(|check| check.wrong.is_some()).map(|check| &*check.what).collect();
    if !failed.is_empty() {
        bail!("lint: {}", failed.join(", "));
    }
    for check in &checks {
        if let Some(why) = &check.skipped {
            eprintln!("Skipped: {}: {why}", check.what);
        }
    }
    eprintln!("Lint is clean.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_fails_is_remembered_and_the_next_one_runs() {
        let mut checks = Checks::default();
        checks.check("one", || bail!("no"));
        checks.check("two", || Ok(()));
        checks.check_or_skip("three", || Ok(Some("why".to_owned())));
        let came_to: Vec<_> =
            checks.done.iter().map(|c| (&*c.what, c.wrong.as_deref(), c.skipped.as_deref())).collect();
        assert_eq!(came_to, [("one", Some("no"), None), ("two", None, None), ("three", None, Some("why"))]);
    }

    #[test]
    fn a_word_selects_checks() {
        let mut checks = Checks { only: vec!["struct".to_owned()], ..Checks::default() };
        checks.check("Structure", || Ok(()));
        checks.check("Spelling", || bail!("it must not run"));
        assert_eq!(checks.done.len(), 1);
    }

    #[test]
    fn a_failure_can_end_the_run() {
        let mut checks = Checks { stops: true, ..Checks::default() };
        checks.check("one", || Ok(()));
        checks.check("two", || bail!("no"));
        checks.check("three", || Ok(()));
        assert_eq!(checks.done.iter().map(|check| &*check.what).collect::<Vec<_>>(), ["one", "two"]);
    }
}
