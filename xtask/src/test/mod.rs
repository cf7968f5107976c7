//! `cargo xtask test`: lint, unit tests, and the integration tests on the host and in virtual machines.
//!
//! Test binaries are run directly and not through cargo. Host and guests therefore use the same binaries, the same
//! report and the same way to skip. While the host's tests build and run, the machines' kernels and roots are fetched.
//! Then three machines run at a time, because a test waits for a third of its time.

mod binaries;
mod libtest;
mod report;
mod skips;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::build::{Arch, Profile};
use crate::setup::{self, Group};
use crate::{conformance, host, lint, sources, vm};
use binaries::{Built, TestBinary};
use libtest::{Event, Suite};
use report::Section;

/// Number of machines that run at once.
const MACHINES_AT_ONCE: usize = 3;
/// A machine's time limit in seconds: emulation is 10 to 20 times slower than the host.
const MACHINE_TIMEOUT: u64 = 2700;
/// A machine runs every 13th of the generated test cases. The number is prime, so that no kind of case is always
/// omitted. The host runs all of them.
const MACHINE_PART: u32 = 13;
/// Number of lines of a failed test's output that are shown at once; the final report shows all of them.
const FIRST_LINES: usize = 20;
/// The kernel whose test suite is run on the mirror.
const SUITE_OF: &str = "6.12";
/// Prefixes of the lines with which the guest's script separates the binaries.
const BEGIN: &str = "@@ begin ";
const END: &str = "@@ end ";

/// A machine for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    version: String,
    arch: Arch,
}

impl Target {
    fn title(&self) -> String {
        format!("{} {}", self.version, self.arch.name())
    }

    /// Name of its list of skipped tests; `None` for an image's path.
    fn list(&self) -> Option<String> {
        (!self.version.contains('/')).then(|| format!("{}-{}", self.version, self.arch.name()))
    }

    fn machine(&self) -> vm::Machine {
        vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(&self.version, self.arch) }
    }
}

/// Parses `6.1`, `6.12` or `6.12-aarch64`, or the path of an image for this architecture.
fn parse_target(text: &str) -> Result<Target, String> {
    if text.contains('/') {
        return Ok(Target { version: text.to_owned(), arch: Arch::host().map_err(|e| e.to_string())? });
    }
    let (version, arch) = match text.split_once('-') {
        None => (text, Arch::host().map_err(|e| e.to_string())?),
        Some((version, "x86_64" | "amd64")) => (version, Arch::X86_64),
        Some((version, "aarch64" | "arm64")) => (version, Arch::Aarch64),
        Some((_, other)) => return Err(format!("unknown architecture {other}")),
    };
    let is_version = |v: &str| v.split('.').count() == 2 && v.split('.').all(|n| n.parse::<u32>().is_ok());
    if !is_version(version) {
        return Err(format!("{version} is not a kernel version such as 6.12"));
    }
    Ok(Target { version: version.to_owned(), arch })
}

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run no virtual machines
    #[arg(long)]
    host_only: bool,
    /// Run nothing on the host
    #[arg(long, conflicts_with = "host_only")]
    vm_only: bool,
    /// Run only these machines, such as 6.1,6.12,6.12-aarch64 (the default), or an image's path
    #[arg(long, value_delimiter = ',', value_parser = parse_target, value_name = "VERSION[-ARCH]")]
    vm: Vec<Target>,
    /// Run only the integration tests, and no lint
    #[arg(long)]
    integration: bool,
    /// Run only the test programs with these names, such as user_differential
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    program: Vec<String>,
    /// Run only tests whose names contain one of these
    filter: Vec<String>,
}

impl Options {
    /// Whether the lint runs; a partial run omits it.
    fn wants_lint(&self) -> bool {
        !self.vm_only && !self.integration && !self.is_part()
    }

    /// Whether only some of the tests are selected.
    fn is_part(&self) -> bool {
        !self.filter.is_empty() || !self.program.is_empty()
    }

    /// Whether the tests of a binary are selected.
    fn wants(&self, binary: &TestBinary) -> bool {
        let is_it = |name: &String| binary.name.rsplit(' ').next() == Some(name);
        self.program.is_empty() || self.program.iter().any(is_it)
    }

    /// Whether the kernel's own suite runs; it needs the machine that it is written for.
    fn wants_suite(&self, targets: &[Target]) -> bool {
        let has = targets.iter().any(|t| t.version == SUITE_OF && !t.arch.is_foreign());
        has && !self.is_part() && !self.integration
    }

