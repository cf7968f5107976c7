//! Files of records: `trace`, `trace_pipe`, `snapshot`, their pages as bytes, and the marks that programs write.

use super::entry::{At, Entry, ReadKind, Result, all};
use crate::engine::{
    Engine, InstanceCommand,
    instances::words,
    records::{Mark, Writer},
};

/// `trace`: the records as text. A read does not consume them; emptying the file deletes them.
pub(super) const TRACE: Entry = Entry::write("trace", ReadKind::Trace, |_, _, data| Ok(data.len()))
    .truncates(|engine, at| at.change(engine, InstanceCommand::Clear(at.cpu())));

/// `trace_pipe`: the records as text. A read consumes them.
pub(super) const TRACE_PIPE: Entry = Entry::read("trace_pipe", ReadKind::Pipe);

/// `trace_pipe_raw`: the pages of records. A read consumes them.
pub(super) const TRACE_PIPE_RAW: Entry = Entry::read("trace_pipe_raw", ReadKind::RawPipe);

/// `snapshot`: the records of the last snapshot as text. A write of a number takes, frees or empties the snapshot.
pub(super) const SNAPSHOT: Entry = Entry::write("snapshot", ReadKind::Snapshot, |engine, at, data| {
    at.change(engine, InstanceCommand::Expand)?;
    let number = words::number(data)?;
    all(data, at.change(engine, InstanceCommand::Snapshot { cpu: at.cpu(), number }))
});

/// `snapshot_raw`: the pages of the last snapshot.
pub(super) const SNAPSHOT_RAW: Entry = Entry::read("snapshot_raw", ReadKind::RawSnapshot);

/// `trace_marker`: a write is recorded as text.
pub(super) const TRACE_MARKER: Entry =
    Entry::write("trace_marker", ReadKind::Nothing, |engine, at, data| mark(engine, at, Mark::Text, data))
        .mode(0o220)
        .marks(Mark::Text);

/// `trace_marker_raw`: a write is recorded as a number and bytes.
pub(super) const TRACE_MARKER_RAW: Entry =
    Entry::write("trace_marker_raw", ReadKind::Nothing, |engine, at, data| mark(engine, at, Mark::Raw, data))
        .mode(0o220)
        .marks(Mark::Raw);

fn mark(engine: &mut Engine, at: At, mark: Mark, data: &[u8]) -> Result<usize> {
    Ok(engine.mark(at.instance, mark, data, Writer::of(at.thread))?)
}
