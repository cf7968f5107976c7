//! Events of an instance, to enable and emit (kernel/trace/trace_events.c).

use rustix::io::Errno;

use super::files::{Files, OpenEvent};

/// An instance, which the kernel calls a trace array.
#[derive(Clone, Debug)]
pub struct TraceArray<'a> {
    files: &'a Files,
    name: Option<String>,
}

impl<'a> TraceArray<'a> {
    /// The instance of this name; `None` names the top instance.
    pub fn named(files: &'a Files, name: Option<&str>) -> Self {
        Self { files, name: name.map(str::to_owned) }
    }

    /// Its name; `None` for the top instance.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// A reference to an event of an instance. Until it is dropped, the instance cannot be removed.
#[derive(Debug)]
pub struct TraceEventFile<'a> {
    tr: TraceArray<'a>,
    system: String,
    event: String,
    pub(super) opened: OpenEvent,
}

impl<'a> TraceEventFile<'a> {
    /// The event's instance.
    pub fn tr(&self) -> &TraceArray<'a> {
        &self.tr
    }

    /// `system:event`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.system, self.event)
    }
}

/// Acquires an event of an instance; `None` names the top instance.
///
/// # Errors
/// `ENOENT` if the instance does not exist, `EINVAL` if the event does not exist.
pub fn trace_get_event_file<'a>(
    files: &'a Files,
    instance: Option<&str>,
    system: &str,
    event: &str,
) -> Result<TraceEventFile<'a>, Errno> {
    let opened = files.open(instance, system, event)?;
    let tr = TraceArray::named(files, instance);
    Ok(TraceEventFile { tr, system: system.to_owned(), event: event.to_owned(), opened })
}

/// Releases an event, as dropping it does.
pub fn trace_put_event_file(file: TraceEventFile<'_>) {
    drop(file);
}

/// Enables or disables events of an instance: one, all of a system, those of a name in all systems, or all.
///
/// # Errors
/// `ENOENT` if the instance does not exist, `EINVAL` if no event matches.
pub fn trace_array_set_clr_event(
    tr: &TraceArray<'_>,
    system: Option<&str>,
    event: Option<&str>,
    enable: bool,
) -> Result<(), Errno> {
    tr.files.set_events(tr.name(), system, event, enable)
}
