//! Whether a test may be skipped: it names the features that it lacks, and they are absent where it ran.
//!
//! A skipped test prints `skipped: FEATURE: WHY`, or several features with `+` between them, of which one would
//! suffice. A feature is one that `tracer doctor --json` reports on that machine, or one of the environment
//! ([`Features::environment`]). A skip fails the run if the feature is there, or if doctor cannot tell.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::libtest::{Ended, Verdict};
use crate::{host, sources};

/// The features of a machine.
#[derive(Debug, Default)]
pub(super) struct Features {
    /// The answers of `tracer doctor` by the features' names: `yes`, `no` or `unknown`.
    doctor: BTreeMap<String, String>,
    /// Whether it is a virtual machine, whose environment is known.
    is_guest: bool,
}

impl Features {
    /// The features of this machine, for root or for this user.
    pub(super) fn here(tracer: &Path, as_root: bool) -> Result<Self> {
        let mut doctor = if as_root { host::as_root(tracer)? } else { Command::new(tracer) };
        let text = host::output(doctor.args(["doctor", "--json"])).context("the features of this machine")?;
        let mut features = Self::default();
        text.lines().for_each(|line| features.add(line));
        Ok(features)
    }

    /// A guest without features.
    pub(super) fn of_guest() -> Self {
        Self { is_guest: true, ..Self::default() }
    }

    /// Adds a line of `tracer doctor --json`; ignores other lines.
    pub(super) fn add(&mut self, line: &str) {
        let Ok(value) = serde_json::from_str::<Value>(line) else { return };
        if let (Some(name), Some(answer)) = (value["name"].as_str(), value["answer"].as_str()) {
            self.doctor.insert(name.to_owned(), answer.to_owned());
        }
    }

    /// Whether a feature of the environment is there; `None` for an unknown name. Guests have all of them but a
    /// compiler. Versions of a guest's kernel are not known.
    fn environment(&self, name: &str) -> Option<bool> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        Some(match name {
            // For the kernel's own programs.
            "compiler" => !self.is_guest && host::which("cc").is_some(),
            "bpftool" | "setarch" | "trace-cmd" => self.is_guest || host::which(name).is_some(),
            // Other tracers can have stopped the names of tasks until the next boot (`record-cmd` in instances).
            "task_names" => self.is_guest,
            _ if name.starts_with("module-") => self.is_guest || can_load(release, &name["module-".len()..]),
            _ if name.starts_with("sources-") => {
                !self.is_guest && sources::is_available(&name["sources-".len()..])
            }
            _ if self.is_guest => return None,
            _ => is_at_least(release, name.strip_prefix("linux-")?)?,
        })
    }

    /// Why a skip for a feature is wrong; `None` if the feature is absent.
    fn refusal(&self, name: &str) -> Option<String> {
        let there = |is_there: bool| if is_there { "yes" } else { "no" };
        match self.doctor.get(name).map(String::as_str).or_else(|| self.environment(name).map(there)) {
            Some("no") => None,
            Some("yes") => Some(format!("`{name}`, which is there")),
            Some(_) => Some(format!("`{name}`, of which `tracer doctor` cannot tell whether it is there")),
            None => Some(format!("`{name}`, which is no feature of this machine")),
        }
    }

    /// Makes a skipped test failed if a feature that it names is there, or unknown.
    pub(super) fn judge(&self, tests: &mut [Ended]) {
        for test in tests {
            let Verdict::Skipped(reason) = &test.verdict else { continue };
            let names = reason.split_once(": ").map_or(reason.as_str(), |(names, _)| names);
            if let Some(wrong) = names.split('+').find_map(|name| self.refusal(name)) {
                test.verdict =
                    Verdict::Failed(format!("skipped for {wrong} (xtask/src/test/skips.rs): {reason}"));
            }
        }
    }
}

/// Whether a kernel has a module that is not loaded.
fn can_load(release: &str, module: &str) -> bool {
    let list = Path::new("/lib/modules").join(release).join("modules.dep");
    let is_there = std::fs::read_to_string(list).is_ok_and(|text| text.contains(&format!("/{module}.ko")));
    is_there && !Path::new("/sys/module").join(module).exists()
}

/// Whether a kernel's release is at least a version such as 6.11; `None` if that is no version.
fn is_at_least(release: &str, version: &str) -> Option<bool> {
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.split(['.', '-', '+']);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    Some(numbers(release)? >= numbers(version)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_skip_needs_an_absent_feature() {
        let mut features = Features::of_guest();
        for line in [
            r#"{"answer":"yes","detail":null,"group":"BPF","name":"bpf","why":""}"#,
            r#"{"answer":"no","name":"own_hist","why":"not built"}"#,
            r#"{"answer":"no","name":"kprobe_multi","why":"not built"}"#,
            r#"{"answer":"unknown","name":"fentry_attach","why":"refused"}"#,
            "no json",
            r#"{"other":1}"#,
        ] {
            features.add(line);
        }
        let judged = |features: &Features, reason: &str| {
            let verdict = Verdict::Skipped(reason.to_owned());
            let mut test = [Ended { binary: "b".into(), name: "t".into(), verdict, time: Duration::ZERO }];
            features.judge(&mut test);
            match &test[0].verdict {
                Verdict::Skipped(kept) => {
                    assert_eq!(kept, reason);
                    None
                }
                Verdict::Failed(why) => Some(why.clone()),
                other => panic!("{other:?}"),
            }
        };
        for fine in ["own_hist: no histograms", "own_hist+kprobe_multi: nothing", "compiler: no cc"] {
            assert_eq!(judged(&features, fine), None, "{fine}");
        }
        for (reason, wrong) in [
            ("bpf: why", "`bpf`, which is there"),
            ("own_hist+bpf: why", "`bpf`, which is there"),
            ("own_hist+fentry_attach: why", "`fentry_attach`, of which `tracer doctor` cannot tell"),
            ("linux-999.0: why", "`linux-999.0`, which is no feature"),
            ("task_names: why", "`task_names`, which is there"),
            ("no histograms", "`no histograms`, which is no feature"),
            ("", "``, which is no feature"),
            ("linux-6: why", "`linux-6`, which is no feature"),
        ] {
            let why = judged(&features, reason).unwrap_or_else(|| panic!("{reason}"));
            assert!(why.contains(wrong) && why.ends_with(reason), "{why}");
        }
        let here = Features::default();
        assert_eq!(judged(&here, "task_names: other tracers"), None);
        assert_eq!(here.environment("compiler"), Some(host::which("cc").is_some()));
        assert_eq!(here.environment("linux-2.6"), Some(true));
        assert_eq!(judged(&here, "linux-999.0: why"), None);
    }

    #[test]
    fn versions_are_compared_by_numbers() {
        assert_eq!(is_at_least("6.12.1-cloud", "6.9"), Some(true));
        assert_eq!(is_at_least("6.1.0-56-cloud", "6.11"), Some(false));
        assert_eq!(is_at_least("6.11-rc1", "6.11"), Some(true));
        assert_eq!(is_at_least("6.11", "six"), None);
    }
}
