//! `cargo xtask test`: lint, unit tests, and the integration tests on the host and in virtual machines.
//!
//! Without options it is what every change passes: the lint, all tests on the host, and a core of the integration tests
//! and of the kernel's own suite in a machine ([`scope`]). Cheap steps come first, and a step of the lint or of the unit
//! tests that fails ends the run. `--all` runs everything in all machines.
//!
//! The verb runs test binaries directly instead of through cargo. Host and guests therefore use the same binaries,
//! the same report and the same way to skip. Each module of an integration test runs in a separate process
//! ([`selection`]). While the host's tests build and run, the machines' kernels and roots are fetched. At most one
//! machine for each CPU runs at a time, because an emulated machine keeps a CPU busy.

mod binaries;
mod gate;
mod libtest;
mod machine;
mod matrix;
mod options;
mod report;
mod rerun;
mod scope;
mod selection;
mod skips;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::arch::Arch;
use crate::build::Profile;
use crate::setup::{self, Group};
use crate::{conformance, ebpf, fresh, host, lint, sources, vm};
use binaries::{Built, TestBinary};
use libtest::Suite;
use matrix::Plan;
use options::{LASTING, MACHINE_TIMEOUT, Target, parse_target};
use report::{Kind, Section};
use scope::Scope;
use selection::Groups;
use skips::Features;

pub(crate) use options::Options;

/// Runs a group of integration tests, or a module of one, in a machine with this kernel image. A skipped test counts
/// as failed there, because the kernel was built for the test.
pub(crate) fn on_image(image: &Path, program: &str) -> Result<ExitCode> {
    let target = parse_target(&image.to_string_lossy()).map_err(|error| anyhow!(error))?;
    setup::ensure(&[&[Group::Build, Group::Test], vm::groups(target.arch)].concat())?;
    let options = Options::of_machines(vec![program.to_owned()]);
    Groups::read(host::root())?.check(&options.program)?;
    let built = binaries::build(target.arch, Profile::Dev, false)?;
    let mut section = machine::run(&target, &built, &options, &Plan::default());
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

/// Runs a part of the lint if the plan wants it, else returns its kept results, if it belongs to the run.
fn planned(plan: &Plan, title: &str, run: impl FnOnce() -> Section) -> Option<Section> {
    if plan.wants(matrix::HERE, title) {
        let section = run();
        plan.keep(matrix::HERE, title, &section.tests);
        return Some(section);
    }
    let tests = plan.kept_of(matrix::HERE, |name| name == title);
    let kept = Section { tests, ..of_checks(title, Vec::new()) };
    (!kept.tests.is_empty()).then_some(kept)
}

/// Runs checks of the lint as tests, until the first failure.
fn linted(title: &str, kind: lint::Kind) -> Section {
    of_checks(title, lint::until_failure(&[kind]))
}

/// The results of the lint, as tests.
fn of_checks(title: &str, checks: Vec<lint::Checked>) -> Section {
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
        title: title.to_owned(),
        kind: match title {
            matrix::AUDIT => Kind::Audit,
            matrix::OBJECTS => Kind::Objects,
            _ => Kind::Lint,
        },
        tests: checks.into_iter().map(ended).collect(),
        time,
    }
}

/// Builds the checked-in eBPF objects and compares them, as a test.
fn rebuilt() -> Section {
    let start = Instant::now();
    let wrong = ebpf::check_or_write(true).err().map(|error| format!("{error:#}"));
    let what = matrix::OBJECTS.to_owned();
    of_checks(matrix::OBJECTS, vec![lint::Checked { what, wrong, skipped: None, time: start.elapsed() }])
}

/// Runs README's commands in the bare systems that the plan wants, and adds the kept results of others.
fn in_bare_systems(plan: &Plan) -> Section {
    let start = Instant::now();
    let mut tests = plan.kept_of(matrix::FRESH, |_| true);
    for system in fresh::systems() {
        let name = system.to_string();
        if !plan.wants(matrix::FRESH, &name) {
            continue;
        }
        let start = Instant::now();
        let verdict = match system.check() {
            Ok(line) => {
                eprintln!("{line}");
                libtest::Verdict::Passed
            }
            Err(error) => libtest::Verdict::Failed(format!("{error:#}")),
        };
        let test = libtest::Ended { binary: "fresh".to_owned(), name, verdict, time: start.elapsed() };
        plan.keep(matrix::FRESH, &test.name, std::slice::from_ref(&test));
        tests.push(test);
    }
    Section { title: "bare systems".to_owned(), kind: Kind::Fresh, tests, time: start.elapsed() }
}

