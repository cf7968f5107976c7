//! The options of `cargo xtask test`: which machines and which tests a run takes.

use anyhow::{Result, bail, ensure};

use super::binaries::{Machine, Scope, TestProcess};
use crate::arch::Arch;
use crate::{conformance, vm};

/// A machine's time limit in seconds: emulation is 10 to 20 times slower than the host.
pub(super) const MACHINE_TIMEOUT: u64 = 3300;
/// The kernel whose test suite is run on the mirror.
pub(super) const SUITE_OF: &str = "6.12";

/// A machine for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) version: String,
    pub(super) arch: Arch,
}

impl Target {
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.version, self.arch.name())
    }

    /// Name of its list of skipped tests; `None` for an image's path.
    pub(super) fn list(&self) -> Option<String> {
        (!self.version.contains('/')).then(|| format!("{}-{}", self.version, self.arch.name()))
    }

    /// Its place among the machines that take turns; `None` for a kernel that was built for a test, which has a path.
    fn place(&self) -> Option<Machine> {
        match (&*self.version, self.arch.is_foreign()) {
            (version, _) if version.contains('/') => None,
            (_, true) => Some(Machine::Foreign),
            (SUITE_OF, false) => Some(Machine::Newer),
            _ => Some(Machine::Older),
        }
    }

    pub(super) fn machine(&self) -> vm::Machine {
        vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(&self.version, self.arch) }
    }
}

/// Parses `6.1`, `6.12` or `6.12-aarch64`, or the path of an image for this architecture.
pub(super) fn parse_target(text: &str) -> Result<Target> {
    if text.contains('/') {
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
    /// Run no virtual machines
    #[arg(long)]
    pub(super) host_only: bool,
    /// Run nothing on the host
    #[arg(long, conflicts_with = "host_only")]
    pub(super) vm_only: bool,
    /// Run these machines, such as 6.1,6.12,6.12-aarch64 (the default for a part of the tests), or an image's path
    #[arg(long, value_delimiter = ',', value_parser = parse_target, value_name = "VERSION[-ARCH]")]
    pub(super) vm: Vec<Target>,
    /// Run all modules in all three machines. By default a complete run uses two of them, and modules take turns there
    #[arg(long, conflicts_with = "host_only")]
    pub(super) all: bool,
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
            integration: true,
            program,
            filter: Vec::new(),
        }
    }

    /// Whether the lint runs; a partial run omits it.
    pub(super) fn wants_lint(&self) -> bool {
        !self.vm_only && !self.integration && !self.is_part()
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

    /// Whether a process runs in a machine. A process that whole runs omit there runs only if it is named.
    pub(super) fn wants_in_machine(&self, process: &TestProcess, scope: Scope) -> bool {
        let is_named = !self.filter.is_empty() || self.program.contains(&process.name());
        process.binary.integration && self.wants(process) && (is_named || process.is_in(scope))
    }

    /// Whether the kernel's own suite runs. It needs a native machine with the kernel [`SUITE_OF`].
    pub(super) fn wants_suite(&self, targets: &[Target]) -> bool {
        let has = targets.iter().any(|t| t.version == SUITE_OF && !t.arch.is_foreign());
        has && !self.is_part() && !self.integration
    }

    /// The machines of the run.
    pub(super) fn targets(&self) -> Result<Vec<Target>> {
        if self.host_only {
            return Ok(Vec::new());
        }
        if !self.vm.is_empty() {
            return Ok(self.vm.clone());
        }
        let all = machines()?;
        if self.all || self.is_part() {
            return Ok(all);
        }
        let of_commit = Machine::of_commit(conformance::commits()?);
        let is_in_turn = |target: &Target| target.place().is_some_and(|place| of_commit.contains(&place));
        Ok(all.into_iter().filter(is_in_turn).collect())
    }

    /// The modules that a machine executes unless they are named.
    pub(super) fn scope(&self, target: &Target) -> Result<Scope> {
        match target.place() {
            Some(machine) if !self.all => Ok(Scope::Turn { commits: conformance::commits()?, machine }),
            _ => Ok(Scope::Whole),
        }
    }
}

