//! Changes of an instance's buffers.

use crate::{
    buffer::clock::Clock,
    engine::{
        attachments::sessions::Attachments,
        command::error::{CommandError, ErrorKind},
        instances::{Instances, change::InstanceChange},
    },
    event::InstanceId,
};

/// Empties the buffers of one CPU of an instance, or of all, and restarts the counts of hits.
pub(crate) fn empty(
    instances: &mut Instances,
    attachments: &mut Attachments,
    instance: InstanceId,
    cpu: Option<u32>,
) -> Result<(), CommandError> {
    instances.state(instance)?.clear(cpu);
    if let Some(session) = attachments.session_mut(instance) {
        session.reset_counts(cpu);
    }
    Ok(())
}

impl InstanceChange<'_> {
    /// Changes the clock of an instance, and empties its buffers.
    ///
    /// # Errors
    /// `EINVAL` for an unknown clock, `ENODEV` if the instance was removed.
    pub(crate) fn set_clock(&mut self, name: &[u8]) -> Result<(), CommandError> {
        let clock = Clock::named(name).ok_or(ErrorKind::Invalid)?;
        self.engine.collect(self.instance);
        let state = self.state()?;
        state.clock = clock;
        if let Some(snapshot) = &mut state.snapshot {
            snapshot.select_mut(None).for_each(|(_, buffer)| buffer.clear());
        }
        empty(&mut self.engine.instances, &mut self.engine.attachments, self.instance, None)
    }
}
