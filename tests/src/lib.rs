//! Shared modules of the integration tests: workloads, the kernel's tracefs as an oracle, and the frozen facts.
//!
//! The tests are in groups, `tests/GROUP/main.rs`, each with a module per subject. `cargo xtask test` runs each
//! module in a separate process, because modules change the state of their process and count its hits. `cargo test
//! --test trust deadlines::` runs one module in the same way.

pub mod bench;
pub mod blocked_fs;
pub mod compare;
pub mod events;
pub mod frozen;
pub mod generate;
pub mod host;
pub mod load;
pub mod mirror;
pub mod oracle;
pub mod probes;
pub mod races;
pub mod soak;
pub mod stopped_thread;
pub mod tracer;
pub mod tree;
pub mod triggers;
pub mod user_events;
pub mod whole;
pub mod workload;
