//! Attached events, probes, relays and histograms, with one life cycle.
//!
//! An [`Attached`](lifecycle::Attached) has a program and a way in which hits reach it. Every kind is attached,
//! replaced, parked, resumed and detached in the same way. The other files contain the differences: how gates and
//! tables find a program, and how the programs of histograms, relays and emissions are made.

pub(in crate::attach) mod chain;
pub(in crate::attach) mod dispatch_table;
pub(in crate::attach) mod emission;
pub(in crate::attach) mod entry;
pub(in crate::attach) mod functions;
pub(in crate::attach) mod hist;
pub(in crate::attach) mod lifecycle;
pub(in crate::attach) mod relay;
