//! The trace event API: events made, deleted and emitted by a program, with the names and contracts that the kernel gives
//! its own code (Documentation/trace/events.rst, "In-kernel trace event API").
//!
//! What the kernel passes as a NULL-ended list is a slice here, an error number is the `Err` of a result, and a buffer with
//! a length is a bound. [`dynevent`] builds the commands that make dynamic events.

pub mod dynevent;

/// An error number, as the kernel's functions return it.
pub use rustix::io::Errno;
