//! Draining the rings of all CPUs: waiting for records and taking them out in time order.
//!
//! Every CPU's ring is ordered by itself. Across CPUs a record may be passed on only when no other CPU can still
//! deliver an older one. [`Drain::merge`] holds records back until they are older than the start of the drain by
//! [`SETTLE`], or older than the record that a busy ring is about to deliver.

mod merge;
mod wait;

pub use merge::{Drain, Merge, Record, SETTLE};
pub use wait::{Waiter, Woken};