/// The machines that are tested by default.
pub(super) fn machines() -> Result<Vec<Target>> {
    ["6.1-x86_64", "6.12-x86_64", "6.12-aarch64"].into_iter().map(parse_target).collect()
}

#[cfg(test)]
impl Options {
    pub(super) fn default_for_tests() -> Self {
        Self {
            host_only: true,
            vm_only: false,
            vm: Vec::new(),
            all: false,
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
    fn a_whole_run_has_two_machines() {
        let of = |options: &Options| {
            options.targets().unwrap().iter().map(|target| target.list().unwrap()).collect::<Vec<_>>()
        };
        let whole = Options::of_machines(Vec::new());
        assert_eq!(of(&whole).len(), 2);
        assert!(of(&whole).contains(&"6.12-x86_64".to_owned()));
        let all = ["6.1-x86_64", "6.12-x86_64", "6.12-aarch64"];
        assert_eq!(of(&Options { all: true, ..Options::of_machines(Vec::new()) }), all);
        assert_eq!(of(&Options::of_machines(vec!["api".to_owned()])), all);
        let target = parse_target("6.12-aarch64").unwrap();
        assert_ne!(whole.scope(&target).unwrap(), Scope::Whole);
        let all = Options { all: true, ..Options::of_machines(Vec::new()) };
        assert_eq!(all.scope(&target).unwrap(), Scope::Whole);
    }

    #[test]
    fn groups_and_modules_are_selected() {
        let trust = ["deadlines", "hostile_input", "user"];
        let built = Built::of(&[("trust", &trust), ("probes", &["kernel"]), ("api", &["bpf"])]);
        let names = |program: &[&str], scope: Option<Scope>| {
            let program = program.iter().map(|name| (*name).to_owned()).collect();
            let options = Options { program, ..Options::default_for_tests() };
            let processes: Vec<_> = built.tests.iter().flat_map(TestBinary::processes).collect();
            let wanted = |p: &&TestProcess| {
                scope.map_or_else(|| options.wants(p), |scope| options.wants_in_machine(p, scope))
            };
            processes.iter().filter(wanted).map(TestProcess::name).collect::<Vec<_>>()
        };
        let all = ["trust::deadlines", "trust::hostile_input", "trust::user", "probes::kernel", "api::bpf"];
        assert_eq!(names(&[], None), all);
        assert_eq!(names(&["trust"], None), ["trust::deadlines", "trust::hostile_input", "trust::user"]);
        assert_eq!(names(&["trust::deadlines", "api"], None), ["trust::deadlines", "api::bpf"]);
        // Processes that whole runs omit there must be named.
        for program in [&[][..], &["trust", "probes", "api"]] {
            // How often each machine runs a module in twelve runs.
            let runs = |name: &str| {
                [Machine::Older, Machine::Newer, Machine::Foreign].map(|machine| {
                    let commits = (0..12).filter(|commits| Machine::of_commit(*commits).contains(&machine));
                    let turns = commits.map(|commits| Scope::Turn { commits, machine });
                    turns.filter(|turn| names(program, Some(*turn)).iter().any(|one| one == name)).count()
                })
            };
            assert_eq!(runs("trust::user"), [1, 2, 1]);
            assert_eq!(runs("trust::deadlines"), [1, 2, 0]);
            assert_eq!(runs("probes::kernel"), [3, 6, 3]);
            assert_eq!(runs("api::bpf"), [6, 12, 6]);
            let in_machines = ["trust::deadlines", "trust::user", "probes::kernel", "api::bpf"];
            assert_eq!(names(program, Some(Scope::Whole)), in_machines);
        }
        assert_eq!(names(&["trust::hostile_input"], Some(Scope::Whole)), ["trust::hostile_input"]);
        let unit = TestBinary { integration: false, ..built.tests[1].clone() };
        let options = Options { program: vec!["api".to_owned()], ..Options::default_for_tests() };
        assert!(!options.wants(&unit.processes()[0]));
    }
}
