//! `cargo xtask conformance`: the kernel's own test suite for tracefs, run in a virtual machine or on this host.
//!
//! The suite (`tools/testing/selftests/ftrace`) is in Debian's `linux-source` package and is never committed. By
//! default it tests the guest kernel's tracefs, which is the reference. With `--mirror` it tests the mirror that
//! `tracer mount` serves in the guest, with tracefs unmounted. With `--host` it tests the mirror of `tracer exec` on
//! this machine. All logs are in `target/conformance`. The expected result of each case on the mirror is committed
//! ([`baseline`]). A test run takes the core of the suite or all of it ([`selection`]), and fails on any different
//! result.

mod baseline;
mod selection;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::arch::Arch;
use crate::build::{self, Profile};
use crate::setup::{self, Group};
use crate::{host, sources, vm};
use baseline::Baseline;
pub(crate) use selection::directories;

/// The default directories, which every supported kernel passes.
const DIRS: [&str; 5] = ["00basic", "event", "filter", "instances", "trigger"];
/// Path of the suite in the kernel's tree.
const SUITE: &str = "tools/testing/selftests/ftrace";
/// Directory of the logs in the guest.
const LOGS: &str = "/var/tmp/ftracetest";

/// Options of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Options {
    #[command(flatten)]
    machine: vm::Machine,
    /// Judge the mirror of `tracer mount` instead of the kernel's tracefs
    #[arg(long)]
    mirror: bool,
    /// Judge the mirror with the language and files of the newest kernel (`tracer mount --language=newest`)
    #[arg(long, requires = "mirror")]
    newest: bool,
    /// Take the suite of this kernel version instead of the machine's
    #[arg(long, value_name = "VERSION")]
    suite: Option<String>,
    /// Judge the mirror on this machine, in `tracer exec`: the suite traces the activity of this machine
    #[arg(long, conflicts_with = "mirror")]
    host: bool,
    /// Include the kernel's sample modules, built with Debian's headers, for the cases that load them
    #[arg(long, conflicts_with = "host")]
    modules: bool,
    /// Save the results as the expected ones (tests/conformance)
    #[arg(long)]
    bless: bool,
    /// Run only the core, as `cargo xtask test` does
    #[arg(long, conflicts_with = "tests")]
    core: bool,
    /// Directories or files below the suite's test.d (default: 00basic event filter instances trigger)
    tests: Vec<String>,
}

/// Shell script: runs the suite `$@`.
const KERNEL: &str = "cd ftrace && exec \"$@\"";
/// Shell script: copies the sample modules to a directory that modprobe searches.
const MODULES: &str = "to=/tmp/samples/lib/modules/$(uname -r); mkdir -p $to; cp modules/*.ko $to; depmod -b /tmp/samples; \
    export MODPROBE_OPTIONS='-d /tmp/samples'; ";
/// Shell script: mounts the mirror in place of every tracefs, then runs the suite `$@`, which uses the first mount of
/// type tracefs. Cases access /sys/kernel/tracing and debugfs directly. The mirror is mounted first, so that it finds
/// no tracefs there.
const MIRROR: &str = "while umount $(grep -m 1 tracefs /proc/mounts | cut -d ' ' -f 2) 2>/dev/null; do :; done; \
    umount /sys/kernel/debug 2>/dev/null; tracer mount --language=\"$LANGUAGE\" /run/tracer/tracing & \
    for i in $(seq 1200); do grep -q '^tracefs ' /proc/mounts && break; sleep 0.1; done; \
    mount --bind /run/tracer/tracing /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug; \
    cd ftrace && \"$@\"; code=$?; umount /sys/kernel/tracing; umount /run/tracer/tracing; wait; exit $code";

/// One case's result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Case {
    number: u32,
    /// The description in the suite's output.
    description: String,
    /// `PASS`, `FAIL`, `XFAIL` ...
    result: String,
}

