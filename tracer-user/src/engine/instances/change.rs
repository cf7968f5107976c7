//! The commands of one instance ([`InstanceChange`]).

use crate::{
    engine::{
        Engine,
        attachments::reconcile::{Goal, Reconciler},
        command::error::CommandError,
        instances::instance::Instance,
    },
    event::{EventId, InstanceId},
};

/// Commands that change an instance. Borrows the engine.
pub(crate) struct InstanceChange<'e> {
    pub(crate) engine: &'e mut Engine,
    pub(crate) instance: InstanceId,
}

impl<'e> InstanceChange<'e> {
    pub(crate) fn of(engine: &'e mut Engine, instance: InstanceId) -> Self {
        Self { engine, instance }
    }

    /// The wanted state.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub(crate) fn state(&mut self) -> Result<&mut Instance, CommandError> {
        self.engine.instances.state(self.instance)
    }

    /// The reconciler of the instance.
    pub(crate) fn reconciler(&mut self) -> Reconciler<'_> {
        Reconciler::of(self.engine, self.instance)
    }

    /// Makes the programs of events match the changed state, which does not enable or disable them.
    pub(crate) fn update_programs(&mut self, events: &[EventId]) -> Result<(), CommandError> {
        self.reconciler().reconcile(events, Goal::Unchanged)
    }
}
