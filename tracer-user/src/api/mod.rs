//! The public library: recording and counting events, and the kernel's trace event API.
//!
//! - [`Recording`] does what `tracer record` does: it attaches to events with filters and probes, and passes their
//!   records to a [`RecordSink`], or returns an iterator of typed [`Event`]s. Start at [`Recording::builder`].
//! - [`Histograms`] does what `tracer hist` does: it counts hits in the kernel and shows the tables.
//! - The trace event API defines, deletes, enables and emits events, with the names and contracts that the kernel
//!   gives its own code (Documentation/trace/events.rst, "In-kernel trace event API"). A NULL-terminated list of the
//!   kernel is a slice here, an error number is the `Err` of a result, and a buffer with a length is a bound. The
//!   [`Files`] of a running mirror give access to the events. [`dynevent`] builds commands that define dynamic events;
//!   [`synth`] and [`kprobe`] build those of synthetic and kprobe events. [`event_file`] enables events, and [`trace`]
//!   emits synthetic ones.

pub mod dynevent;
pub mod event_file;
mod files;
mod hist;
pub mod kprobe;
mod record;
pub mod synth;
pub mod trace;
pub mod wire;

pub use crate::render::{
    CpuSet, EventCounts, EventHook, FieldValue, Numbers, RecordSink, RecordStart, RecordView, RecordedEvent,
    Summary,
};
pub use files::Files;
pub use hist::{HistError, HistErrorKind, Histograms, HistogramsBuilder};
pub use record::{
    Event, LineOptions, Progress, Received, RecordError, RecordErrorKind, RecordWriter, Recording,
    RecordingBuilder, SelectedRecording, Stopper,
};
/// An error number, as the kernel's functions return it.
pub use rustix::io::Errno;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/api.md")]
struct Page;