    fn targets(&self) -> Result<Vec<Target>> {
        if self.host_only {
            return Ok(Vec::new());
        }
        if !self.vm.is_empty() {
            return Ok(self.vm.clone());
        }
        let all = ["6.1-x86_64", "6.12-x86_64", "6.12-aarch64"];
        all.into_iter().map(|t| parse_target(t).map_err(|e| anyhow!(e))).collect()
    }
}

/// Runs one integration test program in a machine with this kernel image. A skipped test counts as failed there,
/// because the kernel was built for the test.
pub(crate) fn on_image(image: &Path, program: &str) -> Result<ExitCode> {
    let target = parse_target(&image.to_string_lossy()).map_err(|error| anyhow!(error))?;
    setup::ensure(&[&[Group::Build, Group::Test], vm::groups(target.arch)].concat())?;
    let options = Options {
        host_only: false,
        vm_only: true,
        vm: Vec::new(),
        integration: true,
        program: vec![program.to_owned()],
        filter: Vec::new(),
    };
    let built = binaries::build(target.arch, Profile::Emulated, false)?;
    let mut section = on_machine(&target, &built, &options);
    for test in &mut section.tests {
        if let libtest::Verdict::Skipped(reason) = &test.verdict {
            test.verdict = libtest::Verdict::Failed(format!("skipped: {reason}"));
        }
    }
    ensure!(!section.tests.is_empty(), "no test of {program} ran");
    let (text, fine) = report::summary(&[section]);
    print!("{text}");
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of the lint, as tests.
fn linted(checks: Vec<lint::Checked>) -> Section {
    let time = checks.iter().map(|check| check.time).sum();
    let ended = |check: lint::Checked| libtest::Ended {
        binary: "lint".to_owned(),
        name: check.what,
        verdict: match (check.wrong, check.skipped) {
            (Some(wrong), _) => libtest::Verdict::Failed(wrong),
            (None, Some(why)) => libtest::Verdict::Skipped(why),
            (None, None) => libtest::Verdict::Passed,
        },
        time: check.time,
    };
    Section {
        title: "lint".to_owned(),
        tests: checks.into_iter().map(ended).collect(),
        time,
        ..Section::default()
    }
}

/// Runs the verb `test`.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    let targets = options.targets()?;
    let mut groups = vec![Group::Build, Group::Test];
    for target in &targets {
        groups.extend(vm::groups(target.arch));
    }
    if options.wants_lint() {
        groups.push(Group::Lint);
    }
    if options.wants_suite(&targets) {
        groups.push(Group::Conformance);
    }
    setup::ensure(&groups)?;
    let mut sections = std::thread::scope(|scope| -> Result<Vec<Section>> {
        // apt runs only one at a time anyway.
        let programs = (!options.vm_only).then(|| scope.spawn(sources::programs));
        let fetching = scope.spawn(|| targets.iter().try_for_each(|t| vm::prepare(&t.machine())));
        let mut sections = Vec::new();
        let profile = if targets.is_empty() { Profile::Dev } else { Profile::Emulated };
        let native = binaries::build(Arch::host()?, profile, !options.vm_only && !options.integration)?;
        if options.wants_lint() {
            sections.push(linted(lint::checks()?));
        }
        if !options.vm_only {
            let programs = programs.map(|thread| {
                let unpacked = thread.join().unwrap_or_else(|_| Err(anyhow!("unpacking them panicked")));
                // A test that needs the programs reports that they are missing.
                unpacked.inspect_err(|error| eprintln!("warning: the kernel's programs: {error:#}")).ok()
            });
            let programs = programs.flatten();
            sections.extend(on_host(&native, programs.as_deref(), options)?);
        }
        let foreign = targets
            .iter()
            .find(|t| t.arch.is_foreign())
            .map(|t| binaries::build(t.arch, Profile::Emulated, false))
            .transpose()?;
        fetching.join().map_err(|_| anyhow!("fetching the machines panicked"))??;
        let suite = options
            .wants_suite(&targets)
            .then(|| conformance::Part::of_commit(suite_machine()))
            .transpose()?;
        sections.extend(on_machines(&targets, suite.as_ref(), &native, foreign.as_ref(), options));
        Ok(sections)
    })?;
    let said = skips::judge(host::root(), &mut sections, !options.is_part())?;
    let (text, fine) = report::summary(&sections);
    print!("{said}{text}");
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs unit tests, then integration tests, on the host.
fn on_host(built: &Built, programs: Option<&Path>, options: &Options) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The first two numbers: 6.18 of 6.18.5-generic.
    let series: Vec<&str> = release.trim().splitn(3, ['.', '-']).take(2).collect();
    let machine = Some(format!("host-{}", series.join(".")));
    let parts = [(false, "host, unit tests".to_owned()), (true, format!("host {}", release.trim()))];
    for (integration, title) in parts {
        if options.integration && !integration {
            continue;
        }
        host::step(format!("Testing: {title}"));
        let start = Instant::now();
        let mut section = Section { title, machine: machine.clone(), ..Section::default() };
        for binary in built.tests.iter().filter(|b| b.integration == integration && options.wants(b)) {
            let tests = run_here(binary, integration, &section.title, programs, options)?;
            if !integration {
                eprintln!("{:40} {} tests", binary.name, tests.len());
            }
            section.tests.extend(tests);
        }
        section.time = start.elapsed();
        sections.push(section);
    }
    Ok(sections)
}

