//! `cargo xtask test`: lint, unit tests, and the integration tests on the host and in virtual machines.
//!
//! The verb runs test binaries directly instead of through cargo. Host and guests therefore use the same binaries,
//! the same report and the same way to skip. Each module of an integration test runs in a separate process
//! ([`selection`]). While the host's tests build and run, the machines' kernels and roots are fetched. Then three
//! machines run at a time, because a test waits for a third of its time.

mod binaries;
mod libtest;
mod machine;
mod options;
mod report;
mod rerun;
mod selection;
mod skips;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::arch::Arch;
use crate::build::Profile;
use crate::setup::{self, Group};
use crate::{conformance, host, lint, sources, vm};
use binaries::{Built, TestBinary};
use libtest::Suite;
use options::{MACHINE_TIMEOUT, SUITE_OF, Target, parse_target};
use report::Section;
use selection::Groups;

pub(crate) use options::Options;

/// Number of machines that run at once.
const MACHINES_AT_ONCE: usize = 3;

/// Runs a group of integration tests, or a module of one, in a machine with this kernel image. A skipped test counts
/// as failed there, because the kernel was built for the test.
pub(crate) fn on_image(image: &Path, program: &str) -> Result<ExitCode> {
    let target = parse_target(&image.to_string_lossy()).map_err(|error| anyhow!(error))?;
    setup::ensure(&[&[Group::Build, Group::Test], vm::groups(target.arch)].concat())?;
    let options = Options::of_machines(vec![program.to_owned()]);
    Groups::read(host::root())?.check(&options.program)?;
    let built = binaries::build(target.arch, Profile::Dev, false)?;
    let mut section = machine::run(&target, &built, &options);
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
    Groups::read(host::root())?.check(&options.program)?;
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
        // One thread prepares all machines, because apt allows only one run at a time.
        let programs = (!options.vm_only).then(|| scope.spawn(sources::programs));
        let fetching = scope.spawn(|| targets.iter().try_for_each(|t| vm::prepare(&t.machine())));
        let mut sections = Vec::new();
        let profile = Profile::Dev;
        let native = binaries::build(Arch::host()?, profile, !options.vm_only && !options.integration)?;
        // Before the machines run, because the compiler then takes several times as long.
        let foreign = targets.iter().find(|target| target.arch.is_foreign());
        let foreign = foreign.map(|target| binaries::build(target.arch, Profile::Dev, false));
        if options.wants_lint() {
            sections.push(linted(lint::checks(&[])?));
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
    println!("in {} minutes with the builds", host::elapsed().as_secs().div_ceil(60));
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs unit tests, then integration tests, on the host. Failed integration tests then run again, alone.
fn on_host(built: &Built, programs: Option<&Path>, options: &Options) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    // The places of failed tests in the sections.
    let mut rerun = Vec::new();
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
        let binaries = built.tests.iter().filter(|binary| binary.integration == integration);
        for process in binaries.flat_map(TestBinary::processes).filter(|process| options.wants(process)) {
            let here =
                HostProcess { binary: process.binary, name: process.name(), title: &section.title, programs };
            let (tests, is_complete) = here.run(&process.arguments(&options.filter), integration)?;
            if !integration {
                eprintln!("{:40} {} tests", process.binary.name, tests.len());
            }
            for (place, test) in (section.tests.len()..).zip(&tests) {
                // After the death of a process, some of its tests did not run.
                if integration && is_complete && rerun::is_wanted(test) {
                    rerun.push((sections.len(), place, process.binary));
                }
            }
            section.tests.extend(tests);
        }
        section.time = start.elapsed();
        sections.push(section);
    }
    for (section, place, binary) in rerun {
        let (start, section) = (Instant::now(), &mut sections[section]);
        let test = &mut section.tests[place];
        host::step(format!("Testing again: {}", test.name));
        let arguments = ["--exact", "--test-threads=1", &test.name].map(str::to_owned);
        let here = HostProcess { binary, name: binary.target.clone(), title: &section.title, programs };
        rerun::again(test, || Ok(here.run(&arguments, true)?.0))?;
        section.time += start.elapsed();
    }
    Ok(sections)
}

/// Starts processes of a test binary on the host.
struct HostProcess<'a> {
    binary: &'a TestBinary,
    /// The process's name in messages.
    name: String,
    /// Title of the section.
    title: &'a str,
    /// Directory of the kernel's programs.
    programs: Option<&'a Path>,
}

impl HostProcess<'_> {
    /// Runs one process with arguments for the test harness; integration tests run as root. Shows the tests as they
    /// end: all of them if `show`, else those that did not pass. Returns the results, and whether the process lived
    /// until its last test.
    fn run(&self, arguments: &[String], show: bool) -> Result<(Vec<libtest::Ended>, bool)> {
        let binary = self.binary;
        let mut command = if binary.integration { host::as_root("env")? } else { Command::new("env") };
        host::strip_cargo_env(&mut command);
        command.arg("RUSTC_BOOTSTRAP=1");
        command.args(self.programs.map(|dir| format!("TRACER_KERNEL_PROGRAMS={}", dir.display())));
        command.arg(&binary.path).args(libtest::OPTIONS).args(arguments);
        command.current_dir(&binary.dir).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", binary.path.display()))?;
        let mut suite = Suite::default();
        for line in BufReader::new(child.stdout.take().expect("stdout is a pipe")).split(b'\n') {
            report::take_line(&String::from_utf8_lossy(&line?), self.title, show, &mut suite);
        }
        let status = child.wait()?;
        let is_complete = suite.is_complete();
        Ok((suite.finish(&self.name, &binary.target, &format!("ended with {status}")), is_complete))
    }
}

/// Runs the integration tests on all machines, [`MACHINES_AT_ONCE`] at a time. A machine that fails counts as a
/// failed test, and so does one whose tests do not build. The suite comes last.
fn on_machines(
    targets: &[Target],
    suite: Option<&conformance::Part>,
    native: &Built,
    foreign: Option<&Result<Built>>,
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
                        Some(Work::Tests(target)) => match foreign.filter(|_| target.arch.is_foreign()) {
                            Some(Err(error)) => machine::failed(target, error, Duration::ZERO),
                            Some(Ok(built)) => machine::run(target, built, options),
                            None => machine::run(target, native, options),
                        },
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
