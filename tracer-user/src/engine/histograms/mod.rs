//! Histogram triggers: the set of them, their tables, and the programs that count.

pub(crate) mod commands;
pub(crate) mod queries;
pub(crate) mod tables;
pub(crate) mod text;

pub use commands::{HistCommands, HistScope, Seen};
