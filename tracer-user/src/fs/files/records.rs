//! Files of records: `trace`, `trace_pipe`, `snapshot`, their pages as bytes, and the marks that programs write.

use super::entry::{ClientEngine, Entry, ReadKind, Result};
use crate::engine::{InstanceCommand, RecordCommand, Reply, instances::words, records::Mark};

/// `trace`: the records as text. A read does not consume them; emptying the file deletes them.
pub(super) const TRACE: Entry = Entry::write("trace", ReadKind::Trace, |_, data| Ok(data.len()))
    .truncates(|at| Ok(InstanceCommand::Clear(at.cpu()).into()));

/// `trace_pipe`: the records as text. A read consumes them.
pub(super) const TRACE_PIPE: Entry = Entry::read("trace_pipe", ReadKind::Pipe);

/// `trace_pipe_raw`: the pages of records. A read consumes them.
pub(super) const TRACE_PIPE_RAW: Entry = Entry::read("trace_pipe_raw", ReadKind::RawPipe);

/// `snapshot`: the records of the last snapshot as text. A write of a number takes, frees or empties the snapshot.
pub(super) const SNAPSHOT: Entry = Entry::write("snapshot", ReadKind::Snapshot, |engine, data| {
    engine.execute(InstanceCommand::Expand)?;
    let number = words::number(data)?;
    engine.take(data, InstanceCommand::Snapshot { cpu: engine.at.cpu(), number })
});

/// `snapshot_raw`: the pages of the last snapshot.
pub(super) const SNAPSHOT_RAW: Entry = Entry::read("snapshot_raw", ReadKind::RawSnapshot);

/// `trace_marker`: a write is recorded as text.
pub(super) const TRACE_MARKER: Entry =
    Entry::write("trace_marker", ReadKind::Nothing, |engine, data| mark(engine, Mark::Text, data))
        .mode(0o220)
        .marks(Mark::Text);

/// `trace_marker_raw`: a write is recorded as a number and bytes.
pub(super) const TRACE_MARKER_RAW: Entry =
    Entry::write("trace_marker_raw", ReadKind::Nothing, |engine, data| mark(engine, Mark::Raw, data))
        .mode(0o220)
        .marks(Mark::Raw);

fn mark(engine: &mut ClientEngine<'_>, mark: Mark, data: &[u8]) -> Result<usize> {
    engine.execute(RecordCommand::Mark { mark, text: data }).map(Reply::written)
}
