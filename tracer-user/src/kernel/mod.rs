//! One file a kernel fact: tracefs, symbols, BTF, syscalls, features.
//!
//! A fact is read when somebody asks for it; whoever needs it twice keeps it. That something is not there is an
//! answer (`None`, [`Answer::No`]); an [`Error`] means that the answer could not be had, and says why. Every fact
//! can also be read from a file or directory in which it was frozen for a test ([`Tracefs::frozen`],
//! [`Symbols::read`], [`Btf::read`], [`config::Config::read`]).

mod answer;
pub mod btf;
mod cast;
pub mod config;
mod error;
pub mod features;
pub mod filter_parser;
pub mod memory;
pub mod modules;
pub mod mounts;
pub mod opened;
mod preemption;
mod probe_units;
pub mod symbols;
pub mod syscalls;
pub mod tracefs;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use answer::Answer;
pub use btf::Btf;
pub use cast::Cast;
pub use error::Error;
pub use preemption::preemption;
pub use probe_units::ProbeUnit;
pub use symbols::{Symbol, Symbols};
pub use tracefs::Tracefs;

/// Reads a file whose size the kernel does not tell in advance, with room for `guess` bytes.
fn read_whole(path: &Path, guess: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(guess);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
