//! The trace event API: events made, deleted and emitted by a program, with the names and contracts that the kernel gives
//! its own code (Documentation/trace/events.rst, "In-kernel trace event API").
//!
//! What the kernel passes as a NULL-ended list is a slice here, an error number is the `Err` of a result, and a buffer with
//! a length is a bound. Where the events are is said by a [`Place`]: the files of a mirror that runs ([`Files`]), or a mirror
//! in this process, a `RefCell<Engine>`. [`dynevent`] builds the commands that make dynamic events, [`synth`] and
//! [`kprobe`] those of synthetic events and of kprobes; [`event_file`] turns events on, and [`trace`] traces synthetic ones.

pub mod dynevent;
pub mod event_file;
mod files;
pub mod kprobe;
mod own;
mod place;
pub mod synth;
pub mod trace;
pub mod wire;

pub use files::Files;
pub use place::{FieldKind, Held, Place, SynthField};
/// An error number, as the kernel's functions return it.
pub use rustix::io::Errno;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/api.md")]
struct Page;