/// Runs one binary on the host; integration tests run as root.
fn run_here(
    binary: &TestBinary,
    root: bool,
    title: &str,
    programs: Option<&Path>,
    options: &Options,
) -> Result<Vec<libtest::Ended>> {
    let mut command = if root { host::as_root("env")? } else { Command::new("env") };
    host::strip_cargo_env(&mut command);
    command.arg("RUSTC_BOOTSTRAP=1");
    command.args(programs.map(|dir| format!("TRACER_KERNEL_PROGRAMS={}", dir.display())));
    command.arg(&binary.path).args(libtest::OPTIONS).args(&options.filter);
    command.current_dir(&binary.dir).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", binary.path.display()))?;
    let mut suite = Suite::default();
    for line in BufReader::new(child.stdout.take().expect("stdout is a pipe")).split(b'\n') {
        take_line(&String::from_utf8_lossy(&line?), title, root, &mut suite);
    }
    let status = child.wait()?;
    Ok(suite.finish(&binary.name, &skips::binary_name(&binary.path), &format!("ended with {status}")))
}

/// Parses a line of a binary's report. Shows tests as they end: all of them if `show`, else those that did not pass.
fn take_line(line: &str, title: &str, show: bool, suite: &mut Suite) {
    let event = libtest::parse(line);
    if let Event::Ended(test) = &event
        && (show || test.verdict != libtest::Verdict::Passed)
    {
        eprintln!("{}", report::line(title, test));
        // Print it now as well: an interrupted run does not reach the final report.
        if let libtest::Verdict::Failed(output) = &test.verdict {
            output.lines().take(FIRST_LINES).for_each(|line| eprintln!("    {line}"));
        }
    }
    suite.take(event);
}

/// Runs the integration tests on all machines, a few machines at a time. A machine that fails counts as a failed test.
fn on_machines(
    targets: &[Target],
    suite: Option<&conformance::Part>,
    native: &Built,
    foreign: Option<&Built>,
    options: &Options,
) -> Vec<Section> {
    let todo = Mutex::new(targets.iter().map(Work::Tests).chain(suite.map(Work::Suite)));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..MACHINES_AT_ONCE.min(targets.len() + usize::from(suite.is_some())) {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let section = match next {
                        None => return,
                        Some(Work::Suite(part)) => conform(part, native),
                        Some(Work::Tests(target)) => {
                            let built =
                                if target.arch.is_foreign() { foreign.unwrap_or(native) } else { native };
                            on_machine(target, built, options)
                        }
                    };
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(section);
                }
            });
        }
    });
    let mut sections = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |s: &Section| targets.iter().position(|t| s.title == t.title()).unwrap_or(targets.len());
    sections.sort_by_key(place);
    sections
}

/// The purpose of a machine.
enum Work<'a> {
    /// The integration tests.
    Tests(&'a Target),
    /// A part of the kernel's own suite.
    Suite(&'a conformance::Part),
}

fn suite_machine() -> vm::Machine {
    vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(SUITE_OF, Arch::X86_64) }
}

/// Runs the kernel's own suite on the mirror, with each case as a test.
fn conform(part: &conformance::Part, built: &Built) -> Section {
    let start = Instant::now();
    let title = part.title();
    host::step(format!("Testing: {title}"));
    let tracer = built.programs.iter().find(|p| p.file_name().is_some_and(|name| name == "tracer"));
    let ran = tracer.context("no tracer was built").and_then(|tracer| part.run(tracer.clone()));
    let ended = |name: String, wrong: Option<String>| {
        let verdict = wrong.map_or(libtest::Verdict::Passed, libtest::Verdict::Failed);
        libtest::Ended { binary: "ftracetest".to_owned(), name, verdict, time: Duration::ZERO }
    };
    let tests = match ran {
        Ok(cases) => cases.into_iter().map(|case| ended(case.case, case.wrong)).collect(),
        Err(error) => vec![ended("(the machine)".to_owned(), Some(format!("{error:#}")))],
    };
    Section { title, machine: None, tests, time: start.elapsed() }
}

