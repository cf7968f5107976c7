//! The hooks of one attached event. Also the session as a place to try hooks.

use super::InstanceSession;
use crate::{attach::AttachPoint, engine::hooks::Trial, event::EventId};

/// The trial of hooks in a session that does not trace yet, with hits of this thread.
pub(crate) fn trial(session: &mut InstanceSession, own_thread: u32) -> Trial<'_> {
    Trial { session: &mut session.session, drain: &mut session.queue.drain, own_thread }
}

/// The hooks of an event, each with the reason why it is no raw tracepoint. Empty for an event that other programs
/// emit.
pub(crate) fn hooks(session: &InstanceSession, event: EventId) -> impl Iterator<Item = (&AttachPoint, &str)> {
    let at_hooks = session.table.of_event(event).filter(|part| part.plan.point != AttachPoint::Inject);
    at_hooks.map(|part| (&part.plan.point, part.plan.reason.as_str()))
}
