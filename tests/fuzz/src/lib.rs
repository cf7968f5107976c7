//! The functions that the fuzz targets run. Each takes any bytes and asserts invariants that hold for every input.
//!
//! Targets that need a mirror use one over a kernel that is frozen in files ([`frozen`]). They read nothing from the
//! running kernel and attach nothing to it. The test `tests/tests/trust/hostile_input.rs` runs the same functions over a
//! few inputs each.

pub mod bytes;
pub mod frozen;
pub mod note;
pub mod state;
pub mod tree;
pub mod wire;
