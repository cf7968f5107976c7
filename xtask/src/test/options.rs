//! The options of `cargo xtask test`: which machines and which tests a run takes.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

use super::binaries::TestProcess;
use super::matrix::Share;
use super::scope::Scope;
use crate::arch::Arch;
use crate::vm;

/// A machine's time limit in seconds, against hanging. Emulation is 10 to 20 times slower than the host: the suite and all
/// tests of a machine take an hour each, and more beside other work.
pub(super) const MACHINE_TIMEOUT: u64 = 10_800;
/// The machine of a run of some tests that selects none, and the one that takes the place of [`NEWEST`] where that kernel
/// cannot be had: the suite of Debian that has it drops it when a newer one comes.
pub(super) const LASTING: &str = "6.12";
/// The newest kernel with a machine.
const NEWEST: &str = "7.3";
/// The kernels whose test suites are run on the mirror. A run that is not of everything has the core of the first one.
pub(super) const SUITES: [&str; 2] = [LASTING, NEWEST];

/// The machines of a run of everything.
const MACHINES: [&str; 5] = ["6.1-x86_64", "6.12-x86_64", "7.3-x86_64", "6.12-aarch64", "7.3-aarch64"];

/// The kernel on which the gate runs the core of the tests: the newest, and the lasting one at every fourth commit.
fn of_gate(commit: &str) -> &'static str {
    let digit = commit.chars().next().and_then(|digit| digit.to_digit(16)).unwrap_or_default();
    if digit % 4 == 3 { LASTING } else { NEWEST }
}

/// A machine for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) version: String,
    pub(super) arch: Arch,
}

impl Target {
    pub(super) fn title(&self) -> String {
        // Of files, the name of the first one; a package's name ends before its version.
        let first = self.version.split(',').next().unwrap_or_default();
        let file = first.rsplit('/').next().unwrap_or_default();
        let kernel = file.split('_').next().unwrap_or_default();
        format!("{kernel} {}", self.arch.name())
    }

    /// The name that a command line selects.
    pub(super) fn name(&self) -> String {
        if is_of_files(&self.version) {
            return self.version.clone();
        }
        format!("{}-{}", self.version, self.arch.name())
    }

    pub(super) fn machine(&self) -> vm::Machine {
        vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(&self.version, self.arch) }
    }
}

/// Whether the name of a kernel is that of files: an image, with a slash, or packages.
fn is_of_files(kernel: &str) -> bool {
    kernel.contains('/') || is_package(kernel)
}

/// Whether a file's name, or the last one of a list, is that of a package.
fn is_package(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "deb")
}

/// The machines of a value of `--vm`.
#[derive(Debug, Clone)]
pub(super) struct Targets(Vec<Target>);

impl FromStr for Targets {
    type Err = anyhow::Error;

    /// Parses a list with commas. Packages that follow one another are those of one kernel.
    fn from_str(text: &str) -> Result<Self> {
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',') {
            match names.last_mut() {
                Some(last) if is_package(last) && is_package(name) => {
                    last.push(',');
                    last.push_str(name);
                }
                _ => names.push(name.to_owned()),
            }
        }
        names.iter().map(|name| parse_target(name)).collect::<Result<_>>().map(Self)
    }
}

