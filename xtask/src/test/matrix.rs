//! The units of a run of everything, and their kept results.
//!
//! A unit is a module of the integration tests on one machine, a directory of the kernel's suite, all unit tests, a part
//! of the lint, or README's commands in a bare system. `cargo xtask test --all` keeps the result of each unit in which nothing failed or was flaky, outside
//! the checkout, by commit. A run after an interruption therefore runs only the rest, and `--part K/N` runs a share.
//! Nothing is kept or used in a tree with changes. Results are kept by the release of the machine's kernel too.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::gate::Checkout;
use super::libtest::{Ended, Verdict};
use super::options::{SUITES, Target, parse_target};
use super::scope::Scope;
use super::selection::Groups;
use crate::{conformance, fresh, host, vm};

/// The place of units that run on this machine.
pub(super) const HERE: &str = "host";
/// Prefix of the places of the directories of the kernels' suites.
const SUITE: &str = "suite-";
/// The place of the bare systems.
pub(super) const FRESH: &str = "fresh";
/// The units of [`HERE`] beside the modules.
pub(super) const TEXTS: &str = "lint of texts";
pub(super) const LIBRARY: &str = "lint of the library";
pub(super) const AUDIT: &str = "audit";
pub(super) const OBJECTS: &str = "eBPF objects";
pub(super) const UNIT_TESTS: &str = "unit tests";
/// All of these.
pub(super) const OTHER_UNITS: [&str; 5] = [TEXTS, UNIT_TESTS, LIBRARY, AUDIT, OBJECTS];
/// Directory of the results in the cache.
const RESULTS: &str = "results";
/// Number of commits whose results are kept.
const COMMITS: usize = 20;

/// A share of the units: the `number`th of `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    number: usize,
    of: usize,
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (number, of): (usize, usize) = numbers.ok_or_else(|| anyhow!("a share is K/N, such as 1/3"))?;
        ensure!(1 <= number && number <= of, "there is no share {number} of {of}");
        Ok(Self { number, of })
    }
}

/// A unit: its place, and its name there.
type Unit = (String, String);

/// The place of the directories of a kernel's suite.
pub(super) fn suite(version: &str) -> String {
    format!("{SUITE}{version}")
}

/// The units of a run of everything, in a fixed order.
fn units(groups: &Groups, targets: &[Target]) -> Vec<Unit> {
    let here = [TEXTS, UNIT_TESTS].map(str::to_owned);
    let modules = groups.with_tests(host::root());
    let mut units: Vec<Unit> =
        here.into_iter().chain(modules.iter().cloned()).map(|name| (HERE.to_owned(), name)).collect();
    for target in targets {
        let of_kernel = modules.iter().filter(|module| Scope::Whole.has_module(module));
        units.extend(of_kernel.map(|module| (target.name(), module.clone())));
    }
    for version in SUITES {
        units.extend(conformance::directories().map(|name| (suite(version), name.to_owned())));
    }
    units.extend([LIBRARY, AUDIT, OBJECTS].map(|name| (HERE.to_owned(), name.to_owned())));
    units.extend(fresh::systems().map(|system| (FRESH.to_owned(), system.to_string())));
    units
}

/// The units that a run executes, and the kept results of the others.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The units of this run; `None` if it is not a run of everything, so that other options select.
    units: Option<Vec<Unit>>,
    kept: Option<Kept>,
    /// The checkout at the begin of the run.
    checkout: Option<Checkout>,
}

impl Plan {
    /// The plan of a run of everything, or of a share of it.
    pub(super) fn of_all(
        groups: &Groups,
        targets: &[Target],
        share: Option<Share>,
        checkout: Option<&Checkout>,
    ) -> Result<Self> {
        let mut units = units(groups, targets);
        if let Some(Share { number, of }) = share {
            units = units.into_iter().skip(number - 1).step_by(of).collect();
        }
        let kept = match checkout.and_then(Checkout::commit_if_clean) {
            None => {
                eprintln!("warning: the tree has changes or no commit: no result is kept, and none is used");
                None
            }
            Some(commit) => Some(Kept::of(vm::cache_dir()?.join(RESULTS), commit)),
        };
        Ok(Self { units: Some(units), kept, checkout: checkout.cloned() })
    }

