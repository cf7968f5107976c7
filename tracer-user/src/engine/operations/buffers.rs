//! Changes of an instance's buffers.

use crate::{
    buffer::clock::Clock,
    engine::{
        Engine,
        attachments::sessions::Attachments,
        command::error::{CommandError, ErrorKind},
        instances::Instances,
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

/// Changes the clock of an instance, and empties its buffers.
///
/// # Errors
/// `EINVAL` for an unknown clock, `ENODEV` if the instance was removed.
pub(crate) fn set_clock(engine: &mut Engine, instance: InstanceId, name: &[u8]) -> Result<(), CommandError> {
    let clock = Clock::named(name).ok_or(ErrorKind::Invalid)?;
    engine.collect(instance);
    let state = engine.instances.state(instance)?;
    state.clock = clock;
    if let Some(snapshot) = &mut state.snapshot {
        snapshot.select_mut(None).for_each(|(_, buffer)| buffer.clear());
    }
    empty(&mut engine.instances, &mut engine.attachments, instance, None)
}
