//! `cargo xtask build` and `run`: builds the eBPF object, then the binary that embeds it.
//!
//! The object depends on the architecture (register layouts) and is stored in `target/bpf/ARCH/`.
//! `tracer-user/build.rs` embeds `tracer-ebpf.o` from there, so that a later plain `cargo build` or `cargo test` works
//! too. The debug object with aya-log is `tracer-ebpf-debug.o` in the same directory; `TRACER_EBPF_OBJECT` selects it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::setup::{self, Group};
use crate::{host, toolchain};

/// The BPF target: little-endian, as x86-64 and arm64 are.
const BPF_TARGET: &str = "bpfel-unknown-none";
/// Environment variable for `tracer-user/build.rs`: the object to embed instead of the default one.
const OBJECT_VARIABLE: &str = "TRACER_EBPF_OBJECT";

/// An architecture that tracer is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// 64-bit x86.
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    /// 64-bit Arm.
    #[value(name = "aarch64", alias = "arm64")]
    Aarch64,
}

impl Arch {
    /// The architecture of this machine.
    pub(crate) fn host() -> Result<Self> {
        match host::arch() {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            other => bail!("tracer does not know the architecture {other}"),
        }
    }

    /// The name in the kernel and in Rust.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in Debian.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The target triple of user space.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Whether this machine cannot run it natively.
    pub(crate) fn is_foreign(self) -> bool {
        host::arch() != self.name()
    }
}

/// The compilation profile of user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimised, for users.
    Release,
    /// Fast to compile.
    Dev,
    /// As `Dev`, but faster on an emulated machine.
    Emulated,
}

impl Profile {
    /// The directory under `target/`.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
            Self::Emulated => "emulated",
        }
    }

    /// The option of cargo that selects the profile.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Release => Some("--release"),
            Self::Dev => None,
            Self::Emulated => Some("--profile=emulated"),
        }
    }
}

/// Options of `cargo xtask build`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Optimised user space (the default)
    #[arg(long, conflicts_with = "debug")]
    release: bool,
    /// User space without optimisation, and an eBPF object that logs through aya-log
    #[arg(long)]
    debug: bool,
    /// Build for another architecture
    #[arg(long, value_name = "ARCH", value_enum)]
    target: Option<Arch>,
    /// Build the eBPF object only
    #[arg(long)]
    ebpf_only: bool,
}

/// Options of `cargo xtask run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// Run the debug build, whose eBPF programs log
    #[arg(long)]
    debug: bool,
    /// Arguments of tracer
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Builds the eBPF object for one architecture and returns its path.
///
/// `log` enables aya-log. The function also builds the eBPF program of `tests/emitter`. It writes a file only if the
/// content changes.
pub(crate) fn ebpf(arch: Arch, log: bool) -> Result<PathBuf> {
    let Some(rustc) = toolchain::find_ebpf()? else {
        bail!("no compiler with its core sources here: run `cargo xtask setup build`");
    };
    let Some(linker) = toolchain::find_bpf_linker() else {
        bail!("bpf-linker is not here: run `cargo xtask setup build`");
    };
    let name = if log { "tracer-ebpf-debug.o" } else { "tracer-ebpf.o" };
    host::step(format!("Building {}/{name} with {}", arch.name(), rustc.path.display()));
    let object = object_path(arch, log);
    compile(&rustc, &linker, arch, "tracer-ebpf", "tracer-ebpf", log, &object)?;
    // The program of `tests/emitter`, which tests use as an external emitter of synthetic events.
    compile(
        &rustc,
        &linker,
        arch,
        "tests/emitter",
        "long-wait",
        false,
        &object.with_file_name("long-wait.o"),
    )?;
    Ok(object)
}