    /// The numbers of all units and of those without a kept result.
    pub(super) fn counts(&self) -> (usize, usize) {
        let units = self.units.as_deref().unwrap_or_default();
        (units.len(), units.iter().filter(|(place, name)| self.kept(place, name).is_none()).count())
    }

    /// Whether a unit runs: it belongs to the run and has no kept result.
    pub(super) fn wants(&self, place: &str, name: &str) -> bool {
        self.has(place, name) && self.kept(place, name).is_none()
    }

    /// Whether a unit belongs to the run.
    fn has(&self, place: &str, name: &str) -> bool {
        self.units.as_ref().is_none_or(|units| units.iter().any(|(p, n)| p == place && n == name))
    }

    /// The kept results of a unit.
    fn kept(&self, place: &str, name: &str) -> Option<Vec<Ended>> {
        self.kept.as_ref()?.get(place, name)
    }

    /// The kept results of the units of this run at a place that `is_wanted` selects by name.
    pub(super) fn kept_of(&self, place: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Ended> {
        let units = self.units.iter().flatten().filter(|(p, name)| p == place && is_wanted(name));
        units.filter_map(|(place, name)| self.kept(place, name)).flatten().collect()
    }

    /// Keeps the results of a unit, unless one of them failed or was flaky, or the tree changed since the run began.
    pub(super) fn keep(&self, place: &str, name: &str, tests: &[Ended]) {
        let is_good = |test: &Ended| matches!(test.verdict, Verdict::Passed | Verdict::Skipped(_));
        let Some(kept) = self.kept.as_ref().filter(|_| !tests.is_empty() && tests.iter().all(is_good)) else {
            return;
        };
        let is_same = self.checkout.as_ref().is_none_or(Checkout::is_unchanged);
        let put = if is_same { kept.put(place, name, tests) } else { Err(anyhow!("the tree has changed")) };
        if let Err(error) = put {
            eprintln!("warning: the results of {name} on {place} are not kept: {error:#}");
        }
    }
}

/// The release of a place's kernel; `None` if it is not known, or not fetched yet.
fn release(place: &str) -> Option<String> {
    if [HERE, FRESH].contains(&place) {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        return Some(release.trim().to_owned());
    }
    let target = parse_target(place.strip_prefix(SUITE).unwrap_or(place)).ok()?;
    vm::cached_kernel(&target.version, target.arch).ok()?
}

/// The kept results of a commit: one file for each unit.
#[derive(Debug)]
struct Kept {
    /// The directory of all commits.
    results: PathBuf,
    commit: String,
}

impl Kept {
    /// The results of a commit, below `results`.
    fn of(results: PathBuf, commit: &str) -> Self {
        Self { results, commit: commit.to_owned() }
    }

    /// Removes the results of old commits.
    fn sweep(&self) -> Result<()> {
        let mut others: Vec<_> = std::fs::read_dir(&self.results)?
            .flatten()
            .filter(|entry| *entry.file_name() != *self.commit)
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        others.sort();
        for (_, old) in others.iter().rev().skip(COMMITS - 1) {
            std::fs::remove_dir_all(old)?;
        }
        Ok(())
    }

    fn file(&self, place: &str, name: &str) -> PathBuf {
        let place = release(place).map_or(place.to_owned(), |release| format!("{place}-{release}"));
        self.results.join(&self.commit).join(place).join(format!("{}.json", name.replace('/', "+")))
    }

    fn get(&self, place: &str, name: &str) -> Option<Vec<Ended>> {
        let text = std::fs::read(self.file(place, name)).ok()?;
        let tests: Value = serde_json::from_slice(&text).ok()?;
        tests.as_array()?.iter().map(from_json).collect()
    }

    fn put(&self, place: &str, name: &str, tests: &[Ended]) -> Result<()> {
        let file = self.file(place, name);
        std::fs::create_dir_all(file.parent().context("a directory")?)?;
        let text = Value::Array(tests.iter().map(to_json).collect()).to_string();
        // A run that is killed leaves no partial file.
        let aside = file.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&aside, text)?;
        std::fs::rename(&aside, &file)?;
        self.sweep()
    }
}

fn to_json(test: &Ended) -> Value {
    let (verdict, why) = match &test.verdict {
        Verdict::Passed => ("passed", ""),
        Verdict::Failed(why) => ("failed", why.as_str()),
        Verdict::Skipped(why) => ("skipped", why.as_str()),
        Verdict::Flaky(why) => ("flaky", why.as_str()),
    };
    let ms = test.time.as_millis() as u64;
    json!({ "binary": test.binary, "name": test.name, "verdict": verdict, "why": why, "ms": ms })
}

