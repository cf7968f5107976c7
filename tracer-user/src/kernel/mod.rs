//! Facts about the kernel, one file each: tracefs, symbols, BTF, syscalls, features.
//!
//! A fact is read on demand; a caller that needs it twice keeps it. An absent object is an answer (`None`,
//! [`Answer::No`]); an [`Error`] means that the fact could not be read, and states the reason. Facts can also be read
//! from a file or directory frozen for a test ([`Tracefs::frozen`], [`Symbols::read`], [`Btf::read`],
//! [`config::Config::read`]).

mod answer;
pub mod btf;
mod cast;
pub mod config;
mod error;
pub mod features;
pub mod handler;
mod later_files;
pub mod modules;
pub mod opened;
mod preempt_guard;
mod preemption;
mod probe_units;
pub mod proc;
pub mod symbols;
pub mod syscalls;
pub mod tracefs;
mod version;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use answer::Answer;
pub use btf::Btf;
pub use cast::Cast;
pub use error::Error;
pub use features::filter_parser;
pub use later_files::LaterFiles;
pub use preempt_guard::{InterruptGuard, PreemptGuard};
pub use preemption::preemption;
pub use probe_units::ProbeUnit;
pub use proc::ThreadStatus;
pub use symbols::{Symbol, Symbols};
pub use tracefs::Tracefs;
pub use version::{Change, version, version_of};

/// Reads a file whose size the kernel does not report in advance, with an initial capacity of `guess` bytes.
fn read_whole(path: &Path, guess: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(guess);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
