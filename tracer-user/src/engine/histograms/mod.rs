//! Histogram triggers: the set of them, their tables, and the programs that count.

pub(in crate::engine) mod commands;
pub(in crate::engine) mod programs;
pub(in crate::engine) mod queries;
pub(in crate::engine) mod tables;

pub use commands::Seen;
pub use queries::HistFault;