fn on_machine(target: &Target, built: &Built, options: &Options) -> Section {
    let start = Instant::now();
    let title = target.title();
    host::step(format!("Testing: {title}"));
    let tests = match try_machine(target, &title, built, options) {
        Ok(tests) => tests,
        Err(error) => {
            let verdict = libtest::Verdict::Failed(format!("{error:#}"));
            vec![no_machine(verdict, start.elapsed())]
        }
    };
    Section { title, machine: target.list(), tests, time: start.elapsed() }
}

/// A result in place of the tests of a machine that could not run them.
fn no_machine(verdict: libtest::Verdict, time: Duration) -> libtest::Ended {
    libtest::Ended { binary: "machine".to_owned(), name: "(the machine)".to_owned(), verdict, time }
}

/// The guest path of a host path: the tree has the same path there.
fn in_guest(path: &Path) -> PathBuf {
    path.strip_prefix(host::root())
        .map_or_else(|_| Path::new(vm::BIN).join(path.file_name().unwrap_or_default()), Path::to_path_buf)
}

/// A shell script that runs each binary with the script's own arguments. Paths may contain any character but a new line.
fn script(binaries: impl Iterator<Item = String>) -> String {
    let run = |binary: String| {
        let quoted = vm::quote(&binary);
        format!("echo {BEGIN:?}{quoted}; {quoted} \"$@\"; code=$?; echo; echo {END:?}$code\n")
    };
    binaries.map(run).collect()
}

