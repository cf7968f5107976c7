//! The consequences of changed definitions for instances.

use crate::{
    buffer::clock::monotonic,
    engine::{
        Engine,
        attachments::{
            reconcile::{Goal, Reconciler},
            sessions::Attachments,
        },
        dependents::Dependents,
        instances::Instances,
        operations::buffers,
        registry::table::{EventChanges, RemovedEvent},
    },
    event::{EventId, InstanceId},
};

/// Changes of definitions, and their consequences in all instances. Borrows the engine.
pub(crate) struct Definitions<'e> {
    pub(super) engine: &'e mut Engine,
}

impl<'e> Definitions<'e> {
    pub(crate) fn of(engine: &'e mut Engine) -> Self {
        Self { engine }
    }
}

impl Definitions<'_> {
    /// Applies the consequences of changed definitions to instances.
    ///
    /// The records of a removed event stay, and its id with them ([`super::deleted_events`]). An event of the kernel is
    /// removed with its module. The kernel may give its id to another event at once, so it empties the buffers that
    /// have its records (`trace_module_remove_events()`, kernel/trace/trace_events.c), and they are emptied here too.
    pub(crate) fn apply_changes(&mut self, changes: EventChanges) {
        for RemovedEvent { event, id } in changes.removed {
            let Engine { instances, attachments, .. } = self.engine;
            let mut recorded_in = instances.ids();
            recorded_in.retain(|instance| forget_event(instances, attachments, *instance, event));
            match id {
                // An event that was defined again can have records of before.
                Some(id) if recorded_in.is_empty() && instances.pages_of(id) == 0 => {
                    self.engine.registry.table_mut().release(id);
                }
                Some(id) => self.engine.registry.table_mut().keep(id, recorded_in, monotonic()),
                None => recorded_in.into_iter().for_each(|instance| empty(instances, attachments, instance)),
            }
        }
        for event in changes.redefined {
            self.follow_probes(event);
        }
    }

    /// Attaches and detaches an event's probes and relays, after its definitions or modules changed.
    pub(super) fn follow_probes(&mut self, event: EventId) {
        for instance in self.engine.instances.ids() {
            let relayed = Dependents::of(self.engine, instance).update(event);
            let followed = Reconciler::of(self.engine, instance).reconcile(&[event], Goal::Unchanged);
            for error in [relayed, followed].into_iter().filter_map(Result::err) {
                self.engine.log_error(instance, error);
            }
        }
    }
}

/// Removes an event from an instance. Returns whether the instance may have its records.
fn forget_event(
    instances: &mut Instances,
    attachments: &mut Attachments,
    instance: InstanceId,
    event: EventId,
) -> bool {
    let was_recorded = instances.get_mut(instance).is_some_and(|state| state.forget(event));
    if let Some(session) = attachments.session_mut(instance) {
        session.forget(event);
    }
    was_recorded
}

/// Empties the buffers of an instance, and its rings.
fn empty(instances: &mut Instances, attachments: &mut Attachments, instance: InstanceId) {
    if let Some(session) = attachments.session_mut(instance) {
        session.queue.discard();
    }
    // The instance exists.
    let _ = buffers::empty(instances, attachments, instance, None);
}
