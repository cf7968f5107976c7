//! Which tests may be skipped on which machine: `tests/skips/MACHINE.txt`, a line a test, `BINARY::TEST: the feature that
//! is missing there`. A test that is skipped and not listed fails the run, so that a feature that is no longer found
//! does not pass as one that was never there. A listed test that ran is named, as its line can go.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::libtest::{Ended, Verdict};
use super::report::Section;

/// Where the lists are, below the tree's root.
const LISTS: &str = "tests/skips";

/// The tests that a machine may skip, by `BINARY::TEST`, with the reasons.
type List = BTreeMap<String, String>;

/// Judges the skipped tests of all sections by the lists; gives what is to be said of them. `whole` is whether all tests
/// were to run.
pub(super) fn judge(root: &Path, sections: &mut [Section], whole: bool) -> Result<String> {
    let mut text = String::new();
    let mut machines: Vec<String> = sections.iter().filter_map(|s| s.machine.clone()).collect();
    machines.dedup();
    for machine in machines {
        let path = root.join(LISTS).join(format!("{machine}.txt"));
        let mut of: Vec<&mut Section> =
            sections.iter_mut().filter(|s| s.machine.as_ref() == Some(&machine)).collect();
        let skipped: usize = of.iter().map(|section| section.skipped()).sum();
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

/// Reads a list.
fn read(text: &str) -> Result<List> {
    let mut list = List::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, why)) = line.split_once(": ") else { bail!("no reason: {line}") };
        if !name.contains("::") || why.trim().is_empty() {
            bail!("not BINARY::TEST: REASON: {line}");
        }
        if list.insert(name.to_owned(), why.to_owned()).is_some() {
            bail!("twice: {name}");
        }
    }
    Ok(list)
}

/// Makes failures of skipped tests that are not listed; gives what is to be said of those that are.
fn by_list(tests: Vec<&mut Ended>, list: &List, machine: &str, whole: bool) -> Vec<String> {
    let (mut said, mut seen) = (Vec::new(), Vec::new());
    for test in tests {
        let name = format!("{}::{}", test.binary, test.name);
        let listed = list.contains_key(&name);
        match &test.verdict {
            Verdict::Skipped(reason) if !listed => {
                test.verdict = Verdict::Failed(format!(
                    "skipped ({reason}), which {LISTS}/{machine}.txt does not allow for {name}"
                ));
            }
            Verdict::Passed if listed => said.push(format!("{name} is listed, and ran")),
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

/// The name of a binary without what cargo puts behind it: `record_raw` of `/x/deps/record_raw-0123456789abcdef`.
pub(super) fn binary_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once('-') {
        Some((stem, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            stem.to_owned()
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn test(name: &str, verdict: Verdict) -> Ended {
        Ended { binary: "hist".into(), name: name.into(), verdict, time: Duration::ZERO }
    }

    #[test]
    fn a_skip_that_is_not_listed_fails() {
        let list =
            read("# what is missing\n\nhist::a: no histograms\nhist::c: no BTF\nhist::gone: nothing\n")
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
        // A part of the tests says nothing of those that are not among them.
        assert_eq!(by_list(Vec::new(), &list, "x", false), Vec::<String>::new());
    }

    #[test]
    fn sections_are_judged_by_their_machines_list() {
        let root = std::env::temp_dir().join(format!("tracer-skips-{}", std::process::id()));
        std::fs::create_dir_all(root.join(LISTS)).unwrap();
        std::fs::write(root.join(LISTS).join("one.txt"), "hist::a: no histograms\n").unwrap();
        let section = |machine: Option<&str>| Section {
            machine: machine.map(str::to_owned),
            tests: vec![test("a", Verdict::Skipped("why".into())), test("b", Verdict::Skipped("why".into()))],
            ..Section::default()
        };
        let mut sections = [section(Some("one")), section(Some("two")), section(None)];
        let text = judge(&root, &mut sections, true).unwrap();
        assert_eq!(text, "two has no list in tests/skips: its 2 skipped tests are not judged\n");
        assert_eq!(sections.each_ref().map(Section::skipped), [1, 2, 2]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn lists_are_read_and_wrong_lines_told() {
        assert_eq!(read("a::b: c: d\n").unwrap()["a::b"], "c: d");
        for wrong in ["a::b", "a::b: ", "b: c", "a::b: c\na::b: c\n"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(binary_name(Path::new("/x/deps/record_raw-0123456789abcdef")), "record_raw");
        assert_eq!(binary_name(Path::new("/x/echo")), "echo");
    }

    #[test]
    fn the_trees_own_lists_can_be_read() {
        let lists = crate::host::root().join(LISTS);
        let mut count = 0;
        for entry in std::fs::read_dir(lists).unwrap() {
            let path = entry.unwrap().path();
            assert!(
                !read(&std::fs::read_to_string(&path).unwrap()).unwrap().is_empty(),
                "{}",
                path.display()
            );
            count += 1;
        }
        assert!(count >= 4, "{count} lists");
    }
}
