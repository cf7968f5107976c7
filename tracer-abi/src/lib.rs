//! Definitions that the eBPF side and user space share: record header, map names, keys and values, program parameters,
//! and the symbols of generated functions. Layouts are asserted at compile time. This crate depends on neither side.
#![no_std]

mod emission;
mod hook;
mod map;
mod record;
pub mod ring;

pub use emission::*;
pub use hook::*;
pub use map::*;
pub use record::*;
