//! What the fuzz targets drive: each takes any bytes and asserts what must hold whatever they are.
//!
//! The targets that need a mirror have one over a kernel that is frozen in files ([`frozen`]): nothing of the running kernel is
//! asked, and nothing can be attached to it. The tests run the same functions over a few inputs each (tests/tests/hostile_input.rs).

pub mod bytes;
pub mod frozen;
pub mod note;
pub mod state;
pub mod tree;
pub mod wire;
