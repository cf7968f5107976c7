//! The consequences of changed definitions for instances.

use crate::{
    engine::{
        Engine,
        attachments::reconcile::{Goal, reconcile},
        operations::buffers,
        registry::table::EventChanges,
    },
    event::{EventId, InstanceId},
};

/// Applies the consequences of changed definitions to instances. If an instance recorded a removed event, its buffers
/// are emptied, because the records can no longer be interpreted (`event_remove()`, kernel/trace/trace_events.c).
pub(in crate::engine) fn apply_changes(engine: &mut Engine, changes: EventChanges) {
    for event in changes.removed {
        for instance in engine.instances.ids() {
            forget_event(engine, instance, event);
        }
    }
    for event in changes.redefined {
        reattach(engine, event);
    }
}

/// Reattaches an event's probes where it is enabled.
pub(in crate::engine) fn reattach(engine: &mut Engine, event: EventId) {
    for instance in engine.instances.enabling(event) {
        // Detaching cannot fail for the instance.
        let _ = reconcile(engine, instance, &[event], Goal::Off);
        if let Err(error) = reconcile(engine, instance, &[event], Goal::On) {
            engine.log_error(instance, error);
        }
    }
}

/// Removes an event from an instance. If the instance recorded it, its buffers are emptied.
fn forget_event(engine: &mut Engine, instance: InstanceId, event: EventId) {
    let was_recorded = engine.instances.get_mut(instance).is_some_and(|state| state.forget(event));
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.forget(event);
        if was_recorded {
            session.queue.discard();
        }
    }
    if was_recorded {
        // The instance exists.
        let _ = buffers::empty_buffers(engine, instance, None);
    }
}
