//! The integration tests in a virtual machine: the job that runs them, and the parser of its output.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::binaries::{Built, TestBinary};
use super::libtest::{self, Ended, Suite, Verdict};
use super::matrix::Plan;
use super::options::{Options, Target};
use super::report::{self, Kind, Section};
use super::rerun;
use super::skips::Features;
use crate::{host, vm};

/// A machine runs every 13th of the generated test cases. The number is prime, so that no kind of case is always
/// omitted. The host runs all of them.
const MACHINE_PART: u32 = 13;
/// Number of fresh machines that continue for machines whose guests died.
const FRESH: usize = 2;
/// Prefixes of the lines with which the guest's script separates the test processes.
const BEGIN: &str = "@@ begin ";
const END: &str = "@@ end ";

/// A process of a test binary in the guest.
#[derive(Debug, Clone)]
struct Process<'a> {
    /// Its name in the output, which begins with the group's name.
    name: String,
    binary: &'a TestBinary,
    /// Arguments of the test harness.
    arguments: Vec<String>,
}

/// The processes of the selected tests.
fn selected<'a>(built: &'a Built, options: &Options) -> Vec<Process<'a>> {
    let processes = built.tests.iter().flat_map(TestBinary::processes);
    let wanted = processes.filter(|process| options.wants_in_machine(process));
    let process = |process: super::binaries::TestProcess<'a>| Process {
        name: process.name(),
        binary: process.binary,
        arguments: options.scope().arguments(&process, &options.filter),
    };
    wanted.map(process).collect()
}

/// Runs the selected tests of a plan on a machine, and adds the kept results of the others. Failed tests then run again,
/// each alone, in a fresh machine. A machine that fails counts as a failed test.
pub(super) fn run(target: &Target, built: &Built, options: &Options, plan: &Plan) -> Section {
    let start = Instant::now();
    let place = target.name();
    let mut processes = selected(built, options);
    processes.retain(|process| plan.wants(&place, &process.name));
    let mut tests = plan.kept_of(&place, |_| true);
    if !processes.is_empty() {
        host::step(format!("Testing: {}", target.title()));
        tests.extend(run_and_rerun(target, built, &processes, plan));
    }
    if tests.is_empty() && !options.is_part() && !options.all {
        return failed(target, &anyhow!("no test ran there"), start.elapsed());
    }
    Section { tests, time: start.elapsed(), ..section(target) }
}

/// A section for a machine, without tests.
fn section(target: &Target) -> Section {
    Section { title: target.title(), kind: Kind::Machine(target.name()), ..Section::default() }
}

/// The section of a machine that could not run its tests.
pub(super) fn failed(target: &Target, error: &anyhow::Error, time: Duration) -> Section {
    let tests = vec![no_machine(Verdict::Failed(format!("{error:#}")), time)];
    Section { tests, time, ..section(target) }
}

/// The result for a machine that could not run its tests.
fn no_machine(verdict: Verdict, time: Duration) -> Ended {
    Ended { binary: "machine".to_owned(), name: "(the machine)".to_owned(), verdict, time }
}

/// Runs processes in a machine, then the failed tests in fresh ones. Keeps the results of each process.
fn run_and_rerun(target: &Target, built: &Built, processes: &[Process<'_>], plan: &Plan) -> Vec<Ended> {
    let keep = |name: &str, tests: &[Ended]| plan.keep(&target.name(), name, tests);
    let (mut tests, cut_off) = run_in_machines(target, built, processes, &keep);
    for _ in 0..rerun::TIMES {
        // After the death of a process, some of its tests did not run.
        let again: Vec<Process<'_>> = tests
            .iter()
            .filter(|test| rerun::is_wanted(test))
            .filter_map(|test| Some((test, processes.iter().find(|process| process.has(test))?)))
            .filter(|(_, process)| !cut_off.contains(&process.name))
            .map(|(test, process)| Process {
                name: format!("{}::{}", test.binary, test.name),
                binary: process.binary,
                arguments: vec!["--exact".to_owned(), test.name.clone()],
            })
            .collect();
        if again.is_empty() {
            break;
        }
        host::step(format!("Testing again: {} tests on {}", again.len(), target.title()));
        let (ended, _) = run_in_machines(target, built, &again, &|_, _| ());
        for test in tests.iter_mut().filter(|test| rerun::is_wanted(test)) {
            rerun::judge(test, &ended);
        }
        tests.extend(ended.into_iter().filter(|test| test.binary == "machine"));
    }
    for process in processes.iter().filter(|process| !cut_off.contains(&process.name)) {
        let of_process: Vec<Ended> = tests.iter().filter(|test| process.has(test)).cloned().collect();
        keep(&process.name, &of_process);
    }
    tests
}

impl Process<'_> {
    /// Whether it runs this test.
    fn has(&self, test: &Ended) -> bool {
        let module = test.name.split("::").next().unwrap_or_default();
        let is_module = self.name == format!("{}::{module}", test.binary);
        self.binary.target == test.binary && (self.name == test.binary || is_module)
    }
}