/// The job that runs every selected integration test of `built` that suits the machine.
fn job(target: &Target, built: &Built, options: &Options) -> vm::Job {
    let root = host::root();
    let left_out =
        |binary: &TestBinary| !options.is_part() && !binary.is_for_machines(target.arch.is_foreign());
    let wanted = |binary: &&TestBinary| binary.integration && options.wants(binary) && !left_out(binary);
    let tests: Vec<&TestBinary> = built.tests.iter().filter(wanted).collect();
    let mut payload: Vec<(PathBuf, PathBuf)> = vec![(root.join("tests"), PathBuf::from("tests"))];
    payload.extend(tests.iter().map(|t| &t.path).chain(&built.programs).map(|p| (p.clone(), in_guest(p))));
    let binaries = tests.iter().map(|t| root.join(in_guest(&t.path)).to_string_lossy().into_owned());
    let script = format!("cd tests || exit 127; {}", script(binaries));
    // The arguments that all binaries get.
    let mut command = vec!["sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()];
    command.extend(libtest::OPTIONS.map(str::to_owned));
    command.push("--test-threads=1".to_owned());
    command.extend(options.filter.iter().cloned());
    let mut env = vec![("RUSTC_BOOTSTRAP".to_owned(), "1".to_owned())];
    // On a disk, as on the host; `/tmp` is not.
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

fn try_machine(
    target: &Target,
    title: &str,
    built: &Built,
    options: &Options,
) -> Result<Vec<libtest::Ended>> {
    let mut guest = Guest { title, ..Guest::default() };
    let mut pending = Vec::new();
    let ran = vm::run(&target.machine(), &job(target, built, options), &mut |stream, bytes| {
        if stream == vm::Stream::Out {
            pending.extend_from_slice(bytes);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                guest.line(String::from_utf8_lossy(&line).trim_end_matches('\n'));
            }
        } else {
            vm::pass_on(stream, bytes);
        }
    });
    let outcome = match ran {
        Ok(outcome) => outcome,
        Err(error) => {
            // The tests that ran until then are reported; the death itself is the failure.
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

/// Parses the output of the guest's script.
#[derive(Debug, Default)]
struct Guest<'a> {
    title: &'a str,
    /// The running binary and its report so far.
    current: Option<(String, Suite)>,
    tests: Vec<libtest::Ended>,
}

impl Guest<'_> {
    fn line(&mut self, line: &str) {
        if let Some(binary) = line.strip_prefix(BEGIN) {
            self.current = Some((binary.to_owned(), Suite::default()));
        } else if let Some(code) = line.strip_prefix(END) {
            if let Some((binary, suite)) = self.current.take() {
                let name = skips::binary_name(Path::new(&binary));
                self.tests.extend(suite.finish(&binary, &name, &format!("ended with {code}")));
            }
        } else if let Some((_, suite)) = &mut self.current {
            take_line(line, self.title, true, suite);
        }
    }

    fn finish(mut self, how: &str) -> Vec<libtest::Ended> {
        if let Some((binary, suite)) = self.current.take() {
            let name = skips::binary_name(Path::new(&binary));
            self.tests.extend(suite.finish(&binary, &name, how));
        }
        self.tests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libtest::Verdict;

    #[test]
    fn targets_are_read() {
        let arm = Target { version: "6.12".into(), arch: Arch::Aarch64 };
        assert_eq!(parse_target("6.12-aarch64").unwrap(), arm);
        assert_eq!(parse_target("6.12-arm64").unwrap(), arm);
        assert_eq!(parse_target("6.1").unwrap().arch, Arch::host().unwrap());
        for bad in ["", "six", "6", "6.1.2", "6.12-mips"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lint_belongs_to_the_whole_run_and_fails_it() {
        let whole = Options::default_for_tests();
        assert!(whole.wants_lint());
        assert!(!Options { integration: true, ..Options::default_for_tests() }.wants_lint());
        assert!(!Options { filter: vec!["x".into()], ..whole }.wants_lint());
        let check = |what: &str, wrong: Option<&str>| lint::Checked {
            what: what.into(),
            wrong: wrong.map(str::to_owned),
            skipped: None,
            time: Duration::from_secs(1),
        };
        let section = linted(vec![check("a", None), check("b", Some("no"))]);
        assert_eq!(section.time, Duration::from_secs(2));
        assert!(!report::summary(&[section]).1);
        assert!(report::summary(&[linted(vec![check("a", None)])]).1);
    }

    #[test]
    fn the_guests_script_runs_every_binary_with_all_options() {
        let test = |path: &str| TestBinary {
            name: path.into(),
            path: path.into(),
            dir: "/".into(),
            integration: true,
        };
        let built = Built { tests: vec![test("/x/a"), test("/x/b")], programs: Vec::new() };
        let target = parse_target("6.12-x86_64").unwrap();
        let command = job(&target, &built, &Options::default_for_tests()).command;
        let (a, b) = (host::root().join(vm::BIN).join("a"), host::root().join(vm::BIN).join("b"));
        let of = |binaries: &[&Path]| script(binaries.iter().map(|b| b.to_str().unwrap().to_owned()));
        assert_eq!(command[2], format!("cd tests || exit 127; {}", of(&[&a, &b])));
        // The same with binaries that exist on every machine, and with a path that has spaces and a quote.
        let run = |binaries: &[&Path]| {
            let script = of(binaries);
            host::output(Command::new("sh").args(["-c", &script]).args(&command[3..])).unwrap()
        };
        let place = std::env::temp_dir().join(format!("xtask it's a place-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let odd = place.join("odd");
        std::os::unix::fs::symlink(host::which("false").unwrap(), &odd).unwrap();
        let said = run(&[&odd]);
        std::fs::remove_dir_all(place).unwrap();
        assert_eq!(said, format!("@@ begin {}\n\n@@ end 1\n", odd.display()));
        let out = run(&[Path::new("echo"), Path::new("false")]);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "@@ begin echo");
        assert!(lines[1].starts_with("-Z unstable-options --format json"), "{out}");
        assert_eq!(lines[3..], ["@@ end 0", "@@ begin false", "", "@@ end 1"], "{out}");
    }

    #[test]
    fn a_guest_that_dies_fails_its_test() {
        let mut guest = Guest::default();
        for line in [
            "@@ begin /x/a",
            r#"{ "type": "test", "event": "started", "name": "one" }"#,
            r#"{ "type": "test", "event": "ok", "name": "one" }"#,
            r#"{ "type": "suite", "event": "ok" }"#,
            "@@ end 0",
            "@@ begin /x/b",
            r#"{ "type": "test", "event": "started", "name": "two" }"#,
        ] {
            guest.line(line);
        }
        let tests = guest.finish("was cut off");
        assert_eq!(tests[0].verdict, Verdict::Passed);
        assert_eq!(tests[1].verdict, Verdict::Failed("/x/b was cut off while this ran".into()));
        assert_eq!(tests.len(), 2);
    }

    impl Options {
        fn default_for_tests() -> Self {
            Self {
                host_only: true,
                vm_only: false,
                vm: Vec::new(),
                integration: false,
                program: Vec::new(),
                filter: Vec::new(),
            }
        }
    }
}
