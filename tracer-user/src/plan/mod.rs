//! What one attachment needs, with no instruction yet: predicates over record fields, where values come
//! from at a hook, and the record's layout.

pub mod eval;
pub mod filter;
pub mod hist;
pub mod probe;
pub mod raw;
mod raw_table;
pub mod resolve;
pub mod source;
pub mod trigger;
