//! The command line of `cargo xtask`: one subcommand a verb, each handed to its module.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{build, conformance, facts, fuzz, lint, measure, setup, sources, test, vm};

/// Set up, build, run, test and measure tracer.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install what is missing on this machine, or say exactly what to install
    Setup(setup::Options),
    /// Build the eBPF object and the `tracer` binary that embeds it
    Build(build::Options),
    /// Build tracer and run it as root
    Run(build::RunOptions),
    /// Run all tests, here and in virtual machines
    Test(test::Options),
    /// Check formatting, clippy, the direction of imports and the shape of files
    Lint,
    /// Run a command as root in a virtual machine with one of Debian's kernels
    Vm(vm::Options),
    /// Build a small kernel with user_events, which no kernel of Debian's has, for `--kernel IMAGE` of `vm`; `--test` compares user
    /// events there
    Kernel(sources::Options),
    /// Run the kernel's own tests of tracefs in a virtual machine
    Conformance(conformance::Options),
    /// Measure tracer against the kernel's tracefs and other tracers
    Bench(measure::BenchOptions),
    /// Run the mirror under full load, with kills in between, and hold its counts to each other
    Soak(measure::SoakOptions),
    /// Run the fuzz targets under address sanitizer, each for some seconds
    Fuzz(fuzz::Options),
    /// Accept what the snapshot tests now give
    Bless(measure::BlessOptions),
    /// Freeze a kernel's event formats into tests/facts
    Facts(facts::Options),
}

/// Parses the command line and does what it says.
pub(crate) fn run() -> Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Setup(options) => setup::verb(&options)?,
        Verb::Build(options) => build::verb(&options)?,
        Verb::Run(options) => return build::run(&options),
        Verb::Test(options) => return test::verb(&options),
        Verb::Lint => lint::verb()?,
        Verb::Vm(options) => return vm::verb(&options),
        Verb::Kernel(options) => return sources::verb(&options),
        Verb::Conformance(options) => return conformance::verb(&options),
        Verb::Bench(options) => measure::bench(&options)?,
        Verb::Soak(options) => measure::soak(&options)?,
        Verb::Fuzz(options) => fuzz::verb(&options)?,
        Verb::Bless(options) => measure::bless(&options)?,
        Verb::Facts(options) => facts::verb(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
