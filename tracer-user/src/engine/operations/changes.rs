//! The consequences of changed definitions for instances.

use crate::{
    buffer::clock::monotonic,
    engine::{
        Engine,
        attachments::reconcile::{Goal, reconcile},
        operations::buffers,
        registry::table::{EventChanges, RemovedEvent},
    },
    event::{EventId, InstanceId},
};

/// Applies the consequences of changed definitions to instances.
///
/// The records of a removed event stay, and its id with them ([`super::deleted_events`]). An event of the kernel is
/// removed with its module. The kernel may give its id to another event at once, so it empties the buffers that have
/// its records (`trace_module_remove_events()`, kernel/trace/trace_events.c), and they are emptied here too.
pub(crate) fn apply_changes(engine: &mut Engine, changes: EventChanges) {
    for RemovedEvent { event, id } in changes.removed {
        let mut recorded_in = engine.instances.ids();
        recorded_in.retain(|instance| forget_event(engine, *instance, event));
        match id {
            // An event that was defined again can have records of before.
            Some(id) if recorded_in.is_empty() && engine.instances.pages_of(id) == 0 => {
                engine.registry.release_deleted(id);
            }
            Some(id) => engine.registry.keep_deleted(id, recorded_in, monotonic()),
            None => recorded_in.into_iter().for_each(|instance| empty(engine, instance)),
        }
    }
    for event in changes.redefined {
        reattach(engine, event);
    }
}

/// Reattaches an event's probes where it is enabled.
pub(crate) fn reattach(engine: &mut Engine, event: EventId) {
    for instance in engine.instances.enabling(event) {
        // Detaching cannot fail for the instance.
        let _ = reconcile(engine, instance, &[event], Goal::Off);
        if let Err(error) = reconcile(engine, instance, &[event], Goal::On) {
            engine.log_error(instance, error);
        }
    }
}

/// Removes an event from an instance. Returns whether the instance may have its records.
fn forget_event(engine: &mut Engine, instance: InstanceId, event: EventId) -> bool {
    let was_recorded = engine.instances.get_mut(instance).is_some_and(|state| state.forget(event));
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.forget(event);
    }
    was_recorded
}

/// Empties the buffers of an instance, and its rings.
fn empty(engine: &mut Engine, instance: InstanceId) {
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.queue.discard();
    }
    // The instance exists.
    let _ = buffers::empty_buffers(engine, instance, None);
}
