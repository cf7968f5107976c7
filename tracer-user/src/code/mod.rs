//! eBPF instructions: assembler, lowering, listing, checker, linker, and passes over whole programs.
//!
//! Plans come in ([`crate::plan`]), linked ELF objects go out. What varies between events and filters is
//! generated here as BPF functions of the program; what stays the same is the Rust template they are linked to.

pub mod asm;
pub mod checker;
pub mod join;
pub mod link;
pub mod listing;
pub mod lower;
pub mod machine;
pub mod opt;