/// Runs the verb `test`.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    let root = host::root();
    let groups = Groups::read(root)?;
    groups.check(&options.program)?;
    if !options.was_green {
        // Git among them, which is asked next.
        setup::ensure(&setup_groups(options)?)?;
    }
    // A change while the tests run must not count as tested.
    let checkout =
        gate::Checkout::of(root).inspect_err(|error| eprintln!("warning: no commit: {error:#}")).ok();
    let commit = checkout.as_ref().map_or("", gate::Checkout::commit).to_owned();
    let plan = if options.all {
        Plan::of_all(&groups, &options.targets(&commit)?, options.part, checkout.as_ref())?
    } else {
        Plan::default()
    };
    let (units, left) = plan.counts();
    if options.was_green {
        ensure!(left == 0, "{left} of {units} parts of `./x test --all` have not passed at this commit");
        println!(
            "{}",
            if options.all { format!("all {units} parts passed") } else { gate::was_green(root)? }
        );
        return Ok(ExitCode::SUCCESS);
    }
    if options.all {
        host::step(format!("{left} of {units} parts have not passed at this commit"));
    }
    if options.is_gate() {
        gate::forget(root)?;
    }
    let mut sections = run(options, &plan, &commit)?;
    if options.all {
        rerun::judge_flaky(root, &mut sections)?;
    }
    let (text, fine) = report::summary(&sections);
    if fine && options.is_gate() {
        match checkout.filter(gate::Checkout::is_unchanged) {
            Some(checkout) => gate::write(root, &checkout, &sections, host::elapsed())?,
            None => eprintln!("warning: no commit, or the tree has changed: target/gate.json is not written"),
        }
    }
    let minutes = host::elapsed().as_secs().div_ceil(60);
    print!("in {minutes} minutes with the builds\n{text}");
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a run needs.
fn setup_groups(options: &Options) -> Result<Vec<Group>> {
    let mut groups = vec![Group::Build, Group::Test];
    // The kernels of the gate are for the same architecture at every commit.
    for target in options.targets("")? {
        groups.extend(vm::groups(target.arch));
    }
    if options.wants_lint() {
        groups.push(Group::Lint);
    }
    if options.all {
        groups.extend([Group::Audit, Group::Objects, Group::Fresh]);
    }
    Ok(groups)
}