/// Compiles a crate of eBPF programs and copies the result to `object`.
fn compile(
    rustc: &toolchain::Rustc,
    linker: &Path,
    arch: Arch,
    krate: &str,
    binary: &str,
    log: bool,
    object: &Path,
) -> Result<()> {
    // One directory for all architectures, because most of the compiled code is the same.
    let out = host::root().join("target/bpf-build");
    let mut command = rustc.cargo();
    command
        .current_dir(host::root().join(krate))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env("AYA_BPF_TARGET_ARCH", arch.name())
        .args(["build", "--release", "--target", BPF_TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(&out);
    if !rustc.nightly {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    if log {
        command.args(["--features", "log"]);
    }
    host::run(&mut command)?;
    let built = out.join(BPF_TARGET).join("release").join(binary);
    let content = std::fs::read(&built).with_context(|| format!("cargo left no {}", built.display()))?;
    if !is_bpf_object(&content) {
        bail!("{} is not an eBPF object", built.display());
    }
    host::write_if_changed(object, &content)?;
    Ok(())
}

/// The path of the object for `arch`.
fn object_path(arch: Arch, log: bool) -> PathBuf {
    let name = if log { "tracer-ebpf-debug.o" } else { "tracer-ebpf.o" };
    host::root().join("target/bpf").join(arch.name()).join(name)
}

/// Whether the bytes are a 64-bit little-endian ELF file for the machine `EM_BPF` (elf.h).
fn is_bpf_object(bytes: &[u8]) -> bool {
    const EM_BPF: u16 = 247;
    bytes.starts_with(b"\x7fELF\x02\x01") && bytes.get(18..20) == Some(&EM_BPF.to_le_bytes()[..])
}

/// A cargo command that compiles user space for `arch`, and its output directory (the parent of `debug/`).
///
/// A foreign architecture has its own target directory, because a different compiler writes to it.
pub(crate) fn user_cargo(arch: Arch) -> Result<(Command, PathBuf)> {
    if !arch.is_foreign() {
        return Ok((host::cargo(), target_dir()));
    }
    let triple = arch.triple();
    let Some(rustc) = toolchain::find_cross(&triple) else {
        bail!("no compiler here has the standard library for {triple}: run `cargo xtask setup cross`");
    };
    let mut command = rustc.cargo();
    let dir = host::root().join("target/cross");
    let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
    command
        .current_dir(host::root())
        .env(variable, format!("{}-linux-gnu-gcc", arch.name()))
        .env("CARGO_TARGET_DIR", &dir)
        .env("CARGO_BUILD_TARGET", &triple);
    Ok((command, dir.join(triple)))
}

/// Cargo's default output directory.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| host::root().join("target"), |d| host::root().join(d))
}

/// Builds the eBPF object and `tracer` for `arch`; returns the binary's path.
pub(crate) fn tracer(arch: Arch, profile: Profile, log: bool) -> Result<PathBuf> {
    let object = ebpf(arch, log)?;
    host::step(format!("Building tracer ({}, {})", arch.name(), profile.dir()));
    let (mut cargo, dir) = user_cargo(arch)?;
    // Build this package alone, because the workspace's tests would enable its feature `internals`.
    cargo.args(["build", "-p", "tracer-user", "--bin", "tracer"]).args(profile.flag());
    if log {
        cargo.env(OBJECT_VARIABLE, &object).args(["--features", "tracer-user/bpf-log"]);
    }
    host::run(&mut cargo)?;
    Ok(dir.join(profile.dir()).join("tracer"))
}

/// Runs the verb `build`.
pub(crate) fn verb(options: &Options) -> Result<()> {
    let arch = options.target.map_or_else(Arch::host, Ok)?;
    let mut groups = vec![Group::Build];
    if arch.is_foreign() {
        groups.push(Group::Cross);
    }
    setup::ensure(&groups)?;
    let built = if options.ebpf_only {
        ebpf(arch, options.debug)?
    } else {
        let profile = if options.debug { Profile::Dev } else { Profile::Release };
        tracer(arch, profile, options.debug)?
    };
    let shown = built.strip_prefix(host::root()).unwrap_or(&built);
    eprintln!("Built {} ({} KiB)", shown.display(), size_kib(&built));
    Ok(())
}

fn size_kib(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len() / 1024)
}

/// Runs the verb `run`; returns tracer's exit code.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode> {
    setup::ensure(&[Group::Build])?;
    let profile = if options.debug { Profile::Dev } else { Profile::Release };
    let binary = tracer(Arch::host()?, profile, options.debug)?;
    let mut command = host::as_root(&binary)?;
    command.args(&options.args);
    host::step(host::display(&command));
    let status = command.status().with_context(|| format!("cannot start {}", binary.display()))?;
    Ok(ExitCode::from(status.code().map_or(1, |c| c as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bpf_objects_pass() {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0".to_vec();
        assert!(is_bpf_object(&elf));
        elf[18] = 62;
        assert!(!is_bpf_object(&elf), "x86-64 code");
        assert!(!is_bpf_object(b"\x7fELF"));
        assert!(!is_bpf_object(&std::fs::read("/proc/self/exe").unwrap()));
    }

    #[test]
    fn architectures_have_their_names() {
        assert_eq!(Arch::Aarch64.triple(), "aarch64-unknown-linux-gnu");
        assert_eq!(Arch::Aarch64.debian(), "arm64");
        assert_eq!(Arch::X86_64.debian(), "amd64");
        assert!(!Arch::host().unwrap().is_foreign());
    }
}
