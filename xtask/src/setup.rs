//! `cargo xtask setup`: installs missing requirements on Debian and its derivatives; on other systems prints the
//! commands to install them.
//!
//! Requirements are grouped, so that building needs nothing that only virtual machines use. A verb calls [`ensure`]
//! with its groups. If nothing is missing, this takes a few look-ups of files and programs, without access to the
//! package lists.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::host;
use crate::toolchain::{self, BPF_LINKER, LLVM};

/// A program that `cargo install` builds if none is found, without default features and not optimised: an optimised
/// build takes three times as long, which no run makes up for.
#[derive(Debug, PartialEq, Eq)]
struct CargoProgram {
    name: &'static str,
    release: &'static str,
}

/// Without its features, git fetches the databases; git is already required.
const CARGO_DENY: CargoProgram = CargoProgram { name: "cargo-deny", release: "0.20.2" };

/// Without its features it can only build a book. Takes 44 s of CPU time; a book then takes less than one.
const MDBOOK: CargoProgram = CargoProgram { name: "mdbook", release: "0.5.4" };

impl CargoProgram {
    /// Arguments for cargo.
    fn arguments(&self) -> Vec<String> {
        let version = format!("{}@{}", self.name, self.release);
        ["install", &version, "--debug", "--locked", "--no-default-features"].map(str::to_owned).into()
    }

    fn install(&self) -> Result<()> {
        host::step(format!("Building {} {}", self.name, self.release));
        let mut command = host::cargo();
        // Outside the workspace, because its cargo settings do not apply.
        command.current_dir("/").args(self.arguments()).env("CARGO_PROFILE_DEV_DEBUG", "0");
        if std::env::var_os("CI").is_some() {
            command.arg("--quiet");
        }
        host::run(&mut command)
    }
}

/// A group of requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// Build and run: a C compiler, which links.
    Build,
    /// Build eBPF programs that log: a compiler with its core sources, and `bpf-linker`.
    Ebpf,
    /// Build the checked-in eBPF objects: the same in the versions of `tracer-ebpf/toolchain.txt`, the compiler's clippy,
    /// and LLVM's tools.
    Objects,
    /// rustfmt, clippy, codespell and systemd's tools for the unit file.
    Lint,
    /// The checks of `lint --all`: cargo-deny and mdbook, which are compiled here.
    Audit,
    /// Tools that build the guests' images; QEMU itself need not be installed (`vm::emulator`).
    Vm,
    /// Compilers for arm64.
    Cross,
    /// Programs that tests use for comparison.
    Test,
    /// The programs that tracer is compared with.
    Bench,
    /// Tools for a kernel build.
    Kernel,
    /// Makes bare Debian systems.
    Fresh,
}

impl Group {
    /// All groups, in installation order.
    pub(crate) const ALL: [Self; 11] = [
        Self::Build,
        Self::Ebpf,
        Self::Objects,
        Self::Lint,
        Self::Audit,
        Self::Vm,
        Self::Cross,
        Self::Test,
        Self::Bench,
        Self::Kernel,
        Self::Fresh,
    ];
}

/// The missing requirements of this machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missing {
    /// Debian packages.
    packages: Vec<&'static str>,
    /// Whether arm64 has to be added as a foreign architecture.
    foreign_arm64: bool,
    /// Whether `cargo install bpf-linker` has to run.
    bpf_linker: bool,
    /// Programs for which `cargo install` has to run.
    programs: Vec<&'static CargoProgram>,
}