/// Parses `6.1`, `6.12` or `6.12-aarch64`, or the files of an image or of packages for this architecture.
pub(super) fn parse_target(text: &str) -> Result<Target> {
    if is_of_files(text) {
        return Ok(Target { version: text.to_owned(), arch: Arch::host()? });
    }
    let (version, arch) = match text.split_once('-') {
        None => (text, Arch::host()?),
        Some((version, "x86_64" | "amd64")) => (version, Arch::X86_64),
        Some((version, "aarch64" | "arm64")) => (version, Arch::Aarch64),
        Some((_, other)) => bail!("unknown architecture {other}"),
    };
    let is_version = |v: &str| v.split('.').count() == 2 && v.split('.').all(|n| n.parse::<u32>().is_ok());
    ensure!(is_version(version), "{version} is not a kernel version such as 6.12");
    Ok(Target { version: version.to_owned(), arch })
}

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Options {
    /// Run no virtual machine
    #[arg(long)]
    pub(super) host_only: bool,
    /// Run nothing on the host
    #[arg(long, conflicts_with = "host_only")]
    pub(super) vm_only: bool,
    /// Run all integration tests in these machines, such as 6.1,6.12,6.12-aarch64, an image's path or the files of a
    /// kernel's packages. By default a core of them, or those that are selected, run in 6.12
    #[arg(long, value_name = "VERSION[-ARCH]")]
    pub(super) vm: Vec<Targets>,
    /// Run everything: all tests in all machines, the kernel's whole suite, and the checks of `lint --all`. What passed
    /// at this commit in an earlier run does not run again
    #[arg(long, conflicts_with_all = ["host_only", "vm_only", "vm", "integration", "program", "filter"])]
    pub(super) all: bool,
    /// With --all: run only this share, such as 1/3
    #[arg(long, requires = "all", value_name = "K/N")]
    pub(super) part: Option<Share>,
    /// Run nothing. Succeed if this commit passed `cargo xtask test`, or with --all everything, and the tree has no changes
    #[arg(long, conflicts_with_all = ["host_only", "vm_only", "vm", "integration", "program", "filter", "part"])]
    pub(super) was_green: bool,
    /// Run only the integration tests, and no lint
    #[arg(long)]
    pub(super) integration: bool,
    /// Run only these groups of integration tests or modules of them, such as api,trust::deadlines
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) program: Vec<String>,
    /// Run only tests whose names contain one of these
    pub(super) filter: Vec<String>,
}

impl Options {
    /// The integration tests in machines: all of them, or those of `program`.
    pub(super) fn of_machines(program: Vec<String>) -> Self {
        Self {
            host_only: false,
            vm_only: true,
            vm: Vec::new(),
            all: false,
            part: None,
            was_green: false,
            integration: true,
            program,
            filter: Vec::new(),
        }
    }

    /// Whether the lint runs; a partial run omits it.
    pub(super) fn wants_lint(&self) -> bool {
        !self.vm_only && !self.integration && !self.is_part()
    }

    /// Whether this is the run that every change passes, without any option.
    pub(super) fn is_gate(&self) -> bool {
        !self.host_only
            && !self.vm_only
            && !self.all
            && !self.integration
            && self.vm.is_empty()
            && !self.is_part()
    }

    /// Whether only some of the tests are selected.
    pub(super) fn is_part(&self) -> bool {
        !self.filter.is_empty() || !self.program.is_empty()
    }

    /// Whether the tests of a process are selected.
    pub(super) fn wants(&self, process: &TestProcess) -> bool {
        let is_it = |name: &String| *name == process.binary.target || *name == process.name();
        self.program.is_empty() || process.binary.integration && self.program.iter().any(is_it)
    }

    /// Whether a process runs in a machine. A process outside the scope runs only if it is named.
    pub(super) fn wants_in_machine(&self, process: &TestProcess) -> bool {
        let is_named = !self.filter.is_empty() || self.program.contains(&process.name());
        process.binary.integration && self.wants(process) && (is_named || self.scope().has(process))
    }

    /// Whether the kernel's own suite runs: its core beside the core of the tests, or all of it.
    fn wants_suite(&self) -> bool {
        // Its results are known for x86-64 only.
        let is_native = !Arch::X86_64.is_foreign();
        is_native && !self.host_only && !self.is_part() && !self.integration && self.vm.is_empty()
    }

    /// The kernels whose test suites run.
    pub(super) fn suites(&self) -> &'static [&'static str] {
        match (self.wants_suite(), self.all) {
            (false, _) => &[],
            (true, false) => &SUITES[..1],
            (true, true) => &SUITES,
        }
    }

    /// The machines of the run. `commit` is the tree's.
    pub(super) fn targets(&self, commit: &str) -> Result<Vec<Target>> {
        if self.host_only {
            return Ok(Vec::new());
        }
        if !self.vm.is_empty() {
            return Ok(self.vm.iter().flat_map(|targets| targets.0.clone()).collect());
        }
        if self.all {
            return machines();
        }
        Ok(vec![parse_target(if self.scope() == Scope::Core { of_gate(commit) } else { LASTING })?])
    }

    /// The tests that a machine executes unless they are named.
    pub(super) fn scope(&self) -> Scope {
        if self.all || self.is_part() || !self.vm.is_empty() { Scope::Whole } else { Scope::Core }
    }
}

/// The machines of a run of all tests.
pub(super) fn machines() -> Result<Vec<Target>> {
    MACHINES.into_iter().map(parse_target).collect()
}

