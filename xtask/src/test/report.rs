//! The output of a test run: a line per finished test, the failures, a table by machine, and a final line.

use std::fmt::Write as _;
use std::time::Duration;

use super::libtest::{self, Ended, Event, Suite, Verdict};
use super::rerun::MOST_FLAKY;

/// A test that takes at least this long is listed among the slowest.
const SLOW: Duration = Duration::from_secs(10);
/// Number of the last lines of a failed test's output that are shown at once; the final report shows all of them.
const LAST_LINES: usize = 30;

/// The kind of a section, which determines the command that repeats one of its tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A step without tests, such as a build.
    #[default]
    Step,
    /// Checks of the lint.
    Lint,
    /// Checks of `lint --all`.
    Audit,
    /// The checked-in eBPF objects.
    Objects,
    /// README's commands in bare systems.
    Fresh,
    /// Unit and integration tests on the host.
    Host,
    /// Integration tests in the machine of this name.
    Machine(String),
    /// Cases of the suite of a kernel of this version.
    Suite(String),
}

/// The tests of one machine, or of one part of the run on the host; or a step without tests.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Title, such as the machine.
    pub(super) title: String,
    pub(super) kind: Kind,
    pub(super) tests: Vec<Ended>,
    /// Duration of the run without the build.
    pub(super) time: Duration,
}

impl Section {
    /// A step without tests that took this long.
    pub(super) fn step(title: &str, time: Duration) -> Self {
        Self { title: title.to_owned(), time, ..Self::default() }
    }

    /// The command that runs only this test.
    fn command(&self, test: &Ended) -> String {
        let Ended { binary, name, .. } = test;
        // A process that died, or a machine.
        if let Some(process) = name.strip_prefix('(').and_then(|name| name.strip_suffix(')')) {
            let is_process = process.contains("::");
            let program = if is_process { format!(" --program {process}") } else { String::new() };
            return match &self.kind {
                Kind::Machine(machine) => format!("./x test --vm-only --vm {machine}{program}"),
                Kind::Suite(version) => format!("./x conformance --kernel {version} --mirror"),
                _ => format!("./x test --host-only{program}"),
            };
        }
        let program =
            || name.split_once("::").map_or(binary.clone(), |(module, _)| format!("{binary}::{module}"));
        let last = name.rsplit("::").next().unwrap_or_default();
        match &self.kind {
            Kind::Step => String::new(),
            Kind::Lint => format!("./x lint '{}'", name.to_lowercase()),
            Kind::Audit => format!("./x lint --all '{}'", name.to_lowercase()),
            Kind::Objects => "./x ebpf --check".to_owned(),
            Kind::Fresh => format!("./x fresh {name}"),
            Kind::Host => format!("./x test --host-only {last}"),
            Kind::Machine(machine) => {
                format!("./x test --vm-only --vm {machine} --program {} {last}", program())
            }
            Kind::Suite(version) => {
                let file = name.split(' ').next().unwrap_or_default();
                format!("./x conformance --kernel {version} --mirror {file}")
            }
        }
    }

    /// Whether a test failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed() > 0
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.tests.iter().filter(|t| is(&t.verdict)).count()
    }

    fn passed(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Passed | Verdict::Flaky(_)))
    }

    fn flaky(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Flaky(_)))
    }

    fn failed(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Failed(_)))
    }

    fn skipped(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Skipped(_)))
    }
}

/// The line for a finished test.
pub(super) fn line(title: &str, test: &Ended) -> String {
    let (word, why) = match &test.verdict {
        Verdict::Passed => ("ok", String::new()),
        Verdict::Failed(_) => ("FAILED", String::new()),
        Verdict::Skipped(reason) => ("skipped", format!(": {reason}")),
        Verdict::Flaky(_) => ("flaky", String::new()),
    };
    format!("{title:24} {word:7} {} ({:.1} s){why}", test.name, test.time.as_secs_f64())
}

