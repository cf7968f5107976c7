//! `cargo xtask bench`, `soak` and `bless`: small verbs that start cargo with the right settings.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::build::{self, Arch, Profile};
use crate::setup::{self, Group};
use crate::{host, vm};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Measure in a virtual machine with this version of Debian's kernel, 6.1 or 6.12, against its tracefs. The machine
    /// is emulated, so ratios are valid but nanoseconds are not
    #[arg(long, value_name = "VERSION")]
    vm: Option<String>,
    /// With --vm: architecture of the machine
    #[arg(long, value_enum, default_value = host::arch(), requires = "vm")]
    arch: Arch,
    /// Arguments of the benchmark program; its `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Measures the optimised tracer against the kernel's tracefs and other tracers, as root.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    if let Some(version) = &options.vm {
        return bench_in_machine(version, options.arch, &options.args);
    }
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

/// Runs the same benchmark in a machine, with both programs in the payload.
fn bench_in_machine(version: &str, arch: Arch, args: &[String]) -> Result<()> {
    setup::ensure(vm::groups(arch))?;
    let tracer = build::tracer(arch, Profile::Release, false)?;
    let (mut cargo, dir) = build::user_cargo(arch)?;
    host::run(cargo.args(["build", "--release", "--workspace", "--bin", "tracer-bench"]))?;
    let machine = vm::Machine::of(version, arch);
    let job = vm::Job {
        command: std::iter::once("tracer-bench".to_owned()).chain(args.iter().cloned()).collect(),
        payload: [(tracer, "tracer"), (dir.join("release/tracer-bench"), "tracer-bench")]
            .map(|(from, name)| (from, Path::new(vm::BIN).join(name)))
            .into(),
        modules: vec!["fuse".to_owned()],
        ..vm::Job::default()
    };
    host::step(format!("Measuring on Linux {version} ({})", arch.name()));
    let outcome = vm::run(&machine, &job, &mut vm::pass_on)?;
    ensure!(outcome.code == 0, "tracer-bench ended with {}", outcome.code);
    Ok(())
}

/// Options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// Duration in minutes
    #[arg(default_value_t = 10)]
    minutes: u64,
    /// Seed for the actions during the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the soak test of the optimised mirror, as root.
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

/// Accepts the current output of `tracer-user`'s snapshot tests; `git diff` shows it for review.
pub(crate) fn bless(options: &BlessOptions) -> Result<()> {
    let mut cargo = host::cargo();
    // One run writes all snapshots. A run that stops at the first difference would miss the others.
    cargo.env("INSTA_UPDATE", "always").env("INSTA_FORCE_PASS", "1");
    cargo.args(["test", "-q", "--package", "tracer-user", "--lib"]).args(&options.filter);
    host::run(&mut cargo)?;
    host::step("What has changed (git diff shows it)");
    host::run(host::git(host::root()).args(["status", "--short"]))
}
