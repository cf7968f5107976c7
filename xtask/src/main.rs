//! `cargo xtask`: build, test and measure tracer.
fn main() {}
