//! The integration tests in a virtual machine: the job that runs them, and the parser of its output.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::binaries::{Built, TestBinary};
use super::libtest::{self, Suite};
use super::options::{Options, Target};
use super::report::{self, Section};
use crate::{host, vm};

/// A machine runs every 13th of the generated test cases. The number is prime, so that no kind of case is always
/// omitted. The host runs all of them.
const MACHINE_PART: u32 = 13;
/// Prefixes of the lines with which the guest's script separates the test processes.
const BEGIN: &str = "@@ begin ";
const END: &str = "@@ end ";

/// Runs the selected tests on a machine. A machine that fails counts as a failed test.
pub(super) fn run(target: &Target, built: &Built, options: &Options) -> Section {
    let start = Instant::now();
    let title = target.title();
    host::step(format!("Testing: {title}"));
    match run_job(target, &title, built, options) {
        Ok(tests) => Section { title, machine: target.list(), tests, time: start.elapsed() },
        Err(error) => failed(target, &error, start.elapsed()),
    }
}

/// The section of a machine that could not run its tests.
pub(super) fn failed(target: &Target, error: &anyhow::Error, time: Duration) -> Section {
    let verdict = libtest::Verdict::Failed(format!("{error:#}"));
    Section { title: target.title(), machine: target.list(), tests: vec![no_machine(verdict, time)], time }
}

/// The result for a machine that could not run its tests.
fn no_machine(verdict: libtest::Verdict, time: Duration) -> libtest::Ended {
    libtest::Ended { binary: "machine".to_owned(), name: "(the machine)".to_owned(), verdict, time }
}

/// The guest path of a host path: the tree has the same path there.
fn in_guest(path: &Path) -> PathBuf {
    path.strip_prefix(host::root())
        .map_or_else(|_| Path::new(vm::BIN).join(path.file_name().unwrap_or_default()), Path::to_path_buf)
}

/// The guest's script: runs each command line one after the other and marks its output with its name.
fn script(runs: &[(String, Command)]) -> String {
    let mut text = format!(
        "run() {{ echo \"{BEGIN}$1\"; shift; \"$@\"; code=$?; echo; echo \"{END}$code\"; }}\n\
         cd tests || exit 127\n"
    );
    for (name, command) in runs {
        // Writing to a string does not fail.
        let _ = writeln!(text, "run {name} {}", host::display(command));
    }
    text
}

/// The job that runs the selected integration tests of `built` on the machine, without those that whole runs omit
/// there and those that are `done`.
fn job(target: &Target, built: &Built, options: &Options, done: &[String]) -> Result<vm::Job> {
    let (root, scope) = (host::root(), options.scope(target)?);
    let processes = built.tests.iter().flat_map(TestBinary::processes);
    let mut payload: Vec<(PathBuf, PathBuf)> = vec![(root.join("tests"), PathBuf::from("tests"))];
    let mut runs = Vec::new();
    let processes = processes.filter(|process| !done.contains(&process.name()));
    for process in processes.filter(|p| options.wants_in_machine(p, scope)) {
        let (path, inside) = (&process.binary.path, in_guest(&process.binary.path));
        let mut command = Command::new(root.join(&inside));
        command.args(libtest::OPTIONS).arg("--test-threads=1").args(process.arguments(&options.filter));
        runs.push((process.name(), command));
        // The modules of a group share their binary.
        if payload.last().is_none_or(|(last, _)| last != path) {
            payload.push((path.clone(), inside));
        }
    }
    payload.extend(built.programs.iter().map(|path| (path.clone(), in_guest(path))));
    let command = ["sh".to_owned(), "-c".to_owned(), script(&runs)].to_vec();
    let mut env = vec![("RUSTC_BOOTSTRAP".to_owned(), "1".to_owned())];
    // A directory on a disk, as on the host. `/tmp` is not on a disk.
    env.push(("TRACER_TESTS_DIR".to_owned(), "/var/tmp".to_owned()));
    env.push(("TRACER_TESTS_PART".to_owned(), MACHINE_PART.to_string()));
    env.extend(std::env::var("TRACER_LOG").map(|level| ("TRACER_LOG".to_owned(), level)));
    for program in &built.programs {
        if program.file_name().is_some_and(|n| n == "tracer") {
            env.push(("TRACER_BIN".to_owned(), root.join(in_guest(program)).to_string_lossy().into_owned()));
        }
    }
    Ok(vm::Job { command, env, payload, modules: vec!["fuse".to_owned()], keep: Vec::new() })
}

