//! Options of an engine's attachments that hold for all instances: the choices of a command line.

/// Options of an engine's attachments that hold for all instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Whether perf tracepoints are used even where raw tracepoints are possible.
    pub perf_tracepoints_only: bool,
    /// Whether hits of this process are traced too.
    pub own: bool,
    /// Whether the engine does not follow the names of tasks: no record is shown, or the recording follows them
    /// itself. Following them takes two perf events, and the kernel takes 40 ms to close each.
    pub without_names: bool,
    /// The sizes of a recording, if the engine serves only that recording.
    pub recording: Option<RecordingOptions>,
}

/// Options of a recording. Its events are attached together and do not change until they are all detached. So their
/// hooks are chosen together, and a program is attached without a gate where this makes hits cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingOptions {
    /// Bytes of each CPU's ring.
    pub ring_bytes: u32,
    /// Number of programs that record, including those that follow names.
    pub slots: u32,
    /// Whether only threads in the instance's list are traced, even while the list is empty.
    pub listed_only: bool,
}
