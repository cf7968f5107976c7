//! The command line of `cargo xtask`: one subcommand per verb, each implemented in its module.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{build, conformance, ebpf, facts, fresh, fuzz, kernel, lint, measure, setup, test, vm};

/// Set up, build, run, test and measure tracer.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install missing requirements on this machine, or print exactly what to install
    Setup(setup::Options),
    /// Build the `tracer` binary
    Build(build::Options),
    /// Build the checked-in eBPF objects anew, after a change of their sources
    Ebpf(ebpf::Options),
    /// Build tracer and run it as root
    Run(build::RunOptions),
    /// Run the tests that every change passes: lint, unit tests, integration tests here and some in a virtual machine
    Test(test::Options),
    /// Check formatting, clippy, imports, the shape and structure of files, spelling and links
    Lint(lint::Options),
    /// Run a command as root in a virtual machine with a Debian kernel
    Vm(vm::Options),
    /// Build a small kernel with user_events, which Debian's kernels lack, for `--kernel IMAGE` of `vm`; `--test`
    /// compares user events there
    Kernel(kernel::Options),
    /// Run the kernel's own tests of tracefs in a virtual machine
    Conformance(conformance::Options),
    /// Measure tracer against the kernel's tracefs and other tracers
    Bench(measure::BenchOptions),
    /// Run the mirror under full load, with kills in between, and compare its counts with each other
    Soak(measure::SoakOptions),
    /// Run the fuzz targets under address sanitizer, each for a number of seconds
    Fuzz(fuzz::Options),
    /// Accept the current output of the snapshot tests
    Bless(measure::BlessOptions),
    /// Run README's two commands in bare Debian systems, as root and as a user with sudo
    Fresh(fresh::Options),
    /// Freeze a kernel's event formats into tests/facts
    Facts(facts::Options),
}

/// Parses the command line and runs the verb.
pub(crate) fn run() -> Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Setup(options) => setup::verb(&options)?,
        Verb::Build(options) => build::verb(&options)?,
        Verb::Ebpf(options) => ebpf::verb(&options)?,
        Verb::Run(options) => return build::run(&options),
        Verb::Test(options) => return test::verb(&options),
        Verb::Lint(options) => lint::verb(&options)?,
        Verb::Vm(options) => return vm::verb(&options),
        Verb::Kernel(options) => return kernel::verb(&options),
        Verb::Conformance(options) => return conformance::verb(&options),
        Verb::Bench(options) => measure::bench(&options)?,
        Verb::Soak(options) => measure::soak(&options)?,
        Verb::Fuzz(options) => fuzz::verb(&options)?,
        Verb::Bless(options) => measure::bless(&options)?,
        Verb::Fresh(options) => return fresh::verb(&options),
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
