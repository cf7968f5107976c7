//! Events of an instance, to enable and emit (kernel/trace/trace_events.c).

use rustix::io::Errno;

use super::place::{Held, Place};

/// An instance, which the kernel calls a trace array.
#[derive(Clone)]
pub struct TraceArray<'a> {
    place: &'a dyn Place,
    name: Option<String>,
}

impl<'a> TraceArray<'a> {
    /// The instance of this name; `None` names the top instance.
    pub fn named(place: &'a dyn Place, name: Option<&str>) -> Self {
        Self { place, name: name.map(str::to_owned) }
    }

    /// Its name; `None` for the top instance.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl std::fmt::Debug for TraceArray<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceArray").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A reference to an event of an instance. Until it is dropped, the instance cannot be removed. In a mirror of this
/// process, the event cannot be deleted either.
#[derive(Debug)]
pub struct TraceEventFile<'a> {
    tr: TraceArray<'a>,
    system: String,
    event: String,
    held: Box<dyn Held + 'a>,
}

impl<'a> TraceEventFile<'a> {
    /// The event's instance.
    pub fn tr(&self) -> &TraceArray<'a> {
        &self.tr
    }

    pub(super) fn held(&self) -> &dyn Held {
        &*self.held
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
    place: &'a dyn Place,
    instance: Option<&str>,
    system: &str,
    event: &str,
) -> Result<TraceEventFile<'a>, Errno> {
    let held = place.hold(instance, system, event)?;
    let tr = TraceArray::named(place, instance);
    Ok(TraceEventFile { tr, system: system.to_owned(), event: event.to_owned(), held })
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
    tr.place.set_events(tr.name(), system, event, enable)
}