/// Parses a line of a binary's report. Shows tests as they end: all of them if `show`, else those that did not pass.
pub(super) fn take_line(line: &str, title: &str, show: bool, suite: &mut Suite) {
    let event = libtest::parse(line);
    if let Event::Ended(test) = &event
        && (show || test.verdict != Verdict::Passed)
    {
        eprintln!("{}", self::line(title, test));
        // Print it now as well: an interrupted run does not reach the final report.
        if let Verdict::Failed(output) = &test.verdict {
            let lines: Vec<&str> = output.lines().collect();
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                eprintln!("    {line}");
            }
        }
    }
    suite.take(event);
}

/// Numbers of tests of a run. Flaky tests count as passed too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
    pub(super) flaky: usize,
}

impl Totals {
    pub(super) fn of(sections: &[Section]) -> Self {
        let total = |count: fn(&Section) -> usize| sections.iter().map(count).sum::<usize>();
        Self {
            passed: total(Section::passed),
            failed: total(Section::failed),
            skipped: total(Section::skipped),
            flaky: total(Section::flaky),
        }
    }
}

/// The end of the report, and whether no test failed.
pub(super) fn summary(sections: &[Section]) -> (String, bool) {
    let mut text = String::new();
    let _ = writeln!(text, "\n{:28} {:>7} {:>7} {:>7} {:>9}", "", "passed", "failed", "skipped", "seconds");
    for s in sections {
        if s.kind == Kind::Step {
            let _ = writeln!(text, "{:28} {:>33.1}", s.title, s.time.as_secs_f64());
            continue;
        }
        let (p, f, k) = (s.passed(), s.failed(), s.skipped());
        let _ = writeln!(text, "{:28} {p:>7} {f:>7} {k:>7} {:>9.1}", s.title, s.time.as_secs_f64());
    }
    for section in sections {
        if let Some(slowest) = slowest(section) {
            let _ = writeln!(text, "slowest on {}: {slowest}", section.title);
        }
    }
    for section in sections {
        for test in &section.tests {
            if let Verdict::Skipped(reason) = &test.verdict {
                let _ = writeln!(text, "skipped on {}: {}: {reason}", section.title, test.name);
            }
        }
    }
    // The failures come last, because some logs keep only their end.
    let mut names = String::new();
    for section in sections {
        for test in &section.tests {
            let (output, word) = match &test.verdict {
                Verdict::Failed(output) => (output, "failed"),
                Verdict::Flaky(output) => (output, "flaky"),
                Verdict::Passed | Verdict::Skipped(_) => continue,
            };
            let _ = writeln!(text, "\n---- {}: {} ----\n{}", section.title, test.name, output.trim_end());
            let _ = writeln!(names, "{word} on {}: {}", section.title, test.name);
            if word == "failed" {
                let _ = writeln!(names, "    to repeat it: {}", section.command(test));
            }
        }
    }
    if !names.is_empty() {
        let _ = write!(text, "\n{names}");
    }
    let Totals { passed, failed, skipped, flaky } = Totals::of(sections);
    if flaky > 0 {
        let judged = if flaky > MOST_FLAKY { "too many" } else { "counted as passed" };
        let _ = writeln!(text, "\n{flaky} flaky, {judged}: at most {MOST_FLAKY} may be");
    }
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {skipped} skipped");
    (text, failed == 0 && flaky <= MOST_FLAKY)
}

