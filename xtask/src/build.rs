//! `cargo xtask build` and `run`: builds the binary, which embeds the checked-in eBPF object.
//!
//! With `--debug` it embeds an object with aya-log in its place, which [`ebpf`] builds.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::arch::Arch;
use crate::setup::{self, Group};
use crate::{ebpf, host, toolchain};

/// Environment variable for the feature `bpf-log` of `tracer-user`: the object to embed.
const OBJECT_VARIABLE: &str = "TRACER_EBPF_OBJECT";

/// The compilation profile of user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimised, for users.
    Release,
    /// Fast to compile, for development and tests.
    Dev,
}

impl Profile {
    /// The directory under `target/`.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }

    /// The option of cargo that selects the profile.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Release => Some("--release"),
            Self::Dev => None,
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

/// Builds `tracer` for `arch`; returns the binary's path. With `log`, its eBPF programs log.
pub(crate) fn tracer(arch: Arch, profile: Profile, log: bool) -> Result<PathBuf> {
    let object = log.then(|| ebpf::debug_object(arch)).transpose()?;
    host::step(format!("Building tracer ({}, {})", arch.name(), profile.dir()));
    let (mut cargo, dir) = user_cargo(arch)?;
    // Build this package alone, because the workspace's tests would enable its feature `internals`.
    cargo.args(["build", "-p", "tracer-user", "--bin", "tracer"]).args(profile.flag());
    if let Some(object) = object {
        cargo.env(OBJECT_VARIABLE, object).args(["--features", "tracer-user/bpf-log"]);
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
    let profile = if options.debug { Profile::Dev } else { Profile::Release };
    let built = tracer(arch, profile, options.debug)?;
    let shown = built.strip_prefix(host::root()).unwrap_or(&built);
    let size = std::fs::metadata(&built).map_or(0, |m| m.len() / 1024);
    eprintln!("Built {} ({size} KiB)", shown.display());
    Ok(())
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
