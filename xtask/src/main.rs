//! `cargo xtask`: set up, build, run, test and measure tracer.
//!
//! One verb a file. Every verb first calls [`setup::ensure`] for what it needs, so that a fresh machine gets from
//! a clone to a result by one command, and does nothing more than a few look-ups when all is there.
//!
//! Neighbours: `.cargo/config.toml` makes the alias, `.ci/run` calls `test`, `tracer-user/build.rs` embeds what
//! [`build`] leaves in `target/bpf`.

mod build;
mod cli;
mod conformance;
mod facts;
mod fuzz;
mod host;
mod lint;
mod measure;
mod setup;
mod sources;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
