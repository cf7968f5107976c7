//! `cargo xtask fuzz`: builds the fuzz targets under address sanitizer and runs each for a number of seconds.
//!
//! The verb installs `cargo-fuzz` if it is missing. It uses a nightly toolchain if rustup has one, else the stable
//! one with `RUSTC_BOOTSTRAP=1`. If a target fails, the verb fails too, and the failing inputs are in
//! `tests/fuzz/artifacts/TARGET`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::host;
use crate::setup::{self, Group};

/// Directory of the fuzz workspace.
const DIR: &str = "tests/fuzz";
/// Maximum size of an input in bytes.
const LONGEST: u32 = 8192;
/// Time limit for one input in seconds, and memory limit of a target in MiB.
const INPUT_TIMEOUT_S: u32 = 20;
const MEMORY: u32 = 3072;
/// Number of last output lines shown for a failed target.
const SHOWN: usize = 60;

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Targets (default: all)
    targets: Vec<String>,
    /// Seconds that each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// The result of a target.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    inputs: u64,
    coverage: u64,
    features: u64,
    corpus: u64,
    peak: u64,
    found: bool,
}

/// Runs targets one after the other and prints a table of the results.
pub(crate) fn verb(options: &Options) -> Result<()> {
    let dir = host::root().join(DIR);
    let known = targets(&dir.join("fuzz_targets"))?;
    for name in &options.targets {
        ensure!(known.contains(name), "there is no target {name}: there are {}", known.join(", "));
    }
    let wanted = if options.targets.is_empty() { &known } else { &options.targets };
    setup::ensure(&[Group::Build])?;
    install()?;
    host::step("Building the fuzz targets under address sanitizer");
    for target in wanted {
        host::run(cargo_fuzz()?.args(["build", "--fuzz-dir", DIR, target]))?;
    }
    let mut table = vec![format!(
        "{:<10} {:>12} {:>9} {:>9} {:>7} {:>9}  ",
        "target", "inputs", "coverage", "features", "corpus", "peak MiB"
    )];
    let mut found = Vec::new();
    for target in wanted {
        host::step(format!("{target}: {} s", options.seconds));
        let outcome = fuzz(&dir, target, options.seconds)?;
        let Outcome { inputs, coverage, features, corpus, peak, .. } = outcome;
        let word = if outcome.found { "FOUND" } else { "" };
        table.push(format!(
            "{target:<10} {inputs:>12} {coverage:>9} {features:>9} {corpus:>7} {peak:>9}  {word}"
        ));
        if outcome.found {
            found.push(target.as_str());
        }
    }
    for line in &table {
        println!("{}", line.trim_end());
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!("{} found something: see {DIR}/artifacts", found.join(", "))
}

/// The names of the targets: the files that contain `fuzz_target!`.
fn targets(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if text.contains("fuzz_target!") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Installs `cargo-fuzz` if it is missing.
fn install() -> Result<()> {
    if find().is_some() {
        return Ok(());
    }
    host::step("Installing cargo-fuzz");
    host::run(host::cargo().args(["install", "cargo-fuzz", "--locked"]))
}

fn find() -> Option<PathBuf> {
    let own = host::cargo_bin().map(|bin| bin.join("cargo-fuzz")).filter(|path| host::is_executable(path));
    own.or_else(|| host::which("cargo-fuzz"))
}

/// `cargo fuzz` with a compiler that supports sanitizers.
fn cargo_fuzz() -> Result<Command> {
    let program = find().context("cargo-fuzz was installed and is not found")?;
    let toolchains = host::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let nightly =
        toolchains.lines().find(|line| line.starts_with("nightly")).and_then(|line| line.split(' ').next());
    let mut command = Command::new(program);
    command.current_dir(host::root()).arg("fuzz");
    host::strip_cargo_env(&mut command);
    match nightly {
        // rustup's cargo and compiler follow this variable.
        Some(name) => command.env("RUSTUP_TOOLCHAIN", name).env_remove("CARGO").env_remove("RUSTC"),
        None => command.env("RUSTC_BOOTSTRAP", "1"),
    };
    Ok(command)
}

/// Runs one target.
fn fuzz(dir: &Path, target: &str, seconds: u64) -> Result<Outcome> {
    let corpus = dir.join("corpus").join(target);
    std::fs::create_dir_all(&corpus).with_context(|| corpus.display().to_string())?;
    let mut command = cargo_fuzz()?;
    command.args(["run", "--fuzz-dir", DIR, target]).arg(&corpus);
    // The seed inputs. libFuzzer writes new inputs to the first directory, the corpus.
    let seeds = dir.join("seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.arg("--").args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={LONGEST}"),
        format!("-timeout={INPUT_TIMEOUT_S}"),
        format!("-rss_limit_mb={MEMORY}"),
        "-print_final_stats=1".to_owned(),
    ]);
    let words = dir.join("dict").join(format!("{target}.dict"));
    if words.is_file() {
        command.arg(format!("-dict={}", words.display()));
    }
    eprintln!("  $ {}", host::display(&command));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let output = child.stderr.take().context("its standard error")?;
    let mut outcome = Outcome::default();
    let mut last: Vec<String> = Vec::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        read(&line, &mut outcome);
        if last.len() == SHOWN {
            last.remove(0);
        }
        last.push(line);
    }
    outcome.found = !child.wait()?.success();
    if outcome.found {
        for line in &last {
            eprintln!("{line}");
        }
    }
    Ok(outcome)
}

/// Reads a line of libFuzzer's output: a progress line or one of the final statistics.
fn read(line: &str, outcome: &mut Outcome) {
    let mut words = line.split_whitespace();
    let number = |word: Option<&str>| word.and_then(|word| word.split('/').next()?.parse().ok());
    while let Some(word) = words.next() {
        let place = match word {
            "stat::number_of_executed_units:" => &mut outcome.inputs,
            "stat::peak_rss_mb:" => &mut outcome.peak,
            "cov:" if line.starts_with('#') => &mut outcome.coverage,
            "ft:" if line.starts_with('#') => &mut outcome.features,
            "corp:" if line.starts_with('#') => &mut outcome.corpus,
            _ => continue,
        };
        *place = number(words.next()).unwrap_or(*place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_libfuzzer_is_read() {
        let mut outcome = Outcome::default();
        for line in [
            "INFO: seed corpus: files: 12 min: 1b max: 600b total: 1000b rss: 60Mb",
            "#2048\tpulse  cov: 3120 ft: 9000 corp: 80/12Kb lim: 600 exec/s: 1024 rss: 200Mb",
            "#91234\tDONE   cov: 4555 ft: 23456 corp: 1234/120Kb lim: 600 exec/s: 1500 rss: 412Mb",
            "stat::number_of_executed_units: 91234",
            "stat::peak_rss_mb:              412",
        ] {
            read(line, &mut outcome);
        }
        let expected =
            Outcome { inputs: 91234, coverage: 4555, features: 23456, corpus: 1234, peak: 412, found: false };
        assert_eq!(outcome, expected);
    }

    #[test]
    fn every_target_is_found_and_declared() {
        let dir = host::root().join(DIR);
        let all = targets(&dir.join("fuzz_targets")).unwrap();
        let (manifest, readme) = (
            std::fs::read_to_string(dir.join("Cargo.toml")).unwrap(),
            std::fs::read_to_string(dir.join("README.md")).unwrap(),
        );
        assert!(all.len() >= 9, "{all:?}");
        for target in all {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not declared");
            assert!(readme.contains(&format!("| `{target}` |")), "{target} is not described");
        }
    }
}
