//! eBPF instructions: assembler, lowering, listing, checker, linker, and passes over whole programs.
//!
//! The input is plans ([`crate::plan`]), the output is linked ELF objects. Code that differs between events and filters
//! is generated here as BPF functions. Code that is the same for all of them is in the Rust templates that the
//! functions are linked to.

pub mod asm;
#[cfg(any(test, feature = "internals"))]
pub mod checker;
pub mod join;
pub mod link;
pub mod listing;
pub mod lower;
#[cfg(any(test, feature = "internals"))]
pub mod machine;
pub mod opt;
