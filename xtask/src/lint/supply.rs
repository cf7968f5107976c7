//! Checks the dependencies: `cargo deny` with `deny.toml`, for each lock file of the tree.
//!
//! Licences, duplicates and sources are checked from the locks alone. Advisories need RustSec's database. `--online`
//! fetches it, or `TRACER_ADVISORY_DB` names a clone of it. Without both, the check is reported as skipped with its
//! reason, never as passed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::host;

/// Packages with their own lock files; the first is the workspace.
const LOCKED: [&str; 4] = [".", "tracer-ebpf", "tests/fuzz", "tests/emitter"];
/// Address of the database, as in `deny.toml`.
const DATABASE: &str = "https://github.com/rustsec/advisory-db";
/// Environment variable with the path of a clone.
const CLONE: &str = "TRACER_ADVISORY_DB";
/// Warnings that are allowed: `deny.toml` has the exceptions of all packages together, so each package uses only some
/// of them.
const UNUSED: [&str; 8] = [
    "-A",
    "license-not-encountered",
    "-A",
    "license-exception-not-encountered",
    "-A",
    "unmatched-skip",
    "-A",
    "advisory-not-detected",
];

/// Part of the message that `cargo-deny` prints when the database is unavailable.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// The result of the advisories check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advisories {
    /// No advisory concerns a locked dependency.
    None,
    /// Unknown, with the reason.
    Unknown(String),
}

fn deny(root: &Path, package: &str) -> Command {
    let mut deny = host::cargo();
    deny.arg("deny").arg("--manifest-path").arg(root.join(package).join("Cargo.toml"));
    deny.arg("--config").arg(root.join("deny.toml"));
    deny
}

/// Checks licences, duplicates and sources.
pub(super) fn licences(root: &Path) -> Result<()> {
    for package in LOCKED {
        let mut deny = deny(root, package);
        host::run(deny.arg("check").args(UNUSED).args(["licenses", "bans", "sources"]))
            .with_context(|| format!("the dependencies of {package}"))?;
    }
    Ok(())
}

/// Checks advisories and yanked versions. The database is fetched only if `online`, or from a clone.
pub(super) fn advisories(root: &Path, online: bool) -> Result<Advisories> {
    if !online && std::env::var_os(CLONE).is_none() {
        return Ok(Advisories::Unknown(format!(
            "no advisory database: --online fetches it, {CLONE} names a clone"
        )));
    }
    for package in LOCKED {
        let mut deny = deny(root, package);
        if let Some(clone) = std::env::var_os(CLONE) {
            // git itself substitutes the clone for the address.
            let base =
                Path::new(&clone).canonicalize().with_context(|| format!("{CLONE}={}", clone.display()))?;
            deny.env("GIT_CONFIG_COUNT", "1")
                .env("GIT_CONFIG_KEY_0", format!("url.{}.insteadOf", base.display()))
                .env("GIT_CONFIG_VALUE_0", DATABASE);
        }
        let output = deny.arg("check").args(UNUSED).arg("advisories").output().context("cargo deny")?;
        let said = String::from_utf8_lossy(&output.stderr);
        eprint!("{said}");
        if output.status.success() {
            continue;
        }
        match unreachable(&said) {
            Some(why) => return Ok(Advisories::Unknown(why)),
            None => bail!("the dependencies of {package}"),
        }
    }
    Ok(Advisories::None)
}

/// The reason why the database is unavailable, if the output contains one.
fn unreachable(said: &str) -> Option<String> {
    let line = said.lines().find(|line| line.contains(UNREACHABLE))?;
    let cause = said.lines().rev().find_map(|line| line.strip_prefix("fatal: ")).unwrap_or(line);
    Some(format!("no advisory database ({CLONE} can name a clone of {DATABASE}): {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unreachable_database_makes_the_answer_unknown() {
        let said = "2026-11-23 [ERROR] failed to fetch advisory database https://x with cli: failed to clone: []\n\
                    Cloning into '/x'...\nfatal: unable to access 'https://x/': Could not resolve host: x\n";
        let why = unreachable(said).unwrap();
        assert!(why.ends_with("Could not resolve host: x") && why.contains(CLONE), "{why}");
        for other in ["error[vulnerability]: x\n", "", "fatal: unable to access"] {
            assert_eq!(unreachable(other), None);
        }
    }

    #[test]
    fn every_package_has_its_lock_and_every_exception_a_reason() {
        for package in LOCKED {
            assert!(host::root().join(package).join("Cargo.toml").is_file(), "{package}");
        }
        let config = std::fs::read_to_string(host::root().join("deny.toml")).unwrap();
        assert!(config.contains(DATABASE));
        let mut reason = false;
        for line in config.lines().map(str::trim) {
            if line.starts_with('#') {
                reason = true;
            } else if line.starts_with("{ crate") || line.starts_with('"') {
                assert!(reason, "no reason for {line}");
            } else {
                reason = reason && line.ends_with('[');
            }
        }
    }

    fn text(path: &str) -> String {
        std::fs::read_to_string(host::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The lines of a section of a TOML file, up to the next one.
    fn section<'a>(toml: &'a str, name: &str) -> Vec<&'a str> {
        let lines = toml.lines().map(str::trim).skip_while(|line| *line != name).skip(1);
        lines.take_while(|line| !line.starts_with('[')).collect()
    }

    #[test]
    fn overflow_checks_are_on_in_release_builds() {
        let manifest = text("Cargo.toml");
        let release = section(&manifest, "[profile.release]");
        assert!(release.contains(&"overflow-checks = true"), "{release:?}");
        // A profile of a package or of a packaging build could override the setting.
        let set: Vec<&str> = manifest.lines().filter(|line| line.contains("overflow-checks")).collect();
        assert_eq!(set, ["overflow-checks = true"]);
        assert!(!manifest.contains("[profile.release."), "a package has a profile of its own");
        assert_eq!(section("[a]\nx = 1\n[b]\ny = 2\n", "[a]"), ["x = 1"]);
    }

    #[test]
    fn required_licence_texts_are_present() {
        assert!(text("SECURITY.md").contains("## Reporting"));
        let notice = text("THIRD-PARTY.md");
        let allowed = text("deny.toml");
        let lock = text("Cargo.lock");
        for package in ["btf-rs", "btf-rs-derive"] {
            assert!(lock.contains(&format!("name = \"{package}\"")), "{package} is not used any more");
            assert!(notice.contains(&format!("`{package}`")), "{package} is not named");
            let exception = format!("{{ crate = \"{package}\", allow = [\"LGPL-2.1-or-later\"] }}");
            assert!(allowed.contains(&exception), "{exception}");
        }
        assert!(notice.contains("## btf-rs (LGPL-2.1-or-later)") && notice.contains("LICENSES/LGPL-2.1.txt"));
        let licence = text("LICENSES/LGPL-2.1.txt");
        assert!(licence.contains("GNU LESSER GENERAL PUBLIC LICENSE") && licence.contains("Version 2.1"));
        // The program's help names the licence, for users without the source. Both licences of the project are in the
        // tree.
        assert!(text("tracer-user/src/cli/args.rs").contains("LICENSES/LGPL-2.1.txt"));
        assert!(
            text("LICENSE-MIT").contains("MIT License")
                || text("LICENSE-MIT").contains("Permission is hereby")
        );
        assert!(text("LICENSE-APACHE").contains("Apache License"));
    }
}
