//! Parses the report of a test binary: Rust's test harness with `--format json`, one event per line.
//!
//! A test that cannot run on this kernel prints `skipped: REASON` and returns; it counts as skipped, not as passed.
//! Output of child processes may precede an event on the same line. The format is defined in
//! library/test/src/formatters/json.rs; `RUSTC_BOOTSTRAP=1` enables it in stable binaries.

use std::time::Duration;

use serde_json::Value;

/// Options for this report format; the environment must contain `RUSTC_BOOTSTRAP=1`.
pub(super) const OPTIONS: [&str; 6] =
    ["-Z", "unstable-options", "--format", "json", "--report-time", "--show-output"];
/// Prefix of the line that a skipped test prints.
const SKIPPED: &str = "skipped: ";

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    /// With the test's output.
    Failed(String),
    /// With the reason.
    Skipped(String),
    /// Passed when it ran again, with the output of the first failure.
    Flaky(String),
}

/// A finished test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// The binary that contains it.
    pub(super) binary: String,
    pub(super) name: String,
    pub(super) verdict: Verdict,
    pub(super) time: Duration,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A test started.
    Started(String),
    /// A test ended.
    Ended(Ended),
    /// The binary has run all its tests.
    Complete,
    /// Other text, such as a child's output.
    Other,
}

/// Parses one line.
pub(super) fn parse(line: &str) -> Event {
    let Some(value) = line.find("{ \"type\":").and_then(|at| serde_json::from_str::<Value>(&line[at..]).ok())
    else {
        return Event::Other;
    };
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let verdict = match (value["type"].as_str(), value["event"].as_str()) {
        (Some("suite"), Some("ok" | "failed")) => return Event::Complete,
        (Some("test"), Some("started")) => return Event::Started(text("name")),
        (Some("test"), Some("ok")) => {
            let said = text("stdout");
            match said.lines().find_map(|l| l.strip_prefix(SKIPPED)) {
                Some(reason) => Verdict::Skipped(reason.to_owned()),
                None => Verdict::Passed,
            }
        }
        (Some("test"), Some("ignored")) => {
            let why = value["message"].as_str().map_or_else(String::new, |m| format!(": {m}"));
            Verdict::Skipped(format!("ignored{why}"))
        }
        (Some("test"), Some("failed")) => {
            let message = value["message"].as_str().map_or_else(String::new, |m| format!("{m}\n"));
            Verdict::Failed(message + &text("stdout"))
        }
        _ => return Event::Other,
    };
    let time = value["exec_time"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
    Event::Ended(Ended { binary: String::new(), name: text("name"), verdict, time: time.unwrap_or_default() })
}

/// Collects a binary's events and tracks the running tests, in case the binary dies.
#[derive(Debug, Default)]
pub(super) struct Suite {
    pub(super) ended: Vec<Ended>,
    running: Vec<String>,
    complete: bool,
}

impl Suite {
    /// Adds an event.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Started(name) => self.running.push(name),
            Event::Ended(test) => {
                self.running.retain(|name| *name != test.name);
                self.ended.push(test);
            }
            Event::Complete => self.complete = true,
            Event::Other => {}
        }
    }

    /// Whether the binary has run all its tests.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Ends the collection. If the process died, its running tests fail; without running tests, the process itself
    /// counts as one failed test. `process` is its name, and `binary` the binary's name in the results.
    pub(super) fn finish(mut self, process: &str, binary: &str, how: &str) -> Vec<Ended> {
        if !self.complete {
            let fail = |name: String| {
                let verdict = Verdict::Failed(format!("{process} {how} while this ran"));
                Ended { binary: String::new(), name, verdict, time: Duration::ZERO }
            };
            if self.running.is_empty() {
                self.running.push(format!("({process})"));
            }
            self.ended.extend(self.running.drain(..).map(fail));
        }
        for test in &mut self.ended {
            binary.clone_into(&mut test.binary);
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(line: &str) -> Ended {
        match parse(line) {
            Event::Ended(test) => test,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn verdicts_are_read() {
        let test = ended(r#"{ "type": "test", "name": "a::b", "event": "ok", "exec_time": 0.25 }"#);
        assert_eq!((test.name.as_str(), test.verdict), ("a::b", Verdict::Passed));
        assert_eq!(test.time, Duration::from_millis(250));
        let test = ended(r#"{ "type": "test", "name": "a", "event": "failed", "stdout": "boom\n" }"#);
        assert_eq!(test.verdict, Verdict::Failed("boom\n".to_owned()));
        let test = ended(r#"{ "type": "test", "name": "a", "event": "ignored", "message": "slow" }"#);
        assert_eq!(test.verdict, Verdict::Skipped("ignored: slow".to_owned()));
    }

    #[test]
    fn a_skipped_test_is_recognised_by_its_output() {
        let line = r#"{ "type": "test", "name": "a", "event": "ok", "stdout": "x\nskipped: no kprobes\n" }"#;
        assert_eq!(ended(line).verdict, Verdict::Skipped("no kprobes".to_owned()));
        let line =
            r#"{ "type": "test", "name": "a", "event": "ok", "stdout": "nothing was skipped: fine\n" }"#;
        assert_eq!(ended(line).verdict, Verdict::Passed);
    }

    #[test]
    fn output_of_children_may_precede_a_verdict() {
        assert_eq!(
            parse(r#"hello{ "type": "test", "event": "started", "name": "a" }"#),
            Event::Started("a".into())
        );
        assert_eq!(parse("hello { world"), Event::Other);
        assert_eq!(parse(r#"{ "type": "test", "event": "#), Event::Other);
        assert_eq!(parse(r#"{ "type": "suite", "event": "started", "test_count": 3 }"#), Event::Other);
    }

    #[test]
    fn a_killed_binary_fails_its_running_test() {
        let mut suite = Suite::default();
        suite.take(Event::Started("a".into()));
        suite.take(Event::Started("b".into()));
        suite.take(parse(r#"{ "type": "test", "name": "a", "event": "ok" }"#));
        let tests = suite.finish("t", "n", "ended with 134");
        assert_eq!(tests.len(), 2);
        assert_eq!((tests[0].binary.as_str(), tests[1].name.as_str()), ("n", "b"));
        assert_eq!(tests[1].verdict, Verdict::Failed("t ended with 134 while this ran".into()));
        assert_eq!(Suite::default().finish("t", "n", "ended with 1")[0].name, "(t)");
        let mut suite = Suite::default();
        suite.take(parse(r#"{ "type": "suite", "event": "ok", "passed": 0 }"#));
        assert_eq!(suite.finish("t", "n", "ended with 0"), []);
    }

    #[test]
    fn this_binarys_report_is_parsed() {
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(OPTIONS)
            .args(["--exact", "test::libtest::tests::verdicts_are_read"])
            .env("RUSTC_BOOTSTRAP", "1")
            .output()
            .unwrap();
        let mut suite = Suite::default();
        String::from_utf8(out.stdout).unwrap().lines().for_each(|line| suite.take(parse(line)));
        let tests = suite.finish("self", "n", "ended");
        assert_eq!(tests.len(), 1, "{tests:?}");
        assert_eq!(tests[0].verdict, Verdict::Passed);
    }
}
