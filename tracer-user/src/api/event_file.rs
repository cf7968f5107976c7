//! Events of an instance, to be turned on and emitted (kernel/trace/trace_events.c).

use rustix::io::Errno;

use super::place::{Held, Place};

/// An instance: what the kernel calls a trace array.
#[derive(Clone)]
pub struct TraceArray<'a> {
    place: &'a dyn Place,
    name: Option<String>,
}

impl<'a> TraceArray<'a> {
    /// An instance by its name, or the top one.
    pub fn named(place: &'a dyn Place, name: Option<&str>) -> Self {
        Self { place, name: name.map(str::to_owned) }
    }

    /// Its name; none for the top one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl std::fmt::Debug for TraceArray<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceArray").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An event of an instance, held until it is put back: its instance cannot be removed meanwhile, nor, in a mirror of this
/// process, the event be deleted.
#[derive(Debug)]
pub struct TraceEventFile<'a> {
    tr: TraceArray<'a>,
    system: String,
    event: String,
    held: Box<dyn Held + 'a>,
}

impl<'a> TraceEventFile<'a> {
    /// Its instance.
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

/// Takes hold of an event in an instance, or in the top one.
///
/// # Errors
/// `ENOENT` without such an instance, `EINVAL` without such an event.
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

/// Gives an event back, as dropping it does.
pub fn trace_put_event_file(file: TraceEventFile<'_>) {
    drop(file);
}

/// Turns events of an instance on or off: one, all of a system, those of a name in all systems, or all.
///
/// # Errors
/// `ENOENT` without such an instance, `EINVAL` when there is none of them.
pub fn trace_array_set_clr_event(
    tr: &TraceArray<'_>,
    system: Option<&str>,
    event: Option<&str>,
    enable: bool,
) -> Result<(), Errno> {
    tr.place.set_events(tr.name(), system, event, enable)
}
