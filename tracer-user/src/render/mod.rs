//! Text of records: the print-fmt engine and trace lines.
//!
//! [`Printer`] renders one event's records to the text after the event's name. [`mod@line`] adds the context before
//! it, as in a `trace` file. The output depends only on the record, the options and a [`RenderEnv`], so a command
//! line and a mounted mirror show the same.

mod env;
mod event_text;
mod fields;
pub mod fmt;
pub mod hist;
pub mod json;
pub mod latency;
pub mod line;
mod line_writer;
mod printer;
mod printf;
mod record;
mod running;
pub mod stack;
mod synthetic;
mod text_buffer;
mod value;

pub use env::{KernelFacts, Member, Pointers, RenderEnv, Symbol};
pub use event_text::probe::{ProbeHead, ProbeValue};
pub use line_writer::LineWriter;
pub use printer::Printer;
pub use record::{EventCounts, EventHook, RecordSink, RecordStart, RecordView, RecordedEvent, Summary};
pub use running::{KernelTexts, hz, jiffies};
pub use synthetic::{SynthKind, SynthValue};
pub use text_buffer::TextBuffer;
pub use value::{CpuSet, FieldValue, Numbers};