/// Runs the job. If the guest's kernel crashes, the processes that did not end run in a second machine, and the crash
/// counts as a flaky test. QEMU's emulation probably crashed one: after a `cmpxchg16b` in the kernel's allocator, the
/// flags held bits of another register.
fn run_job(target: &Target, title: &str, built: &Built, options: &Options) -> Result<Vec<libtest::Ended>> {
    let mut guest = Guest { title, ..Guest::default() };
    let first = run_in(&mut guest, target, built, options);
    let outcome = match first {
        Err(error) if error.is::<vm::GuestDied>() && !guest.ended.is_empty() => {
            host::step(format!("{title}: {error:#}\n{title}: the other tests run in a new machine"));
            guest.current = None;
            guest.tests.push(no_machine(libtest::Verdict::Flaky(format!("{error:#}")), Duration::ZERO));
            run_in(&mut guest, target, built, options)
        }
        first => first,
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Reports the tests that ran before. The end of the machine is an additional failure.
            let mut tests = guest.finish("was cut off");
            let verdict = libtest::Verdict::Failed(format!("{error:#}"));
            tests.push(no_machine(verdict, Duration::ZERO));
            return Ok(tests);
        }
    };
    host::step(format!("{title}: Linux {} booted in {:.1} s", outcome.release, outcome.boot.as_secs_f64()));
    let tests = guest.finish("did not end");
    if tests.is_empty() && !options.is_part() {
        bail!("no test ran there; the script ended with {}", outcome.code);
    }
    Ok(tests)
}

/// Runs the processes that did not end yet in a machine.
fn run_in(guest: &mut Guest<'_>, target: &Target, built: &Built, options: &Options) -> Result<vm::Outcome> {
    let mut pending = Vec::new();
    let job = job(target, built, options, &guest.ended)?;
    vm::run(&target.machine(), &job, &mut |stream, bytes| {
        if stream == vm::Stream::Out {
            pending.extend_from_slice(bytes);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                guest.line(String::from_utf8_lossy(&line).trim_end_matches('\n'));
            }
        } else {
            vm::pass_on(stream, bytes);
        }
    })
}

/// Parses the output of the guest's script.
#[derive(Debug, Default)]
struct Guest<'a> {
    title: &'a str,
    /// The name of the running process and its report so far.
    current: Option<(String, Suite)>,
    /// The names of the processes that ended.
    ended: Vec<String>,
    tests: Vec<libtest::Ended>,
}

impl Guest<'_> {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix(BEGIN) {
            self.current = Some((name.to_owned(), Suite::default()));
        } else if let Some(code) = line.strip_prefix(END) {
            self.end(&format!("ended with {code}"));
        } else if let Some((_, suite)) = &mut self.current {
            report::take_line(line, self.title, true, suite);
        }
    }

    /// Ends the running process.
    fn end(&mut self, how: &str) {
        if let Some((name, suite)) = self.current.take() {
            let group = name.split("::").next().unwrap_or_default();
            self.tests.extend(suite.finish(&name, group, how));
            self.ended.push(name);
        }
    }

    fn finish(mut self, how: &str) -> Vec<libtest::Ended> {
        self.end(how);
        self.tests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::libtest::Verdict;
    use crate::test::options::parse_target;

    #[test]
    fn the_guests_script_runs_every_module_with_all_options() {
        let built = Built::of(&[("a", &["one", "two"]), ("b", &[])]);
        let target = parse_target("6.12-x86_64").unwrap();
        let job = job(&target, &built, &Options::default_for_tests(), &[]).unwrap();
        assert_eq!(job.command[..2], ["sh", "-c"]);
        let options = libtest::OPTIONS.join(" ");
        let path = |name: &str| host::root().join(vm::BIN).join(name).display().to_string();
        let lines: Vec<&str> = job.command[2].lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                format!("run a::one {} {options} --test-threads=1 one::", path("a-1")),
                format!("run a::two {} {options} --test-threads=1 two::", path("a-1")),
                format!("run b {} {options} --test-threads=1", path("b-1")),
            ]
        );
        assert_eq!(job.payload.len(), 3, "the tests' files and two binaries");
        let rest =
            super::job(&target, &built, &Options::default_for_tests(), &["a::one".to_owned()]).unwrap();
        let rest: Vec<&str> = rest.command[2].lines().skip(2).collect();
        assert_eq!(rest, lines[1..], "without a process that ended");
        let mut echo = Command::new("echo");
        echo.arg("a word");
        let runs = [("x::y".to_owned(), echo), ("z".to_owned(), Command::new("false"))];
        let mut sh = Command::new("sh");
        let out = host::output(sh.args(["-c", &script(&runs)]).current_dir(host::root())).unwrap();
        assert_eq!(out, "@@ begin x::y\na word\n\n@@ end 0\n@@ begin z\n\n@@ end 1\n");
    }

    #[test]
    fn a_killed_guest_fails_its_test() {
        let mut guest = Guest::default();
        for line in [
            "@@ begin a::x",
            r#"{ "type": "test", "event": "started", "name": "one" }"#,
            r#"{ "type": "test", "event": "ok", "name": "one" }"#,
            r#"{ "type": "suite", "event": "ok" }"#,
            "@@ end 0",
            "@@ begin b::y",
            r#"{ "type": "test", "event": "started", "name": "two" }"#,
        ] {
            guest.line(line);
        }
        let tests = guest.finish("was cut off");
        assert_eq!(tests[0].verdict, Verdict::Passed);
        assert_eq!((tests[0].binary.as_str(), tests[1].binary.as_str()), ("a", "b"));
        assert_eq!(tests[1].verdict, Verdict::Failed("b::y was cut off while this ran".into()));
        assert_eq!(tests.len(), 2);
    }
}
