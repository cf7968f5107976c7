//! The tests that may be skipped on a machine: `tests/skips/MACHINE.txt`, with one line `BINARY::TEST: "WORDS": the
//! feature that is missing there` per test. The name of a test contains its module.
//!
//! A skipped test fails the run if it is not listed, or if its reason does not contain the words. A bug in the
//! detection of a feature therefore fails the run. A listed test that ran is reported, because its line can be
//! removed. The checks of the lint have a list too. A default machine must have a list. For other machines, such as a
//! host with another kernel, a list is optional.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::libtest::{Ended, Verdict};
use super::options;
use super::report::Section;

/// Directory of the lists, relative to the tree's root.
const LISTS: &str = "tests/skips";

/// Name of the lint's list. A passed check of the lint is not reported, because it may be skipped again in the next run.
pub(super) const LINT: &str = "lint";

/// The tests that a machine may skip, by `BINARY::TEST`, with the words that the reason must contain.
type List = BTreeMap<String, String>;

/// Whether a run of all tests uses this machine.
fn is_default(machine: &str) -> Result<bool> {
    Ok(machine == LINT || options::machines()?.iter().any(|target| target.list().as_deref() == Some(machine)))
}

/// Checks the skipped tests of all sections against the lists and returns the text to report. `is_whole` says whether a
/// section includes all tests of its machine.
pub(super) fn judge(
    root: &Path,
    sections: &mut [Section],
    is_whole: impl Fn(&Section) -> bool,
) -> Result<String> {
    let mut text = String::new();
    let mut machines: Vec<String> = sections.iter().filter_map(|section| section.machine.clone()).collect();
    machines.sort();
    machines.dedup();
    for machine in machines {
        let path = root.join(LISTS).join(format!("{machine}.txt"));
        let mut of: Vec<&mut Section> =
            sections.iter_mut().filter(|section| section.machine.as_ref() == Some(&machine)).collect();
        let whole = of.iter().all(|section| is_whole(section));
        let skipped: usize = of.iter().map(|section| section.skipped()).sum();
        if !path.exists() && is_default(&machine)? {
            let verdict =
                Verdict::Failed(format!("{machine} is tested by default and has no list in {LISTS}"));
            let (binary, name) = ("machine".to_owned(), "(its list of skipped tests)".to_owned());
            of[0].tests.push(Ended { binary, name, verdict, time: Duration::ZERO });
            continue;
        }
        if !path.exists() {
            let _ = writeln!(
                text,
                "{machine} has no list in {LISTS}: its {skipped} skipped tests are not judged"
            );
            continue;
        }
        let file = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let list = read(&file).with_context(|| path.display().to_string())?;
        let tests: Vec<&mut Ended> = of.iter_mut().flat_map(|section| &mut section.tests).collect();
        let ran = by_list(tests, &list, &machine, whole);
        for name in ran {
            let _ = writeln!(text, "{LISTS}/{machine}.txt: {name}");
        }
    }
    Ok(text)
}

/// Parses a list.
fn read(text: &str) -> Result<List> {
    let mut list = List::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts = || {
            let (name, rest) = line.split_once(": \"")?;
            let (words, why) = rest.split_once("\": ")?;
            (name.contains("::") && !words.trim().is_empty() && !why.trim().is_empty())
                .then_some((name, words))
        };
        let Some((name, words)) = parts() else { bail!("not BINARY::TEST: \"WORDS\": FEATURE: {line}") };
        if list.insert(name.to_owned(), words.to_owned()).is_some() {
            bail!("twice: {name}");
        }
    }
    Ok(list)
}

