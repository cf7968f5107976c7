//! Attached events, probes, relays and histograms, with one life cycle.
//!
//! An [`Attached`](lifecycle::Attached) has a program and a way in which hits reach it. Every kind is attached,
//! replaced, parked, resumed and detached in the same way. The other files contain the differences: how gates and
//! tables find a program, and how the programs of histograms, relays and emissions are made.

pub(crate) mod chain;
pub(crate) mod dispatch_table;
pub(crate) mod emission;
pub(crate) mod entry;
pub(crate) mod functions;
pub(crate) mod gate_pair;
pub(crate) mod hist;
pub(crate) mod lifecycle;
pub(crate) mod relay;
