//! Dynamic events: their records, and the programs that prepare the data of a record.

pub mod entry_args;
mod fetch;
pub mod prefault;
mod value;

pub(super) use fetch::{fetch_all, fetch_record};
