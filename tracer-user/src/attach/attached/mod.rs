//! What is attached: events, probes, relays and histograms behind their gates.

pub(in crate::attach) mod dispatch_table;
pub(in crate::attach) mod emitted;
pub(in crate::attach) mod gated;
pub(in crate::attach) mod hist;
pub(in crate::attach) mod relay;
pub(in crate::attach) mod shared;
pub(in crate::attach) mod swap_point;