/// Runs the steps of a run. It ends early if a check of the lint or a unit test fails.
fn run(options: &Options, plan: &Plan, commit: &str) -> Result<Vec<Section>> {
    let targets = options.targets(commit)?;
    let mut sections = vec![Section::step("tools", host::elapsed())];
    if options.wants_lint() {
        // Before anything is fetched, because the end of the run waits for that.
        sections.extend(planned(plan, matrix::TEXTS, || linted(matrix::TEXTS, lint::Kind::Text)));
        if sections.iter().any(Section::has_failed) {
            return Ok(sections);
        }
    }
    std::thread::scope(|scope| {
        // One thread, because apt allows only one run at a time.
        let fetching = scope.spawn(|| {
            let programs = (!options.vm_only).then(sources::programs);
            (programs, prepared(&targets, options))
        });
        let start = Instant::now();
        let native = binaries::build(Arch::host()?, Profile::Dev, !options.vm_only && !options.integration)?;
        if options.wants_lint() {
            sections.push(of_build(&native, start.elapsed()));
            if sections.iter().any(Section::has_failed) {
                return Ok(sections);
            }
        } else {
            sections.push(Section::step(BUILD, start.elapsed()));
        }
        let (programs, fetched) = fetching.join().map_err(|_| anyhow!("fetching the machines panicked"))?;
        if let Some(programs) = programs {
            // A test that needs the programs reports that they are missing.
            let programs =
                programs.inspect_err(|error| eprintln!("warning: the kernel's programs: {error:#}"));
            sections.extend(on_host(&native, programs.ok().as_deref(), options, plan)?);
            if sections.iter().any(|section| section.title == UNIT_TESTS && section.has_failed()) {
                return Ok(sections);
            }
        }
        let targets = match fetched {
            Ok(targets) => targets,
            Err(error) => {
                sections.extend(targets.iter().map(|target| machine::failed(target, &error, Duration::ZERO)));
                return Ok(sections);
            }
        };
        // Before the machines run, because the compiler then takes several times as long.
        let start = Instant::now();
        let foreign = targets.iter().find(|target| target.arch.is_foreign());
        let foreign = foreign.map(|target| binaries::build(target.arch, Profile::Dev, false));
        if foreign.is_some() {
            sections.push(Section::step("building for another architecture", start.elapsed()));
        }
        let mut suites = Vec::new();
        for version in options.suites() {
            let part = match options.scope() {
                Scope::Core => conformance::Part::core(suite_machine(version)),
                Scope::Whole => conformance::Part::whole(suite_machine(version)),
            };
            match part {
                Ok(part) => suites.push(part),
                Err(error) => {
                    let verdict = libtest::Verdict::Failed(format!("{error:#}"));
                    let tests = vec![of_suite("(the sources)".to_owned(), verdict)];
                    sections.push(Section { tests, ..section_of_suite(version) });
                }
            }
        }
        sections.extend(on_machines(&targets, &suites, &native, foreign.as_ref(), options, plan));
        if options.all {
            let library = || linted(matrix::LIBRARY, lint::Kind::Library);
            sections.extend(planned(plan, matrix::LIBRARY, library));
            let audit = || linted(matrix::AUDIT, lint::Kind::Audit { online: false });
            sections.extend(planned(plan, matrix::AUDIT, audit));
            sections.extend(planned(plan, matrix::OBJECTS, rebuilt));
            sections.push(in_bare_systems(plan));
        }
        Ok(sections)
    })
}

/// The machines of a run, which are then ready. In the gate, another one takes the place of one whose kernel cannot be
/// had.
fn prepared(targets: &[Target], options: &Options) -> Result<Vec<Target>> {
    let prepare = |targets: &[Target]| targets.iter().try_for_each(|target| vm::prepare(&target.machine()));
    match prepare(targets) {
        Err(error) if options.is_gate() => {
            eprintln!("warning: {LASTING} in place of {}: {error:#}", targets[0].version);
            let other = vec![parse_target(LASTING)?];
            prepare(&other).map(|()| other)
        }
        done => done.map(|()| targets.to_vec()),
    }
}

/// Title of the build.
const BUILD: &str = "building the tests";

/// The result of a build by clippy's compiler: no warning may be left.
fn of_build(built: &Built, time: Duration) -> Section {
    let wrong = match built.warnings {
        _ if !built.is_linted => Some("the compiler's toolchain has no clippy-driver".to_owned()),
        0 => None,
        warnings => Some(format!("{warnings} warnings")),
    };
    of_checks(BUILD, vec![lint::Checked { what: "Clippy".to_owned(), wrong, skipped: None, time }])
}

/// Title of the unit tests.
const UNIT_TESTS: &str = "host, unit tests";

/// Runs unit tests, then integration tests, on the host.
fn on_host(built: &Built, programs: Option<&Path>, options: &Options, plan: &Plan) -> Result<Vec<Section>> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let section = |title: String| Section { title, kind: Kind::Host, ..Section::default() };
    let mut sections = Vec::new();
    if !options.integration {
        sections.push(unit_tests(section(UNIT_TESTS.to_owned()), built, options, plan)?);
        // The end of a run of all tests: unit tests are cheap, and do not fail by chance.
        if sections[0].has_failed() && !options.is_part() {
            return Ok(sections);
        }
    }
    let section = section(format!("host {}", release.trim()));
    sections.push(integration_tests(section, built, programs, options, plan)?);
    Ok(sections)
}

