//! Forwards what programs of a debug build log through aya-log to `tracing` (`TRACER_LOG=debug` shows it).

use aya_log::EbpfLogger;

/// Passes aya-log's records to `tracing`.
#[derive(Debug)]
struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "bpf", "{}: {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

/// The log of a session's programs, which all write to one map.
pub(crate) struct Logs(EbpfLogger<ToTracing>);

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Logs")
    }
}

impl Logs {
    /// The log of a program; `None` if its object was built without logging.
    pub(crate) fn of(program: u32) -> Option<Self> {
        EbpfLogger::init_from_id_with_logger(program, ToTracing).ok().map(Self)
    }

    /// Shows the records since the last call.
    pub(crate) fn show(&mut self) {
        self.0.flush();
    }
}
