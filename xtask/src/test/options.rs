//! The options of `cargo xtask test`: which machines and which tests a run takes.

use anyhow::{Result, anyhow};

use super::binaries::TestProcess;
use crate::build::Arch;
use crate::vm;

/// A machine's time limit in seconds: emulation is 10 to 20 times slower than the host.
pub(super) const MACHINE_TIMEOUT: u64 = 2700;
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

    pub(super) fn machine(&self) -> vm::Machine {
        vm::Machine { timeout: MACHINE_TIMEOUT, ..vm::Machine::of(&self.version, self.arch) }
    }
}

/// Parses `6.1`, `6.12` or `6.12-aarch64`, or the path of an image for this architecture.
pub(super) fn parse_target(text: &str) -> Result<Target, String> {
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
    pub(super) host_only: bool,
    /// Run nothing on the host
    #[arg(long, conflicts_with = "host_only")]
    pub(super) vm_only: bool,
    /// Run only these machines, such as 6.1,6.12,6.12-aarch64 (the default), or an image's path
    #[arg(long, value_delimiter = ',', value_parser = parse_target, value_name = "VERSION[-ARCH]")]
    pub(super) vm: Vec<Target>,
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

    /// Whether a process runs in a machine for its architecture: one that whole runs omit must be named.
    pub(super) fn wants_in_machine(&self, process: &TestProcess, is_foreign: bool) -> bool {
        let is_named = !self.filter.is_empty() || self.program.contains(&process.name());
        process.binary.integration && self.wants(process) && (is_named || process.is_for_machines(is_foreign))
    }

    /// Whether the kernel's own suite runs; it needs the machine that it is written for.
    pub(super) fn wants_suite(&self, targets: &[Target]) -> bool {
        let has = targets.iter().any(|t| t.version == SUITE_OF && !t.arch.is_foreign());
        has && !self.is_part() && !self.integration
    }

    pub(super) fn targets(&self) -> Result<Vec<Target>> {
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

#[cfg(test)]
impl Options {
    pub(super) fn default_for_tests() -> Self {
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
    fn groups_and_modules_are_selected() {
        let built = Built::of(&[("trust", &["deadlines", "hostile_input"]), ("api", &["bpf"])]);
        let names = |program: &[&str], is_foreign| {
            let program = program.iter().map(|name| (*name).to_owned()).collect();
            let options = Options { program, ..Options::default_for_tests() };
            let processes: Vec<_> = built.tests.iter().flat_map(TestBinary::processes).collect();
            let wanted = |p: &&TestProcess| {
                if is_foreign { options.wants_in_machine(p, true) } else { options.wants(p) }
            };
            processes.iter().filter(wanted).map(TestProcess::name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[], false), ["trust::deadlines", "trust::hostile_input", "api::bpf"]);
        assert_eq!(names(&["trust"], false), ["trust::deadlines", "trust::hostile_input"]);
        assert_eq!(names(&["trust::deadlines", "api"], false), ["trust::deadlines", "api::bpf"]);
        // What whole runs leave out there must be named.
        for program in [&[][..], &["trust", "api"]] {
            assert_eq!(names(program, true), ["api::bpf"]);
        }
        assert_eq!(names(&["trust::hostile_input"], true), ["trust::hostile_input"]);
        let unit = TestBinary { integration: false, ..built.tests[1].clone() };
        let options = Options { program: vec!["api".to_owned()], ..Options::default_for_tests() };
        assert!(!options.wants(&unit.processes()[0]));
    }
}