/// The guest path of a host path: the tree has the same path there.
fn in_guest(path: &Path) -> PathBuf {
    path.strip_prefix(host::root())
        .map_or_else(|_| Path::new(vm::BIN).join(path.file_name().unwrap_or_default()), Path::to_path_buf)
}

/// The guest's script: lists the guest's features, then runs each command line one after the other and marks its output
/// with its name.
fn script(runs: &[(String, Command)]) -> String {
    let mut text = format!(
        "run() {{ echo \"{BEGIN}$1\"; shift; \"$@\"; code=$?; echo; echo \"{END}$code\"; }}\n\
         cd tests || exit 127\n\
         \"$TRACER_BIN\" doctor --json\n"
    );
    for (name, command) in runs {
        // Writing to a string does not fail.
        let _ = writeln!(text, "run {name} {}", host::display(command));
    }
    text
}

/// The job that runs processes one after the other.
fn job(built: &Built, processes: &[Process<'_>]) -> vm::Job {
    let root = host::root();
    let mut payload: Vec<(PathBuf, PathBuf)> = vec![(root.join("tests"), PathBuf::from("tests"))];
    let mut runs = Vec::new();
    for process in processes {
        let (path, inside) = (&process.binary.path, in_guest(&process.binary.path));
        let mut command = Command::new(root.join(&inside));
        command.args(libtest::OPTIONS).arg("--test-threads=1").args(&process.arguments);
        runs.push((process.name.clone(), command));
        // The modules of a group share their binary.
        if payload.iter().all(|(other, _)| other != path) {
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
    vm::Job { command, env, payload, modules: vec!["fuse".to_owned()], keep: Vec::new() }
}

/// Runs processes in a machine. Returns the results, and the names of the processes that did not end by themselves.
/// `keep` gets the results of each process that ended, so that they are not lost if the run is interrupted.
///
/// If the guest's kernel crashes, the processes that did not end run in a fresh machine,
/// and the crash counts as a flaky test. QEMU's emulation probably crashed some: after a `cmpxchg16b` in the kernel's
/// allocator, the flags held bits of another register.
fn run_in_machines(
    target: &Target,
    built: &Built,
    processes: &[Process<'_>],
    keep: Keep<'_>,
) -> (Vec<Ended>, Vec<String>) {
    let title = target.title();
    let mut guest =
        Guest { title: &title, keep: Some(keep), features: Features::of_guest(), ..Guest::default() };
    let mut fresh = 0;
    let outcome = loop {
        let left: Vec<Process<'_>> =
            processes.iter().filter(|process| !guest.ended.contains(&process.name)).cloned().collect();
        match run_in(&mut guest, target, &job(built, &left)) {
            Err(error) if error.is::<vm::GuestDied>() && fresh < FRESH => {
                host::step(format!("{title}: {error:#}\n{title}: a fresh machine continues"));
                let tests = guest.cut_off_by_death();
                let running = tests.iter().map(|test| &*test.name).collect::<Vec<_>>().join(", ");
                let why = format!("after or in these tests: {running}\n{error:#}");
                guest.tests.push(no_machine(Verdict::Flaky(why), Duration::ZERO));
                // The process runs again, but a failed test of exactness stays failed.
                let has_failed = |test: &Ended| matches!(test.verdict, Verdict::Failed(_));
                guest
                    .tests
                    .extend(tests.into_iter().filter(|test| has_failed(test) && !rerun::is_wanted(test)));
                fresh += 1;
            }
            ended => break ended,
        }
    };
    match outcome {
        Ok(outcome) => {
            let (release, boot) = (&outcome.release, outcome.boot.as_secs_f64());
            host::step(format!("{title}: Linux {release} booted in {boot:.1} s"));
            guest.finish("did not end")
        }
        Err(error) => {
            // Reports the tests that ran before. The end of the machine is an additional failure.
            let (mut tests, cut_off) = guest.finish("was cut off");
            tests.push(no_machine(Verdict::Failed(format!("{error:#}")), Duration::ZERO));
            (tests, cut_off)
        }
    }
}

/// Runs a job in a machine.
fn run_in(guest: &mut Guest<'_>, target: &Target, job: &vm::Job) -> Result<vm::Outcome> {
    let mut pending = Vec::new();
    vm::run(&target.machine(), job, &mut |stream, bytes| {
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

/// Gets the name of a process that ended, and its judged results.
type Keep<'a> = &'a dyn Fn(&str, &[Ended]);

/// Parses the output of the guest's script.
#[derive(Default)]
struct Guest<'a> {
    title: &'a str,
    keep: Option<Keep<'a>>,
    features: Features,
    /// The name of the running process and its report so far.
    current: Option<(String, Suite)>,
    /// The names of the processes that ended.
    ended: Vec<String>,
    /// Those among them that did not run all their tests.
    cut_off: Vec<String>,
    tests: Vec<Ended>,
}

impl Guest<'_> {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix(BEGIN) {
            self.current = Some((name.to_owned(), Suite::default()));
        } else if let Some(code) = line.strip_prefix(END) {
            self.end(&format!("ended with {code}"));
        } else if let Some((_, suite)) = &mut self.current {
            report::take_line(line, self.title, true, suite);
        } else {
            self.features.add(line);
        }
    }

    /// Ends the running process.
    fn end(&mut self, how: &str) {
        if let Some((name, suite)) = self.current.take() {
            let group = name.split("::").next().unwrap_or_default();
            let is_complete = suite.is_complete();
            let mut tests = suite.finish(&name, group, how);
            self.features.judge(&mut tests);
            if !is_complete {
                self.cut_off.push(name.clone());
            } else if let Some(keep) = self.keep {
                keep(&name, &tests);
            }
            self.tests.extend(tests);
            self.ended.push(name);
        }
    }

    /// The results so far of the process that ran when the guest died. Tests that ran are failed.
    fn cut_off_by_death(&mut self) -> Vec<Ended> {
        let Some((name, suite)) = self.current.take() else { return Vec::new() };
        let group = name.split("::").next().unwrap_or_default();
        suite.finish(&name, group, "was cut off")
    }

    fn finish(mut self, how: &str) -> (Vec<Ended>, Vec<String>) {
        self.end(how);
        (self.tests, self.cut_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_script_runs_every_module_with_all_options() {
        let built = Built::of(&[("a", &["one", "two"]), ("b", &[])]);
        let options = Options { all: true, ..Options::default_for_tests() };
        let processes = selected(&built, &options);
        let job = job(&built, &processes);
        assert_eq!(job.command[..2], ["sh", "-c"]);
        let options = libtest::OPTIONS.join(" ");
        let path = |name: &str| host::root().join(vm::BIN).join(name).display().to_string();
        let lines: Vec<&str> = job.command[2].lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                format!("run a::one {} {options} --test-threads=1 one::", path("a-1")),
                format!("run a::two {} {options} --test-threads=1 two::", path("a-1")),
                format!("run b {} {options} --test-threads=1", path("b-1")),
            ]
        );
        assert_eq!(job.payload.len(), 3, "the tests' files and two binaries");
        let test = |binary: &str, name: &str| Ended {
            binary: binary.into(),
            name: name.into(),
            verdict: Verdict::Passed,
            time: Duration::ZERO,
        };
        let has = |test: &Ended| processes.iter().map(|process| process.has(test)).collect::<Vec<_>>();
        assert_eq!(has(&test("a", "two::below::x")), [false, true, false]);
        assert_eq!(has(&test("a", "(a::two)")), [false, false, false]);
        assert_eq!(has(&test("b", "x")), [false, false, true]);
        let mut echo = Command::new("echo");
        echo.arg("a word");
        let runs = [("x::y".to_owned(), echo), ("z".to_owned(), Command::new("false"))];
        let mut sh = Command::new("sh");
        let out =
            host::output(sh.args(["-c", &script(&runs)]).env("TRACER_BIN", "true").current_dir(host::root()))
                .unwrap();
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
        let (tests, cut_off) = guest.finish("was cut off");
        assert_eq!(cut_off, ["b::y"]);
        assert_eq!(tests[0].verdict, Verdict::Passed);
        assert_eq!((tests[0].binary.as_str(), tests[1].binary.as_str()), ("a", "b"));
        assert_eq!(tests[1].verdict, Verdict::Failed("b::y was cut off while this ran".into()));
        assert_eq!(tests.len(), 2);
    }
}