impl Missing {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Adds the packages for requirements that are detected by their function, not by package name.
fn by_function(groups: &[Group], missing: &mut Missing) -> Result<()> {
    let wants = |group| groups.contains(&group);
    let mut toolchain_of_ebpf = |has_compiler: bool, has_linker: bool| {
        if !has_compiler {
            missing.packages.extend(["rustc-web", "rust-web-src", "cargo-web"]);
        }
        if !has_linker {
            missing.bpf_linker = true;
            missing.packages.extend(["llvm-22-dev", "libzstd-dev", "zlib1g-dev", "g++"]);
        }
    };
    if wants(Group::Ebpf) {
        toolchain_of_ebpf(toolchain::find_ebpf()?.is_some(), toolchain::find_bpf_linker().is_some());
    }
    if wants(Group::Objects) {
        let compiler = toolchain::find_pinned();
        toolchain_of_ebpf(compiler.is_some(), toolchain::find_pinned_linker().is_some());
        if toolchain::find_llvm("llvm-objcopy").is_none() {
            missing.packages.push("llvm-22");
        }
        // Clippy reads the core sources of a compiler and must be of the same build. That compiler may not be
        // installed yet.
        if let Some(rustc) = compiler
            && rustc.sysroot == Path::new("/usr")
            && !host::is_executable(&rustc.path.with_file_name("clippy-driver"))
        {
            missing.packages.push("rust-web-clippy");
        }
    }
    let answers = |verb: &str| host::output(host::cargo().args([verb, "--version"])).is_ok();
    if groups.contains(&Group::Lint) {
        if !answers("fmt") {
            missing.packages.push("rustfmt-web");
        }
        if !answers("clippy") {
            missing.packages.push("rust-web-clippy");
        }
    }
    if groups.contains(&Group::Audit) {
        if !answers("deny") {
            missing.programs.push(&CARGO_DENY);
        }
        if host::cargo_program(MDBOOK.name).is_none() {
            missing.programs.push(&MDBOOK);
        }
    }
    if groups.contains(&Group::Cross) {
        if toolchain::find_cross("aarch64-unknown-linux-gnu").is_none() {
            missing.packages.extend(["rustc-web", "cargo-web", "libstd-rust-web-dev:arm64"]);
        }
        if host::which("aarch64-linux-gnu-gcc").is_none() {
            missing.packages.extend(["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]);
        }
    }
    let programs: &[(Group, &str, &[&'static str])] = &[
        (Group::Build, "cc", &["gcc", "libc6-dev"]),
        (Group::Lint, "systemd-analyze", &["systemd"]),
        (Group::Lint, "git", &["git"]),
        (Group::Lint, "codespell", &["codespell"]),
        (Group::Vm, "mke2fs", &["e2fsprogs"]),
        (Group::Vm, "depmod", &["kmod"]),
        (Group::Vm, "xz", &["xz-utils"]),
        (Group::Vm, "strip", &["binutils"]),
        (Group::Test, "bpftool", &["bpftool"]),
        (Group::Test, "cc", &["gcc", "libc6-dev"]),
        (Group::Test, "trace-cmd", &["trace-cmd"]),
        (Group::Test, "xz", &["xz-utils"]),
        (Group::Kernel, "make", &["make"]),
        (Group::Kernel, "cc", &["gcc", "libc6-dev"]),
        (Group::Kernel, "flex", &["flex"]),
        (Group::Kernel, "bison", &["bison"]),
        (Group::Kernel, "bc", &["bc"]),
        (Group::Kernel, "pahole", &["dwarves", "libelf-dev", "libssl-dev"]),
        (Group::Kernel, "xz", &["xz-utils"]),
        (Group::Bench, "bpftrace", &["bpftrace"]),
        (Group::Bench, "trace-cmd", &["trace-cmd"]),
        (Group::Fresh, "debootstrap", &["debootstrap"]),
        (Group::Fresh, "git", &["git"]),
    ];
    for (group, program, packages) in programs {
        if groups.contains(group) && host::which(program).is_none() {
            missing.packages.extend(*packages);
        }
    }
    Ok(())
}

/// Determines the missing requirements.
fn look(groups: &[Group]) -> Result<Missing> {
    let mut missing = Missing::default();
    by_function(groups, &mut missing)?;
    missing.packages.sort_unstable();
    missing.packages.dedup();
    if groups.contains(&Group::Cross) && host::arch() == "x86_64" && host::which("dpkg").is_some() {
        let foreign = host::output(Command::new("dpkg").arg("--print-foreign-architectures"))?;
        missing.foreign_arm64 = !foreign.lines().any(|l| l == "arm64");
    }
    Ok(missing)
}

/// The commands that install `missing` by hand, one per line.
fn recipe(missing: &Missing, apt: bool) -> String {
    let mut lines = Vec::new();
    if apt {
        if missing.foreign_arm64 {
            lines.push("sudo dpkg --add-architecture arm64".to_owned());
        }
        if missing.foreign_arm64 || !missing.packages.is_empty() {
            lines.push("sudo apt-get update".to_owned());
        }
        if !missing.packages.is_empty() {
            lines
                .push(format!("sudo apt-get install --no-install-recommends {}", missing.packages.join(" ")));
        }
    } else if !missing.packages.is_empty() {
        lines.push(format!("the equivalents of these Debian packages: {}", missing.packages.join(" ")));
        if missing.packages.contains(&"rust-web-src") {
            lines.push(
                "(in place of rustc-web, rust-web-src and cargo-web: \
                 rustup toolchain install nightly --component rust-src)"
                    .to_owned(),
            );
        }
    }
    if missing.bpf_linker {
        lines.push(format!(
            "LLVM_PREFIX=<where LLVM {LLVM} lies, e.g. /usr/lib/llvm-{LLVM}> cargo install bpf-linker@{} \
             --locked --no-default-features --features llvm-{LLVM}",
            toolchain::pinned(BPF_LINKER)
        ));
    }
    lines.extend(missing.programs.iter().map(|program| format!("cargo {}", program.arguments().join(" "))));
    lines.iter().fold(String::new(), |text, line| text + "  " + line + "\n")
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = host::as_root("env")?;
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
    host::run(&mut command)
}

/// Installs packages; never removes an installed package for them.
fn install_packages(missing: &Missing) -> Result<()> {
    if missing.foreign_arm64 {
        host::run(host::as_root("dpkg")?.args(["--add-architecture", "arm64"]))?;
    }
    if missing.packages.is_empty() && !missing.foreign_arm64 {
        return Ok(());
    }
    step_install(missing);
    if let Err(error) = apt_get(&["update", "-q"]) {
        // One unreachable third-party list must not stop the setup; a real problem shows in the installation.
        eprintln!("warning: {error:#}");
    }
    if missing.packages.is_empty() {
        return Ok(());
    }
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends", "--no-remove"];
    arguments.extend(&missing.packages);
    apt_get(&arguments).with_context(|| {
        let conflict = if missing.packages.contains(&"rustc-web") {
            "\nrustc-web takes the place of Debian's older rustc and cargo: if those are installed, remove \
             them first (apt-get remove rustc cargo), or install a nightly by rustup with its rust-src"
        } else {
            ""
        };
        format!("apt-get could not install what is needed{conflict}")
    })
}

fn step_install(missing: &Missing) {
    if missing.packages.is_empty() {
        host::step("Reading the package lists for arm64");
    } else {
        host::step(format!("Installing {}", missing.packages.join(" ")));
    }
}

/// Builds `bpf-linker` against the system's LLVM; takes about a minute.
fn install_bpf_linker() -> Result<()> {
    let version = format!("{BPF_LINKER}@{}", toolchain::pinned(BPF_LINKER));
    host::step(format!("Building {version} against LLVM {LLVM}"));
    let feature = format!("llvm-{LLVM}");
    // Outside the workspace, because its cargo settings do not apply.
    let mut command = host::cargo();
    command.current_dir("/").env("LLVM_PREFIX", format!("/usr/lib/llvm-{LLVM}"));
    command.args(["install", &version, "--locked", "--no-default-features", "--features", &feature]);
    if std::env::var_os("CI").is_some() {
        command.arg("--quiet");
    }
    host::run(&mut command)?;
    if toolchain::find_bpf_linker().is_none() {
        bail!("bpf-linker was installed, but is neither on PATH nor in cargo's bin directory");
    }
    Ok(())
}

/// Ensures that the requirements of `groups` are installed; installs missing ones with apt-get if available.
pub(crate) fn ensure(groups: &[Group]) -> Result<()> {
    let apt = host::which("apt-get").is_some();
    let mut before = None;
    loop {
        let missing = look(groups)?;
        if missing.is_empty() {
            return Ok(());
        }
        if !apt && !missing.packages.is_empty() {
            bail!("this is not Debian or Ubuntu, so please install:\n{}", recipe(&missing, apt));
        }
        // Installed packages may have further requirements. A requirement that stays missing after its installation is
        // an error.
        if before.as_ref() == Some(&missing) {
            let pinned = toolchain::PINNED;
            bail!("still missing after the installation (versions: {pinned}):\n{}", recipe(&missing, apt));
        }
        install_packages(&missing)
            .with_context(|| format!("to install it all by hand:\n{}", recipe(&missing, apt)))?;
        if missing.bpf_linker {
            install_bpf_linker()?;
        }
        for program in &missing.programs {
            program.install()?;
        }
        before = Some(missing);
    }
}

/// Options of `cargo xtask setup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Set up only these groups (default: all)
    #[arg(value_enum)]
    groups: Vec<Group>,
    /// Only print what is missing and how to install it; fail if anything is missing
    #[arg(long)]
    check: bool,
}

/// Runs the verb `setup`.
pub(crate) fn verb(options: &Options) -> Result<()> {
    let groups = if options.groups.is_empty() { &Group::ALL[..] } else { &options.groups };
    if options.check {
        let missing = look(groups)?;
        if !missing.is_empty() {
            bail!("missing; install:\n{}", recipe(&missing, host::which("apt-get").is_some()));
        }
    } else {
        ensure(groups)?;
    }
    if let Some(rustc) = toolchain::find_ebpf()? {
        let (major, minor) = rustc.release;
        let how = if rustc.nightly { "" } else { " with RUSTC_BOOTSTRAP=1" };
        eprintln!("eBPF compiler: {} {major}.{minor} (LLVM {}){how}", rustc.path.display(), rustc.llvm);
    }
    if let Some(linker) = toolchain::find_bpf_linker() {
        eprintln!("eBPF linker:   {}", linker.display());
    }
    eprintln!("All set.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_names_every_command_in_order() {
        let missing = Missing {
            packages: vec!["llvm-22-dev", "rust-web-src"],
            foreign_arm64: true,
            bpf_linker: true,
            programs: vec![&CARGO_DENY, &MDBOOK],
        };
        let text = recipe(&missing, true);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], "sudo dpkg --add-architecture arm64");
        assert_eq!(lines[1], "sudo apt-get update");
        assert_eq!(lines[2], "sudo apt-get install --no-install-recommends llvm-22-dev rust-web-src");
        assert!(lines[3].ends_with("--no-default-features --features llvm-22"), "{}", lines[3]);
        assert!(lines[4].starts_with("cargo install cargo-deny@"), "{}", lines[4]);
        assert!(
            lines[5].starts_with("cargo install mdbook@") && lines[5].contains(" --debug "),
            "{}",
            lines[5]
        );
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn without_apt_rustup_is_offered() {
        let missing = Missing { packages: vec!["rust-web-src"], ..Missing::default() };
        let text = recipe(&missing, false);
        assert!(text.contains("rustup toolchain install nightly --component rust-src"), "{text}");
        assert!(!text.contains("apt-get"), "{text}");
    }

    #[test]
    fn nothing_to_do_if_nothing_is_missing() {
        assert!(Missing::default().is_empty());
        assert_eq!(recipe(&Missing::default(), true), "");
    }
}
