//! Histogram triggers: the set of them, their tables, and the programs that count.

pub(in crate::engine) mod commands;
pub(in crate::engine) mod queries;
pub(in crate::engine) mod tables;
pub(in crate::engine) mod text;

pub use commands::{Seen, hits_seen, text_of, trigger_text};
