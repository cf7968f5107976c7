//! `cargo xtask bench`, `soak` and `bless`: small verbs that start cargo with the right settings.

use anyhow::Result;

use crate::build::{self, Arch, Profile};
use crate::host;
use crate::setup::{self, Group};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Arguments of the benchmark program; `--help` tells them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Measures the optimised tracer against the kernel's tracefs and other tracers, as root.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    setup::ensure(&[Group::Build, Group::Bench])?;
    let arch = Arch::host()?;
    let tracer = build::tracer(arch, Profile::Release, false)?;
    let (mut cargo, dir) = build::user_cargo(arch)?;
    host::run(cargo.args(["build", "--release", "--workspace", "--bin", "tracer-bench"]))?;
    let mut command = host::as_root("env")?;
    command.arg(format!("TRACER_BIN={}", tracer.display()));
    command.arg(dir.join("release/tracer-bench")).args(&options.args);
    host::run(&mut command)
}

/// Options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// Minutes
    #[arg(default_value_t = 10)]
    minutes: u64,
    /// Chooses what is done beside the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Soaks the optimised mirror, as root.
pub(crate) fn soak(options: &SoakOptions) -> Result<()> {
    setup::ensure(&[Group::Build])?;
    let arch = Arch::host()?;
    let tracer = build::tracer(arch, Profile::Release, false)?;
    let (mut cargo, dir) = build::user_cargo(arch)?;
    host::run(cargo.args(["build", "--release", "--workspace", "--bin", "tracer-soak"]))?;
    let mut command = host::as_root("env")?;
    command.arg(format!("TRACER_BIN={}", tracer.display())).arg(dir.join("release/tracer-soak"));
    host::run(command.args([(options.minutes * 60).to_string(), options.seed.to_string()]))
}

/// Options of `cargo xtask bless`.
#[derive(Debug, clap::Args)]
pub(crate) struct BlessOptions {
    /// Only tests whose names contain this
    filter: Option<String>,
}

/// Accepts what the snapshot tests of `tracer-user` now give; `git diff` shows it for review.
pub(crate) fn bless(options: &BlessOptions) -> Result<()> {
    let mut cargo = host::cargo();
    // One run with the snapshots written in any case, for a run that stops at the first difference misses the rest.
    cargo.env("INSTA_UPDATE", "always").env("INSTA_FORCE_PASS", "1");
    cargo.args(["test", "-q", "--package", "tracer-user", "--lib"]).args(&options.filter);
    host::run(&mut cargo)?;
    host::step("What has changed (git diff shows it)");
    host::run(std::process::Command::new("git").current_dir(host::root()).args(["status", "--short"]))
}
