//! `cargo xtask`: set up, build, run, test and measure tracer.
//!
//! One file per verb. Every verb first calls [`setup::ensure`] for its requirements. One command therefore suffices
//! on a fresh clone, and on a prepared machine the check takes only a few look-ups.
//!
//! `.cargo/config.toml` defines the alias, and `.ci/run` calls `test`.

mod arch;
mod build;
mod cli;
mod conformance;
mod ebpf;
mod facts;
mod fresh;
mod fuzz;
mod host;
mod kernel;
mod lint;
mod measure;
mod setup;
mod sources;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The time of the steps begins here.
    host::elapsed();
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