/// Turns skipped tests that are not listed into failures. Returns remarks about the listed tests.
fn by_list(tests: Vec<&mut Ended>, list: &List, machine: &str, whole: bool) -> Vec<String> {
    let (mut said, mut seen) = (Vec::new(), Vec::new());
    for test in tests {
        let name = format!("{}::{}", test.binary, test.name);
        let listed = list.get(&name);
        match &test.verdict {
            Verdict::Skipped(reason) if listed.is_none_or(|words| !reason.contains(words)) => {
                let for_that = listed.map_or(String::new(), |words| format!(" but for \"{words}\""));
                test.verdict = Verdict::Failed(format!(
                    "skipped ({reason}), which {LISTS}/{machine}.txt does not allow for {name}{for_that}"
                ));
            }
            Verdict::Passed if listed.is_some() && machine != LINT => {
                said.push(format!("{name} is listed, and ran"));
            }
            _ => {}
        }
        seen.push(name);
    }
    if whole {
        let gone = list.keys().filter(|name| !seen.contains(name));
        said.extend(gone.map(|name| format!("{name} is listed, and there is no such test")));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::selection::Groups;

    fn test(name: &str, verdict: Verdict) -> Ended {
        Ended { binary: "hist".into(), name: name.into(), verdict, time: Duration::ZERO }
    }

    #[test]
    fn a_skip_that_is_not_listed_fails() {
        let list = read(
            "# what is missing\n\nhist::a: \"hy\": x\nhist::c: \"no BTF\": y\nhist::gone: \"nothing\": z\n",
        )
        .unwrap();
        let skipped = || Verdict::Skipped("why".to_owned());
        let mut tests = [
            test("a", skipped()),
            test("b", skipped()),
            test("c", Verdict::Passed),
            test("d", Verdict::Passed),
        ];
        let said = by_list(tests.iter_mut().collect(), &list, "6.1-x86_64", true);
        assert_eq!(said, ["hist::c is listed, and ran", "hist::gone is listed, and there is no such test"]);
        assert_eq!(tests[0].verdict, skipped());
        let Verdict::Failed(why) = &tests[1].verdict else { panic!("{:?}", tests[1]) };
        assert!(why.contains("tests/skips/6.1-x86_64.txt") && why.contains("hist::b"), "{why}");
        assert_eq!(tests[3].verdict, Verdict::Passed);
        // A reason that differs from the listed one.
        let mut tests = [test("a", Verdict::Skipped("not root".to_owned())), test("c", skipped())];
        by_list(tests.iter_mut().collect(), &list, "6.1-x86_64", false);
        for (test, words) in tests.iter().zip(["hy", "no BTF"]) {
            let Verdict::Failed(why) = &test.verdict else { panic!("{test:?}") };
            assert!(why.ends_with(&format!("but for \"{words}\"")), "{why}");
        }
        // A partial run reports nothing about tests outside it.
        assert_eq!(by_list(Vec::new(), &list, "x", false), Vec::<String>::new());
    }

    #[test]
    fn sections_are_judged_by_their_machines_list() {
        let root = std::env::temp_dir().join(format!("tracer-skips-{}", std::process::id()));
        std::fs::create_dir_all(root.join(LISTS)).unwrap();
        std::fs::write(root.join(LISTS).join("one.txt"), "hist::a: \"why\": x\n").unwrap();
        let section = |machine: Option<&str>| Section {
            machine: machine.map(str::to_owned),
            tests: vec![test("a", Verdict::Skipped("why".into())), test("b", Verdict::Skipped("why".into()))],
            ..Section::default()
        };
        let mut sections =
            [section(Some("one")), section(Some("two")), section(None), section(Some("6.12-aarch64"))];
        let text = judge(&root, &mut sections, |_| true).unwrap();
        assert_eq!(text, "two has no list in tests/skips: its 2 skipped tests are not judged\n");
        assert_eq!(sections.each_ref().map(Section::skipped), [1, 2, 2, 2]);
        let failed = |section: &Section| {
            section.tests.iter().filter(|test| matches!(test.verdict, Verdict::Failed(_))).count()
        };
        assert_eq!(sections.each_ref().map(failed), [1, 0, 0, 1], "a default machine must have a list");
        // The lint's checks, compared with the tree's own list.
        let offline = || Verdict::Skipped("no advisory database: unable to access it".into());
        let check = |name: &str, verdict| Ended { binary: LINT.into(), ..test(name, verdict) };
        let (advisories, others) = ("Advisories about dependencies", "Licences");
        for verdict in [offline(), Verdict::Passed] {
            let tests = vec![check(advisories, verdict.clone()), check(others, offline())];
            let mut lint = [Section { machine: Some(LINT.into()), tests, ..Section::default() }];
            assert_eq!(judge(crate::host::root(), &mut lint, |_| false).unwrap(), "");
            assert_eq!(lint[0].tests[0].verdict, verdict);
            assert_eq!(failed(&lint[0]), 1);
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn lists_are_read_and_invalid_lines_reported() {
        assert_eq!(read("a::b: \"c\": d\n").unwrap()["a::b"], "c");
        for wrong in [
            "a::b",
            "a::b: ",
            "a::b: c",
            "b: \"c\": d",
            "a::b: \"\": d",
            "a::b: \"c\": ",
            "a::b: \"c\": d\na::b: \"c\": d\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_trees_own_lists_can_be_read() {
        let lists = crate::host::root().join(LISTS);
        let groups = Groups::read(crate::host::root()).unwrap();
        let mut count = 0;
        for entry in std::fs::read_dir(lists).unwrap() {
            let path = entry.unwrap().path();
            let list = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
            assert!(!list.is_empty(), "{}", path.display());
            for name in list.keys().filter(|name| !name.starts_with("lint::")) {
                let module = name.rsplit_once("::").map_or("", |(module, _)| module);
                assert!(groups.has(module), "{}: {name}", path.display());
            }
            count += 1;
        }
        for target in ["6.1-x86_64", "6.12-x86_64", "6.12-aarch64", LINT] {
            assert!(is_default(target).unwrap(), "{target}");
        }
        assert!(!is_default("6.6-x86_64").unwrap() && !is_default("host-6.18").unwrap());
        assert!(count >= 5, "{count} lists");
    }
}
