//! Histogram triggers: their tables, and the programs that count.

pub(in crate::engine) mod counting;
pub(in crate::engine) mod hist;
pub(in crate::engine) mod tables;

pub use hist::Seen;
pub use tables::HistFault;
