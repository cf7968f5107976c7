//! Plans: the requirements of one attachment, without instructions yet. They contain predicates over record fields,
//! the sources of values at a hook, and the record's layout.

pub mod derived;
#[cfg(any(test, feature = "internals"))]
pub mod eval;
pub mod expression;
pub mod filter;
pub mod hist;
pub mod probe;
pub mod raw;
mod raw_table;
pub mod resolve;
pub mod source;
pub mod trigger;