/// Runs the unit tests, or adds their kept results.
fn unit_tests(mut section: Section, built: &Built, options: &Options, plan: &Plan) -> Result<Section> {
    if !plan.wants(matrix::HERE, matrix::UNIT_TESTS) {
        section.tests = plan.kept_of(matrix::HERE, |name| name == matrix::UNIT_TESTS);
        return Ok(section);
    }
    host::step(format!("Testing: {}", section.title));
    let start = Instant::now();
    let features = Features::here(built.tracer()?, false)?;
    let binaries = built.tests.iter().filter(|binary| !binary.integration);
    for process in binaries.flat_map(TestBinary::processes).filter(|process| options.wants(process)) {
        let here = HostProcess {
            binary: process.binary,
            name: process.name(),
            title: &section.title,
            programs: None,
        };
        let (mut tests, _) = here.run(&process.arguments(&options.filter), false)?;
        features.judge(&mut tests);
        eprintln!("{:40} {} tests", process.binary.name, tests.len());
        section.tests.extend(tests);
    }
    plan.keep(matrix::HERE, matrix::UNIT_TESTS, &section.tests);
    section.time = start.elapsed();
    Ok(section)
}

/// Runs the integration tests, and adds the kept results of others. Failed tests then run again, alone.
fn integration_tests(
    mut section: Section,
    built: &Built,
    programs: Option<&Path>,
    options: &Options,
    plan: &Plan,
) -> Result<Section> {
    host::step(format!("Testing: {}", section.title));
    let start = Instant::now();
    let features = Features::here(built.tracer()?, true)?;
    section.tests = plan.kept_of(matrix::HERE, |name| !matrix::OTHER_UNITS.contains(&name));
    // The processes with failed tests, and the places of all their tests in the section.
    let mut failed = Vec::new();
    let binaries = built.tests.iter().filter(|binary| binary.integration);
    let processes = binaries.flat_map(TestBinary::processes).filter(|process| options.wants(process));
    for process in processes.filter(|process| plan.wants(matrix::HERE, &process.name())) {
        let name = process.name();
        let here =
            HostProcess { binary: process.binary, name: name.clone(), title: &section.title, programs };
        let (mut tests, is_complete) = here.run(&process.arguments(&options.filter), true)?;
        features.judge(&mut tests);
        plan.keep(matrix::HERE, &name, &tests);
        // After the death of a process, some of its tests did not run.
        if is_complete && tests.iter().any(rerun::is_wanted) {
            let first = section.tests.len();
            failed.push((process.binary, name, first..first + tests.len()));
        }
        section.tests.extend(tests);
    }
    for (binary, process, places) in failed {
        for test in section.tests[places.clone()].iter_mut().filter(|test| rerun::is_wanted(test)) {
            host::step(format!("Testing again: {}", test.name));
            let arguments = ["--exact", "--test-threads=1", &test.name].map(str::to_owned);
            let here = HostProcess { binary, name: binary.target.clone(), title: &section.title, programs };
            rerun::again(test, || Ok(here.run(&arguments, true)?.0))?;
        }
        plan.keep(matrix::HERE, &process, &section.tests[places]);
    }
    section.time = start.elapsed();
    Ok(section)
}

