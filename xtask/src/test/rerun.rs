//! Failed integration tests run again, alone, after all others: on the host, or in a fresh machine.
//!
//! A loaded machine can delay a test so much that it fails. A test that fails runs again up to [`TIMES`] times. If it
//! then passes, its verdict is [`Verdict::Flaky`], which keeps the output of its first failure. More than
//! [`MOST_FLAKY`] of them fail the run.
//!
//! In a run of everything, a flaky test must be in `tests/flaky.txt`, which names the cause of each.
//!
//! Tests of [`EXACT`] never run again. They count hits, losses or races, so that a single failure is a finding. Unit
//! tests never run again either, because they need no quiet machine.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::libtest::{Ended, Verdict};
use super::report::Section;

/// Number of further runs of a failed test.
pub(super) const TIMES: usize = 2;

/// Maximum number of flaky tests in a run that succeeds.
pub(super) const MOST_FLAKY: usize = 3;

/// Modules and tests of exactness.
const EXACT: &[&str] = &[
    "events::chains",
    "events::hooks::the_longest_filters_change_at_raw_tracepoints_and_no_hit_is_lost",
    "events::read_variables",
    "events::records::filters_and_triggers_change_under_load_and_no_hit_is_lost_or_seen_twice",
    "events::records::full_rings_are_drained_without_a_reader",
    "events::records::reading_consumes_or_not_and_the_counts_tell",
    "events::triggers::a_counted_trigger_disables_an_event_that_often",
    "events::triggers::counts_are_exact_on_two_cpus",
    "hist::counts",
    "hist::mirror::no_hit_is_lost_while_triggers_change",
    "hist::variables::no_maximum_is_lost",
    "mirror::soak",
    "mirror::unread",
    "record::ring",
    "trust::user::a_setuid_program_executed_by_a_client_is_not_written",
    "trust::user::a_setuid_program_executed_by_a_reader_is_not_written",
    "trust::user::no_race_writes_into_another_address_space",
    "user::events::many_clients_lose_no_record_and_leave_nothing",
];

/// Whether the test failed and may run again.
pub(super) fn is_wanted(test: &Ended) -> bool {
    let name = format!("{}::{}", test.binary, test.name);
    let is_exact = |exact: &&str| {
        name.strip_prefix(*exact).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    matches!(test.verdict, Verdict::Failed(_)) && !EXACT.iter().any(is_exact)
}

/// Runs a failed test until it passes, at most [`TIMES`] times. `run` executes it once and returns its result.
pub(super) fn again(test: &mut Ended, mut run: impl FnMut() -> Result<Vec<Ended>>) -> Result<()> {
    for _ in 0..TIMES {
        if matches!(test.verdict, Verdict::Failed(_)) {
            judge(test, &run()?);
        }
    }
    Ok(())
}

/// The tests that may be flaky in a run of everything: lines `BINARY::TEST: CAUSE`.
const KNOWN: &str = "tests/flaky.txt";

/// Makes flaky tests that [`KNOWN`] does not list failures.
pub(super) fn judge_flaky(root: &Path, sections: &mut [Section]) -> Result<()> {
    let text = std::fs::read_to_string(root.join(KNOWN)).context(KNOWN)?;
    let known = parse(&text).context(KNOWN)?;
    for test in sections.iter_mut().flat_map(|section| &mut section.tests) {
        let name = format!("{}::{}", test.binary, test.name);
        if let Verdict::Flaky(first) = &test.verdict
            && !known.contains_key(name.as_str())
        {
            test.verdict = Verdict::Failed(format!("flaky, and {KNOWN} does not list {name}: {first}"));
        }
    }
    Ok(())
}

/// Reads lines `BINARY::TEST: CAUSE`.
fn parse(text: &str) -> Result<BTreeMap<&str, &str>> {
    let mut known = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(": ") {
            Some((name, cause)) if name.contains("::") && !cause.trim().is_empty() => {
                known.insert(name, cause)
            }
            _ => bail!("not BINARY::TEST: CAUSE: {line}"),
        };
    }
    Ok(known)
}