/// The five slowest tests among those that took long, if any.
fn slowest(section: &Section) -> Option<String> {
    let mut tests: Vec<&Ended> = section.tests.iter().filter(|test| test.time >= SLOW).collect();
    tests.sort_by_key(|test| std::cmp::Reverse(test.time));
    let words = tests.iter().take(5).map(|test| format!("{} ({:.0} s)", test.name, test.time.as_secs_f64()));
    Some(words.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, verdict: Verdict) -> Ended {
        Ended { binary: "t".into(), name: name.into(), verdict, time: Duration::from_millis(1500) }
    }

    #[test]
    fn the_summary_ends_with_the_totals() {
        let good = Section {
            title: "host".into(),
            kind: Kind::Host,
            tests: vec![test("a", Verdict::Passed), test("b", Verdict::Skipped("no BTF".into()))],
            time: Duration::from_secs(2),
        };
        let (text, fine) = summary(std::slice::from_ref(&good));
        assert!(fine);
        assert!(text.contains("skipped on host: b: no BTF\n"), "{text}");
        assert!(text.ends_with("\n1 passed, 0 failed, 1 skipped\n"), "{text}");
        let bad = Section {
            title: "6.1 x86_64".into(),
            kind: Kind::Machine("6.1-x86_64".into()),
            tests: vec![test("m::c", Verdict::Failed("assertion\n".into()))],
            ..Section::default()
        };
        let (text, fine) = summary(&[Section::step("build", Duration::from_secs(90)), good, bad]);
        assert!(!fine);
        let build = text.lines().find(|line| line.starts_with("build")).unwrap();
        assert!(build.ends_with(" 90.0") && build.len() == 62, "{text}");
        assert!(text.contains("---- 6.1 x86_64: m::c ----\nassertion\n"), "{text}");
        let end = "\nfailed on 6.1 x86_64: m::c\n    to repeat it: ./x test --vm-only --vm 6.1-x86_64 --program t::m c\n\n\
                   1 passed, 1 failed, 1 skipped\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn commands_repeat_one_test() {
        let command = |kind: Kind, name: &str| {
            Section { kind, ..Section::default() }.command(&test(name, Verdict::Passed))
        };
        let machine = || Kind::Machine("6.1-x86_64".to_owned());
        let suite = || Kind::Suite("6.12".to_owned());
        for (kind, name, expected) in [
            (Kind::Host, "m::a", "./x test --host-only a"),
            (Kind::Host, "(t::m)", "./x test --host-only --program t::m"),
            (machine(), "(t::m)", "./x test --vm-only --vm 6.1-x86_64 --program t::m"),
            (machine(), "(the machine)", "./x test --vm-only --vm 6.1-x86_64"),
            (suite(), "a/b.tc (instance)", "./x conformance --kernel 6.12 --mirror a/b.tc"),
            (suite(), "(the machine)", "./x conformance --kernel 6.12 --mirror"),
            (Kind::Lint, "Unit file", "./x lint 'unit file'"),
            (Kind::Audit, "Book", "./x lint --all 'book'"),
            (Kind::Objects, "eBPF objects", "./x ebpf --check"),
        ] {
            assert_eq!(command(kind, name), expected);
        }
    }

    #[test]
    fn flaky_tests_count_as_passed_up_to_a_limit() {
        let flaky = |count: usize| {
            let one = test("c", Verdict::Flaky("too slow".into()));
            summary(&[Section {
                title: "host".into(),
                kind: Kind::Host,
                tests: vec![one; count],
                ..Section::default()
            }])
        };
        let (text, fine) = flaky(MOST_FLAKY);
        assert!(fine);
        assert!(text.contains("---- host: c ----\ntoo slow\n"), "{text}");
        let end = "flaky on host: c\n\n3 flaky, counted as passed: at most 3 may be\n\n3 passed, 0 failed, 0 skipped\n";
        assert!(text.ends_with(end), "{text}");
        let (text, fine) = flaky(MOST_FLAKY + 1);
        assert!(!fine);
        assert!(text.contains("4 flaky, too many: at most 3 may be"), "{text}");
    }

    #[test]
    fn the_slowest_are_named() {
        let timed =
            |name: &str, seconds| Ended { time: Duration::from_secs(seconds), ..test(name, Verdict::Passed) };
        let tests = vec![timed("a", 3), timed("b", 12), timed("c", 40)];
        let section = Section { title: "6.1 x86_64".into(), tests, ..Section::default() };
        let (text, _) = summary(&[section]);
        assert!(text.contains("slowest on 6.1 x86_64: c (40 s), b (12 s)\n"), "{text}");
        assert!(!summary(&[]).0.contains("slowest"));
    }

    #[test]
    fn a_line_names_machine_verdict_test_and_reason() {
        let line = line("host", &test("b", Verdict::Skipped("no BTF".into())));
        assert_eq!(line, "host                     skipped b (1.5 s): no BTF");
    }
}
