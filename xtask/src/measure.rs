//! `cargo xtask bench`, `soak` and `bless`: small verbs that start cargo with the right settings.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::build::{self, Profile};
use crate::setup::{self, Group};
use crate::{host, vm};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Measure only in a virtual machine with this version of Debian's kernel, 6.1 or 6.12, against its tracefs. The
    /// machine is emulated, so ratios are valid but nanoseconds are not
    #[arg(long, value_name = "VERSION")]
    vm: Option<String>,
    /// With --vm: architecture of the machine
    #[arg(long, value_enum, default_value = host::arch(), requires = "vm")]
    arch: Arch,
    /// Write the page with the tables; it keeps those of its tables that this run does not replace
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Arguments of the benchmark program; its `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The kernel of the machine for what the host's kernel may lack: probes of functions, and histograms of its own.
const BENCH_KERNEL: &str = "6.12";
/// What is measured there if a run has no arguments, and in how many rounds: the machine is slow.
const BENCH_PARTS: [&str; 4] = ["--only", "probes,functions", "--rounds", "3"];
/// Appended to the titles of its tables.
const BENCH_PLACE: &str = ", in an emulated machine";

/// Measures the optimised tracer against the kernel's tracefs and other tracers, as root. Without arguments, everything
/// is measured, on the host and in a machine. Tables and values are in `target/bench` afterwards.
pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    let results = host::root().join("target/bench");
    std::fs::create_dir_all(&results).with_context(|| format!("cannot create {}", results.display()))?;
    let own = ["--write", "--save", "--with", "--json"];
    if let Some(option) = options.args.iter().find(|word| own.contains(&word.as_str())) {
        bail!("{option} has to come before the options of the benchmark program, or is set by this command");
    }
    if let Some(version) = &options.vm {
        let whole = BENCH_PARTS.map(str::to_owned);
        let args = if options.args.is_empty() { &whole[..] } else { &options.args[..] };
        bench_in_machine(version, options.arch, args, &results)?;
        return match &options.write {
            Some(page) => {
                let (_, program) = bench_programs(Arch::host()?)?;
                let with = results.join("machine.md");
                host::run(
                    Command::new(program).args(["--only", "", "--with"]).arg(with).arg("--write").arg(page),
                )
            }
            None => Ok(()),
        };
    }
    setup::ensure(&[Group::Build, Group::Bench])?;
    let arch = Arch::host()?;
    let (tracer, program) = bench_programs(arch)?;
    let mut command = host::as_root("env")?;
    command.arg(format!("TRACER_BIN={}", tracer.display()));
    match vm::newest_bpftrace().and_then(|unpacked| unpacked.words("bpftrace")) {
        Ok(words) => {
            // One word a line.
            let mut newest = OsString::from("BPFTRACE_NEWEST=");
            newest.push(words.join(OsStr::new("\n")));
            command.arg(newest);
        }
        Err(error) => eprintln!("without the newest bpftrace: {error:#}"),
    }
    command.arg(&program).arg("--json").arg(results.join("host.json"));
    command.arg("--save").arg(results.join("host.md")).args(&options.args);
    let whole = options.args.is_empty();
    if whole {
        bench_in_machine(BENCH_KERNEL, arch, &BENCH_PARTS.map(str::to_owned), &results)?;
        command.arg("--with").arg(results.join("machine.md"));
    }
    if let Some(page) = &options.write {
        command.arg("--write").arg(page);
    }
    host::step("Measuring here");
    host::run(&mut command)
}

/// Builds the optimised tracer and the benchmark program.
fn bench_programs(arch: Arch) -> Result<(PathBuf, PathBuf)> {
    let tracer = build::tracer(arch, Profile::Release, false)?;
    let (mut cargo, dir) = build::user_cargo(arch)?;
    // The benchmark finds its clients beside itself.
    let clients = ["--bin", "tracer-user-attack", "--bin", "tracer-user-client"];
    host::run(cargo.args(["build", "--release", "--workspace", "--bin", "tracer-bench"]).args(clients))?;
    Ok((tracer, dir.join("release/tracer-bench")))
}

/// Runs the same benchmark in a machine, with both programs in the payload. Its tables and values are in `results`
/// afterwards.
fn bench_in_machine(version: &str, arch: Arch, args: &[String], results: &Path) -> Result<()> {
    setup::ensure(vm::groups(arch))?;
    let (tracer, program) = bench_programs(arch)?;
    let machine = vm::Machine::of(version, arch);
    let kept = [("/run/machine.md", "--save"), ("/run/machine.json", "--json")];
    let mut command: Vec<String> =
        ["tracer-bench", "--place", BENCH_PLACE].into_iter().map(str::to_owned).collect();
    command.extend(kept.iter().flat_map(|(file, option)| [*option, *file]).map(str::to_owned));
    command.extend(args.iter().cloned());
    let job = vm::Job {
        command,
        payload: [(tracer, "tracer"), (program, "tracer-bench")]
            .map(|(from, name)| (from, Path::new(vm::BIN).join(name)))
            .into(),
        modules: vec!["fuse".to_owned()],
        keep: kept
            .iter()
            .filter_map(|(file, _)| Some((PathBuf::from(file), results.join(Path::new(file).file_name()?))))
            .collect(),
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
    cargo
        .args(["test", "-q", "--package", "tracer-user", "--lib", "--features", "pages"])
        .args(&options.filter);
    host::run(&mut cargo)?;
    host::step("What has changed (git diff shows it)");
    host::run(host::git(host::root()).args(["status", "--short"]))
}