#[cfg(test)]
impl Options {
    pub(super) fn default_for_tests() -> Self {
        Self {
            host_only: true,
            vm_only: false,
            vm: Vec::new(),
            all: false,
            part: None,
            was_green: false,
            integration: false,
            program: Vec::new(),
            filter: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::binaries::{Built, TestBinary};

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
    fn packages_of_one_kernel_are_one_target() {
        let Targets(targets) = "6.1,a/linux-base-7.0_1_amd64.deb,b.deb,6.12,c.deb,d/bzImage".parse().unwrap();
        let names: Vec<String> = targets.iter().map(Target::name).collect();
        let expected =
            ["6.1-x86_64", "a/linux-base-7.0_1_amd64.deb,b.deb", "6.12-x86_64", "c.deb", "d/bzImage"];
        assert_eq!(names, expected);
        assert_eq!(targets[1].title(), "linux-base-7.0 x86_64");
        assert_eq!(targets[4].title(), "bzImage x86_64");
        assert!("6.1,b.deb,six".parse::<Targets>().is_err());
    }

    #[test]
    fn a_run_without_options_has_the_core_of_one_machine() {
        let of =
            |options: &Options| options.targets("0a").unwrap().iter().map(Target::name).collect::<Vec<_>>();
        let gate = Options { host_only: false, ..Options::default_for_tests() };
        assert!(gate.is_gate() && gate.wants_lint());
        assert_eq!((gate.scope(), of(&gate)), (Scope::Core, vec!["7.3-x86_64".to_owned()]));
        assert_eq!(gate.suites(), ["6.12"]);
        let turns = ["1", "2", "3", "4", "7", "b", "f", ""];
        assert_eq!(turns.map(of_gate), ["7.3", "7.3", "6.12", "7.3", "6.12", "6.12", "6.12", "7.3"]);
        let whole = Options { all: true, host_only: false, ..Options::default_for_tests() };
        assert!(!whole.is_gate());
        assert_eq!(whole.suites(), SUITES);
        assert_eq!((whole.scope(), of(&whole)), (Scope::Whole, MACHINES.map(str::to_owned).to_vec()));
        let part = Options::of_machines(vec!["api".to_owned()]);
        assert!(!part.is_gate() && part.suites().is_empty());
        assert_eq!((part.scope(), of(&part)), (Scope::Whole, vec!["6.12-x86_64".to_owned()]));
        let named = Options { vm: vec!["6.1".parse().unwrap()], ..Options::of_machines(Vec::new()) };
        assert_eq!((named.scope(), of(&named)), (Scope::Whole, vec!["6.1-x86_64".to_owned()]));
        assert!(!Options::default_for_tests().is_gate(), "--host-only");
    }

    #[test]
    fn groups_and_modules_are_selected() {
        let trust = ["deadlines", "hostile_input", "user"];
        let built = Built::of(&[("trust", &trust), ("probes", &["kernel"]), ("api", &["bpf"])]);
        let names = |program: &[&str], in_machine: bool| {
            let program = program.iter().map(|name| (*name).to_owned()).collect();
            let options = Options { all: true, program, ..Options::default_for_tests() };
            let processes: Vec<_> = built.tests.iter().flat_map(TestBinary::processes).collect();
            let wanted =
                |p: &&TestProcess| if in_machine { options.wants_in_machine(p) } else { options.wants(p) };
            processes.iter().filter(wanted).map(TestProcess::name).collect::<Vec<_>>()
        };
        let all = ["trust::deadlines", "trust::hostile_input", "trust::user", "probes::kernel", "api::bpf"];
        assert_eq!(names(&[], false), all);
        assert_eq!(names(&["trust"], false), ["trust::deadlines", "trust::hostile_input", "trust::user"]);
        assert_eq!(names(&["trust::deadlines", "api"], false), ["trust::deadlines", "api::bpf"]);
        // A module that does not concern the kernel must be named.
        let in_machines = ["trust::deadlines", "trust::user", "probes::kernel", "api::bpf"];
        assert_eq!(names(&[], true), in_machines);
        assert_eq!(names(&["trust::hostile_input"], true), ["trust::hostile_input"]);
        let unit = TestBinary { integration: false, ..built.tests[1].clone() };
        let options = Options { program: vec!["api".to_owned()], ..Options::default_for_tests() };
        assert!(!options.wants(&unit.processes()[0]));
    }
}