/// Waits until no other run executes integration tests on this host, also in a bare system, and keeps others waiting
/// until drop. The tests compare with the kernel's tracefs, whose triggers act on the hits of all processes.
fn alone() -> Option<File> {
    // All mounts of sysfs in a network namespace have the same inode of this directory.
    let shared = File::open("/sys/kernel").ok()?;
    if flock(&shared, FlockOperation::NonBlockingLockExclusive).is_err() {
        host::step("Waiting for the tests of another run");
        if let Err(error) = flock(&shared, FlockOperation::LockExclusive) {
            eprintln!("The tests of two runs may disturb each other: {error}");
        }
    }
    Some(shared)
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
        let _alone = if binary.integration { alone() } else { None };
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

/// Runs the integration tests on all machines, one for each CPU at a time. A machine that fails counts as a failed
/// test, and so does one whose tests do not build. The suites come last.
fn on_machines(
    targets: &[Target],
    suites: &[conformance::Part],
    native: &Built,
    foreign: Option<&Result<Built>>,
    options: &Options,
    plan: &Plan,
) -> Vec<Section> {
    let todo = Mutex::new(targets.iter().map(Work::Tests).chain(suites.iter().map(Work::Suite)));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cpus.min(targets.len() + suites.len()) {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let section = match next {
                        None => return,
                        Some(Work::Suite(part)) => conform(part, native, plan),
                        Some(Work::Tests(target)) => match foreign.filter(|_| target.arch.is_foreign()) {
                            Some(Err(error)) => machine::failed(target, error, Duration::ZERO),
                            Some(Ok(built)) => machine::run(target, built, options, plan),
                            None => machine::run(target, native, options, plan),
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

fn suite_machine(version: &str) -> vm::Machine {
    vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(version, Arch::X86_64) }
}

/// A section for the suite of a kernel, without cases.
fn section_of_suite(version: &str) -> Section {
    Section { title: format!("{version} suite"), kind: Kind::Suite(version.to_owned()), ..Section::default() }
}

/// Runs a kernel's own suite on the mirror, with each case as a test, and adds the kept results of others. Failed
/// cases run again in a fresh machine.
fn conform(part: &conformance::Part, built: &Built, plan: &Plan) -> Section {
    let start = Instant::now();
    let section = section_of_suite(part.version());
    let (title, place) = (&section.title, matrix::suite(part.version()));
    let kept = plan.kept_of(&place, |_| true);
    let part = part.of_directories(|directory| plan.wants(&place, directory));
    if part.is_empty() {
        return Section { tests: kept, ..section };
    }
    host::step(format!("Testing: {title}"));
    let (mut tests, mut machines) = (Vec::<libtest::Ended>::new(), Vec::new());
    for run in 0..=rerun::TIMES {
        let failed: Vec<&str> =
            tests.iter().filter(|test| rerun::is_wanted(test)).map(|test| &*test.name).collect();
        if !tests.is_empty() && failed.is_empty() {
            break;
        }
        let again = (!tests.is_empty()).then(|| part.only(&failed));
        match built.tracer().and_then(|tracer| again.as_ref().unwrap_or(&part).run(tracer.to_owned())) {
            Ok(cases) if tests.is_empty() => tests = cases.into_iter().map(ended).collect(),
            Ok(cases) => {
                let cases: Vec<libtest::Ended> = cases.into_iter().map(ended).collect();
                for test in &mut tests {
                    rerun::judge(test, &cases);
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                host::step(format!("{title}: {why}"));
                let is_last = run == rerun::TIMES || !error.is::<vm::GuestDied>();
                let verdict = if is_last { libtest::Verdict::Failed } else { libtest::Verdict::Flaky };
                machines.push(of_suite("(the machine)".to_owned(), verdict(why)));
                if is_last {
                    break;
                }
            }
        }
    }
    for directory in conformance::directories() {
        let is_there = |test: &&libtest::Ended| conformance::directory(&test.name) == directory;
        let tests: Vec<libtest::Ended> = tests.iter().filter(is_there).cloned().collect();
        plan.keep(&place, directory, &tests);
    }
    tests.extend(machines);
    tests.extend(kept);
    Section { tests, time: start.elapsed(), ..section }
}

/// A case of the suite as a test.
fn ended(case: conformance::Checked) -> libtest::Ended {
    of_suite(case.case, case.wrong.map_or(libtest::Verdict::Passed, libtest::Verdict::Failed))
}

fn of_suite(name: String, verdict: libtest::Verdict) -> libtest::Ended {
    libtest::Ended { binary: "ftracetest".to_owned(), name, verdict, time: Duration::ZERO }
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
        let section = of_checks("lint", vec![check("a", None), check("b", Some("no"))]);
        assert_eq!(section.time, Duration::from_secs(2));
        assert!(!report::summary(&[section]).1);
        assert!(report::summary(&[of_checks("lint", vec![check("a", None)])]).1);
        let built = |warnings, is_linted| Built { warnings, is_linted, ..Built::default() };
        assert!(!of_build(&built(0, true), Duration::ZERO).has_failed());
        assert!(of_build(&built(1, true), Duration::ZERO).has_failed());
        assert!(of_build(&built(0, false), Duration::ZERO).has_failed());
    }
}