fn from_json(value: &Value) -> Option<Ended> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let verdict = match value["verdict"].as_str()? {
        "passed" => Verdict::Passed,
        "skipped" => Verdict::Skipped(text("why")?),
        _ => return None,
    };
    let time = Duration::from_millis(value["ms"].as_u64()?);
    Some(Ended { binary: text("binary")?, name: text("name")?, verdict, time })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::options::machines;

    fn test(name: &str, verdict: Verdict) -> Ended {
        Ended { binary: "b".into(), name: name.into(), verdict, time: Duration::from_millis(1500) }
    }

    #[test]
    fn shares_together_are_all_units() {
        let groups = Groups::read(host::root()).unwrap();
        let targets = machines().unwrap();
        let all = units(&groups, &targets);
        let plan = |share: &str| {
            let share = Some(share.parse().unwrap());
            Plan::of_all(&groups, &targets, share, None).unwrap().units.unwrap()
        };
        let mut shares: Vec<Unit> = (1..=3).flat_map(|number| plan(&format!("{number}/3"))).collect();
        assert_eq!(shares.len(), all.len());
        shares.sort();
        shares.dedup();
        assert_eq!(shares.len(), all.len());
        for (place, name) in [
            (HERE, "trust::deadlines"),
            (HERE, "record::render_frozen"),
            ("6.12-aarch64", "probes::kernel"),
            ("6.1-x86_64", "probes::kernel"),
            ("suite-6.12", "trigger/inter-event"),
            (FRESH, "trixie-user"),
        ] {
            assert!(all.contains(&(place.to_owned(), name.to_owned())), "{name} on {place}");
        }
        assert!(!all.contains(&("6.1-x86_64".to_owned(), "record::render_frozen".to_owned())));
        assert!(!all.iter().any(|(_, name)| name == "trust::timed"), "it has no tests");
        for bad in ["", "1", "0/3", "4/3", "a/b", "1/2/3"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
    }

    #[test]
    fn results_without_failures_are_kept() {
        let results = std::env::temp_dir().join(format!("tracer-kept-{}", std::process::id()));
        let unit = |name: &str| ("m".to_owned(), name.to_owned());
        let plan = |commit: &str| Plan {
            units: Some(vec![unit("good"), unit("bad"), unit("a/b")]),
            kept: Some(Kept::of(results.clone(), commit)),
            checkout: None,
        };
        let first = plan("one");
        assert!(first.wants("m", "good") && !first.wants("m", "other") && !first.wants("n", "good"));
        let tests = [test("p", Verdict::Passed), test("s", Verdict::Skipped("no BTF".into()))];
        first.keep("m", "good", &tests);
        first.keep("m", "a/b", &tests[..1]);
        first.keep("m", "bad", &[test("p", Verdict::Passed), test("x", Verdict::Failed("no".into()))]);
        first.keep("m", "bad", &[test("f", Verdict::Flaky("slow\n".into()))]);
        first.keep("m", "bad", &[]);
        let again = plan("one");
        assert!(!again.wants("m", "good") && !again.wants("m", "a/b") && again.wants("m", "bad"));
        assert_eq!(again.counts(), (3, 1));
        assert_eq!(again.kept_of("m", |name| name == "good"), tests);
        assert_eq!(again.kept_of("m", |_| true).len(), 3);
        assert!(plan("two").wants("m", "good"), "another commit");
        // A file that is damaged does not count.
        std::fs::write(Kept::of(results.clone(), "one").file("m", "good"), "[{}]").unwrap();
        assert!(again.wants("m", "good"));
        for number in 0..COMMITS + 3 {
            plan(&format!("more-{number}")).keep("m", "good", &tests);
        }
        assert_eq!(std::fs::read_dir(&results).unwrap().count(), COMMITS);
        std::fs::remove_dir_all(results).unwrap();
    }

    #[test]
    fn other_runs_keep_nothing() {
        let plan = Plan::default();
        assert!(plan.wants(HERE, "anything"));
        plan.keep(HERE, "anything", &[test("p", Verdict::Passed)]);
        assert!(plan.wants(HERE, "anything") && plan.kept_of(HERE, |_| true).is_empty());
    }
}