/// Parses `[7] (instance) Event tracing\t[PASS]`.
fn parse_case(line: &str) -> Option<Case> {
    let (number, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (description, result) = rest.trim_end().rsplit_once("\t[")?;
    Some(Case {
        number: number.parse().ok()?,
        description: description.trim().to_owned(),
        result: result.strip_suffix(']')?.to_owned(),
    })
}

/// The case's number and file from the name of its log, `7-event-enable.tc-log.Ab12Cd`.
fn parse_log_name(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.split_once('-')?;
    let (file, _) = rest.rsplit_once("-log.")?;
    Some((number.parse().ok()?, file))
}

/// Whether a result indicates an error of the kernel or of the suite.
fn is_bad(result: &str) -> bool {
    !matches!(result, "PASS" | "XFAIL" | "UNRESOLVED" | "UNSUPPORTED" | "UNTESTED")
}

/// The suite of a kernel version, unpacked once into the cache.
fn suite(version: &str) -> Result<PathBuf> {
    Ok(sources::tests_of(version)?.join(SUITE))
}

/// Runs the verb `conformance`.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    let of_host: &[Group] = &[Group::Build, Group::Test];
    let of_modules: &[Group] = if options.modules { &[Group::Kernel] } else { &[] };
    let of_machine = if options.host { of_host } else { vm::groups(options.machine.arch) };
    setup::ensure(&[of_machine, of_modules].concat())?;
    let machine = &options.machine;
    let version = options.suite.as_ref().unwrap_or(&machine.version);
    let suite = suite(version)?;
    let tests = match (options.core, options.tests.is_empty()) {
        (true, _) => selection::core(),
        (false, true) => DIRS.map(str::to_owned).to_vec(),
        (false, false) => options.tests.clone(),
    };
    for test in &tests {
        if !suite.join("test.d").join(test).exists() {
            bail!("the suite has no test.d/{test}");
        }
    }
    let of = options.suite.as_ref().map_or_else(String::new, |version| format!("-suite-{version}"));
    let whose = match (options.host, options.mirror) {
        (true, _) => format!("{}-host{of}", version_here()?),
        (_, mirror) => {
            let whose = if mirror { "mirror" } else { "kernel" };
            let newest = if options.newest { "-newest" } else { "" };
            let machine_name = format!("{}-{}", machine.version.replace('/', "-"), machine.arch.name());
            format!("{machine_name}-{whose}{newest}{of}")
        }
    };
    let run = if options.host {
        here(&suite, &tests, &logs(&whose)?)?
    } else {
        let tracer =
            options.mirror.then(|| build::tracer(machine.arch, Profile::Release, false)).transpose()?;
        let mirror = tracer.map(|tracer| Mirror { tracer, is_newest: options.newest });
        in_machine(machine, &suite, &tests, mirror, options.modules, &logs(&whose)?)?
    };
    print!("{}", run.table());
    println!("Linux {}, {:.0} s; logs in {}", run.release, run.time.as_secs_f64(), run.logs.display());
    let path = baseline::path(&whose);
    let results = run.by_case(&suite)?;
    let known = Baseline::read(&path)?;
    if options.bless {
        let mut known = known.unwrap_or_default();
        known.bless(&results);
        std::fs::create_dir_all(path.parent().context("a directory")?)?;
        std::fs::write(&path, known.text())?;
        println!("{} cases kept in {}", results.len(), path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(known) = known else {
        return Ok(if run.has_bad() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    };
    let differ: Vec<Checked> = check(&known, &files(&suite, &tests)?, &results)
        .into_iter()
        .filter(|case| case.wrong.is_some())
        .collect();
    for Checked { case, wrong, .. } in &differ {
        println!("{case}: {}", wrong.as_deref().unwrap_or_default());
    }
    println!("{} of {} differ from {}", differ.len(), results.len(), path.display());
    Ok(if differ.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A case, compared with its expected result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Its file below `test.d`, and whether it ran in an instance.
    pub(crate) case: String,
    /// The difference, if any.
    pub(crate) wrong: Option<String>,
}

/// Compares results with a baseline: each case of these files must have the committed result, and each committed case
/// must have run.
fn check(known: &Baseline, files: &[String], results: &BTreeMap<String, String>) -> Vec<Checked> {
    let mut checked: Vec<Checked> = results
        .iter()
        .map(|(case, result)| {
            let wrong = match known.expected(case) {
                Some(expected) if expected == result => None,
                Some(expected) => Some(format!("{result}, where {expected} is expected")),
                None => Some(format!("{result}, and nothing is known of this case (--bless)")),
            };
            Checked { case: case.clone(), wrong }
        })
        .collect();
    checked.extend(
        known
            .missing(files, results)
            .map(|case| Checked { case: case.to_owned(), wrong: Some("it did not run".to_owned()) }),
    );
    checked
}

/// The files below `test.d` that the suite runs for these arguments (files or directories).
fn files(suite: &Path, tests: &[String]) -> Result<Vec<String>> {
    let is_meant = |file: &String| {
        tests.iter().any(|test| {
            file == test
                || file.strip_prefix(test.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
        })
    };
    Ok(selection::in_scope(suite)?.into_iter().filter(is_meant).collect())
}

/// The part of the suite that a test run executes on the mirror in a machine.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    machine: vm::Machine,
    suite: PathBuf,
    /// Files below `test.d`.
    tests: Vec<String>,
}

impl Part {
    /// The cases that every run takes.
    pub(crate) fn core(machine: vm::Machine) -> Result<Self> {
        Ok(Self { suite: suite(&machine.version)?, tests: selection::core(), machine })
    }

    /// All cases in scope.
    pub(crate) fn whole(machine: vm::Machine) -> Result<Self> {
        let suite = suite(&machine.version)?;
        Ok(Self { tests: selection::in_scope(&suite)?, suite, machine })
    }

    /// Only the files of a directory that `is_wanted` selects by name.
    pub(crate) fn of_directories(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let tests = self.tests.iter().filter(|file| is_wanted(directory(file))).cloned().collect();
        Self { tests, ..self.clone() }
    }

    /// The version of the kernel.
    pub(crate) fn version(&self) -> &str {
        &self.machine.version
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }

    /// Only the files of these cases.
    pub(crate) fn only(&self, cases: &[&str]) -> Self {
        let is_wanted = |file: &&String| cases.iter().any(|case| baseline::file(case) == *file);
        Self { tests: self.tests.iter().filter(is_wanted).cloned().collect(), ..self.clone() }
    }

    /// Runs the part with this `tracer`.
    pub(crate) fn run(&self, tracer: PathBuf) -> Result<Vec<Checked>> {
        let whose = format!("{}-{}-mirror", self.machine.version, self.machine.arch.name());
        let known = Baseline::read(&baseline::path(&whose))?.context("no baseline is committed")?;
        let logs = logs(&format!("{whose}-test"))?;
        let mirror = Mirror { tracer, is_newest: false };
        let run = in_machine(&self.machine, &self.suite, &self.tests, Some(mirror), false, &logs)?;
        Ok(check(&known, &self.tests, &run.by_case(&self.suite)?))
    }
}

/// The directory of a file below `test.d`, or of a case.
pub(crate) fn directory(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The version of the running kernel, such as 6.18.
fn version_here() -> Result<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.split('.').take(2).collect::<Vec<_>>().join("."))
}

/// Creates an empty directory for a run's logs.
fn logs(whose: &str) -> Result<PathBuf> {
    let logs = host::root().join("target/conformance").join(whose);
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    Ok(logs)
}

/// The mirror that a machine mounts in place of tracefs.
struct Mirror {
    tracer: PathBuf,
    /// Whether it has the language and files of the newest kernel.
    is_newest: bool,
}

/// Compiles the suite's program that waits for a file, beside the logs. Suites before 6.14 have none.
fn poll(suite: &Path, logs: &Path) -> Result<Option<PathBuf>> {
    let source = suite.join("poll.c");
    if !source.exists() {
        return Ok(None);
    }
    let mut program = logs.as_os_str().to_owned();
    program.push(".poll");
    let status = Command::new("cc").args(["-static", "-O2", "-o"]).arg(&program).arg(&source).status();
    ensure!(status.context("cc")?.success(), "cc fails at {}", source.display());
    Ok(Some(program.into()))
}

fn in_machine(
    machine: &vm::Machine,
    suite: &Path,
    tests: &[String],
    mirror: Option<Mirror>,
    modules: bool,
    logs: &Path,
) -> Result<Run> {
    let mut command = ["./ftracetest", "--keep", "--logdir", LOGS].map(str::to_owned).to_vec();
    command.extend(tests.iter().map(|test| format!("test.d/{test}")));
    let mut payload = vec![(suite.to_owned(), PathBuf::from("ftrace"))];
    if machine.arch == Arch::host()? {
        payload.extend(poll(suite, logs)?.map(|poll| (poll, PathBuf::from("ftrace/poll"))));
    }
    let mut script = if mirror.is_some() { MIRROR.to_owned() } else { KERNEL.to_owned() };
    // FUSE is a module in some kernels.
    let wanted = if mirror.is_some() { vec!["fuse".to_owned()] } else { Vec::new() };
    let language = if mirror.as_ref().is_some_and(|mirror| mirror.is_newest) { "newest" } else { "kernel" };
    payload.extend(mirror.map(|mirror| (mirror.tracer, Path::new(vm::BIN).join("tracer"))));
    if modules {
        script.insert_str(0, MODULES);
        for module in vm::samples::get(machine)? {
            let name = module.file_name().context("a module's name")?.to_owned();
            payload.push((module, Path::new("modules").join(name)));
        }
    }
    let job = vm::Job {
        command: ["sh", "-c", &script, "sh"].map(str::to_owned).into_iter().chain(command).collect(),
        payload,
        env: vec![("LANGUAGE".to_owned(), language.to_owned())],
        modules: wanted,
        keep: vec![(LOGS.into(), logs.to_owned())],
    };
    host::step(format!("Running ftracetest on Linux {} ({})", machine.version, machine.arch.name()));
    let mut results = Results::default();
    let outcome = vm::run(machine, &job, &mut |stream, bytes| match stream {
        vm::Stream::Out => results.take(bytes),
        vm::Stream::Err => vm::pass_on(stream, bytes),
    })?;
    ensure!(!results.cases.is_empty(), "ftracetest ended with {} and no result", outcome.code);
    results.conclude(&outcome.release, outcome.time, logs)
}

/// Runs the suite on this machine; the mirror replaces tracefs in a separate mount namespace.
fn here(suite: &Path, tests: &[String], logs: &Path) -> Result<Run> {
    let tracer = build::tracer(Arch::host()?, Profile::Dev, false)?;
    host::step("Running ftracetest on this machine");
    let start = Instant::now();
    let mut command = host::as_root(tracer)?;
    command.args(["exec", "--", "./ftracetest", "--keep", "--logdir"]).arg(logs);
    command.args(tests.iter().map(|test| format!("test.d/{test}")));
    let mut child = command.current_dir(suite).stdout(Stdio::piped()).spawn().context("tracer exec")?;
    let mut results = Results::default();
    if let Some(mut out) = child.stdout.take() {
        let mut bytes = [0; 4096];
        loop {
            match out.read(&mut bytes)? {
                0 => break,
                length => {
                    results.take(&bytes[..length]);
                }
            }
        }
    }
    let status = child.wait()?;
    ensure!(!results.cases.is_empty(), "ftracetest ended with {status} and no result");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    results.conclude(release.trim_end(), start.elapsed(), logs)
}

/// Results during a run.
#[derive(Debug, Default)]
struct Results {
    cases: Vec<Case>,
    pending: Vec<u8>,
}

impl Results {
    /// Adds output of the suite and shows its complete lines, as another machine may write between two parts of a line.
    /// One line contains both the start and the result of a case.
    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            eprint!("{line}");
            self.cases.extend(parse_case(&line));
        }
    }

    /// The whole run, with the files of the cases from the names of the logs.
    fn conclude(self, release: &str, time: Duration, logs: &Path) -> Result<Run> {
        let names = std::fs::read_dir(logs)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
        let files: BTreeMap<u32, String> = names
            .filter_map(|n| parse_log_name(&n).map(|(number, file)| (number, file.to_owned())))
            .collect();
        Ok(Run { cases: self.cases, files, release: release.to_owned(), time, logs: logs.to_owned() })
    }
}

/// A run of the suite.
#[derive(Debug)]
struct Run {
    cases: Vec<Case>,
    /// Names of the cases' files, by number.
    files: BTreeMap<u32, String>,
    release: String,
    time: Duration,
    logs: PathBuf,
}

impl Run {
    fn has_bad(&self) -> bool {
        self.cases.iter().any(|case| is_bad(&case.result))
    }

    fn table(&self) -> String {
        table(&self.cases, &self.files)
    }

    /// Results by case.
    fn by_case(&self, suite: &Path) -> Result<BTreeMap<String, String>> {
        let known = selection::in_scope(suite)?;
        let mut results = BTreeMap::new();
        for case in &self.cases {
            let name =
                self.files.get(&case.number).with_context(|| format!("no log of case {}", case.number))?;
            let is_file = |file: &&String| file.rsplit('/').next() == Some(name);
            let file = known.iter().find(is_file).unwrap_or(name);
            results.insert(
                baseline::case(file, case.description.starts_with("(instance)")),
                case.result.clone(),
            );
        }
        Ok(results)
    }
}

/// A table of all cases, followed by the totals per result.
fn table(cases: &[Case], files: &BTreeMap<u32, String>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        let file = files.get(&case.number).map_or("", String::as_str);
        let _ = writeln!(text, "{:>4} {:11} {file:44} {}", case.number, case.result, case.description);
        *totals.entry(&case.result).or_default() += 1;
    }
    let totals: Vec<String> = totals.iter().map(|(result, n)| format!("{n} {result}")).collect();
    let _ = writeln!(text, "\n{} results: {}", cases.len(), totals.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_suites_lines() {
        let case = parse_case("[12] (instance)  event tracing - enable/disable\t[PASS]\n").unwrap();
        assert_eq!(case.number, 12);
        assert_eq!(case.description, "(instance)  event tracing - enable/disable");
        assert_eq!(case.result, "PASS");
        for other in ["=== Ftrace unit tests ===", "# of passed:  3", "[1] half a line", "[x] a\t[PASS]", ""]
        {
            assert_eq!(parse_case(other), None, "{other}");
        }
    }

    #[test]
    fn a_result_that_differs_or_is_missing_is_wrong() {
        let mut known = Baseline::default();
        let of = |results: &[(&str, &str)]| -> BTreeMap<String, String> {
            results.iter().map(|(case, result)| ((*case).to_owned(), (*result).to_owned())).collect()
        };
        known.bless(&of(&[("a.tc", "PASS"), ("b.tc", "FAIL"), ("c.tc", "PASS"), ("d.tc", "PASS")]));
        let files = ["a.tc", "b.tc", "c.tc", "e.tc"].map(str::to_owned);
        let checked = check(&known, &files, &of(&[("a.tc", "PASS"), ("b.tc", "PASS"), ("e.tc", "PASS")]));
        let wrong: Vec<(&str, bool)> = checked.iter().map(|c| (c.case.as_str(), c.wrong.is_some())).collect();
        assert_eq!(wrong, [("a.tc", false), ("b.tc", true), ("e.tc", true), ("c.tc", true)]);
    }

    #[test]
    fn logs_name_their_tests() {
        assert_eq!(parse_log_name("7-event-enable.tc-log.Ab12Cd"), Some((7, "event-enable.tc")));
        assert_eq!(parse_log_name("ftracetest.log"), None);
    }

    #[test]
    fn the_table_ends_with_totals() {
        let case = |number, result: &str| Case { number, description: "d".into(), result: result.into() };
        let files = BTreeMap::from([(1, "a.tc".to_owned())]);
        let text = table(&[case(1, "PASS"), case(2, "PASS"), case(3, "XFAIL")], &files);
        assert!(text.starts_with("   1 PASS        a.tc "), "{text}");
        assert!(text.ends_with("\n3 results: 2 PASS, 1 XFAIL\n"), "{text}");
        assert!(is_bad("FAIL") && is_bad("UNDEFINED") && !is_bad("XFAIL"));
    }
}
