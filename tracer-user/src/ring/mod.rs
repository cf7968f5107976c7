//! Draining the per-CPU BPF ring buffers: waiting until there is something, and taking it out in order of time.
//!
//! Every CPU's ring is in order by itself. Across CPUs a record may be taken only when no other CPU can still
//! bring an older one: [`Drain::merge`] holds records back until they are older than the moment the drain began
//! by [`SETTLE`], or older than what a busy ring is about to deliver.

mod merge;
mod wait;

pub use merge::{Drain, Record, SETTLE};
pub use wait::{Waiter, Woken};