/// Makes a failed test flaky if it passed among `ended`, the results of a further run.
pub(super) fn judge(test: &mut Ended, ended: &[Ended]) {
    let Verdict::Failed(first) = &test.verdict else { return };
    let mut same = ended.iter().filter(|other| other.binary == test.binary && other.name == test.name);
    if matches!((same.next(), same.next()), (Some(one), None) if one.verdict == Verdict::Passed) {
        test.verdict = Verdict::Flaky(first.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host;
    use crate::test::selection::Groups;

    fn test(binary: &str, name: &str, verdict: Verdict) -> Ended {
        let (binary, name) = (binary.to_owned(), name.to_owned());
        Ended { binary, name, verdict, time: Duration::ZERO }
    }

    fn failed() -> Verdict {
        Verdict::Failed("first".to_owned())
    }

    #[test]
    fn exact_tests_are_not_wanted() {
        assert!(is_wanted(&test("trust", "deadlines::many_polls_block_no_client", failed())));
        assert!(!is_wanted(&test("trust", "deadlines::many_polls_block_no_client", Verdict::Passed)));
        assert!(!is_wanted(&test("mirror", "soak::every_hit_is_in_exactly_one_count", failed())));
        assert!(!is_wanted(&test("hist", "variables::no_maximum_is_lost", failed())));
        assert!(is_wanted(&test("hist", "variables::no_maximum_is_lost_here", failed())));
        assert!(is_wanted(&test("hist", "variables::scenes", failed())));
    }

    #[test]
    fn a_test_runs_until_it_passes() {
        let ran = |outcomes: &[Verdict]| {
            let mut one = test("hist", "variables::scenes", failed());
            let mut runs = 0;
            again(&mut one, || {
                runs += 1;
                Ok(vec![test("hist", "variables::scenes", outcomes[runs - 1].clone())])
            })
            .unwrap();
            (one.verdict, runs)
        };
        let again = || Verdict::Failed("again".to_owned());
        assert_eq!(ran(&[Verdict::Passed]), (Verdict::Flaky("first".to_owned()), 1));
        assert_eq!(ran(&[again(), Verdict::Passed]), (Verdict::Flaky("first".to_owned()), 2));
        assert_eq!(ran(&[again(), again()]), (failed(), 2));
        assert_eq!(ran(&[Verdict::Skipped("no BTF".to_owned()), again()]), (failed(), 2));
        // A run that selects no test does not count as passed.
        let mut one = test("hist", "variables::scenes", failed());
        super::again(&mut one, || Ok(Vec::new())).unwrap();
        assert_eq!(one.verdict, failed());
    }

    #[test]
    fn a_flaky_test_must_be_listed() {
        let root = std::env::temp_dir().join(format!("tracer-flaky-{}", std::process::id()));
        std::fs::create_dir_all(root.join("tests")).unwrap();
        std::fs::write(root.join(KNOWN), "# why\n\nhist::cli::a: the emulator\n").unwrap();
        let flaky = |name: &str| test("hist", name, Verdict::Flaky("first".to_owned()));
        let tests = vec![flaky("cli::a"), flaky("cli::b"), test("hist", "cli::c", Verdict::Passed)];
        let mut sections = [Section { tests, ..Section::default() }];
        judge_flaky(&root, &mut sections).unwrap();
        let verdicts: Vec<&Verdict> = sections[0].tests.iter().map(|test| &test.verdict).collect();
        assert_eq!(*verdicts[0], Verdict::Flaky("first".to_owned()));
        let Verdict::Failed(why) = verdicts[1] else { panic!("{:?}", verdicts[1]) };
        assert!(why.contains("hist::cli::b") && why.ends_with(": first"), "{why}");
        assert_eq!(*verdicts[2], Verdict::Passed);
        for bad in ["hist::cli::a", "hist: why", "hist::cli::a: "] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        std::fs::remove_dir_all(root).unwrap();
        let own = std::fs::read_to_string(host::root().join(KNOWN)).unwrap();
        let groups = Groups::read(host::root()).unwrap();
        let is_known = |name: &&str| {
            // A machine, or a case of the kernel's suite.
            ["machine::", "ftracetest::"].iter().any(|binary| name.starts_with(binary))
                || groups.has_test(host::root(), name)
        };
        assert!(parse(&own).unwrap().keys().all(is_known));
    }

    #[test]
    fn names_of_exact_tests_are_known() {
        let groups = Groups::read(host::root()).unwrap();
        for name in EXACT {
            let is_module = name.matches("::").count() == 1;
            assert!(if is_module { groups.has(name) } else { groups.has_test(host::root(), name) }, "{name}");
        }
    }
}
