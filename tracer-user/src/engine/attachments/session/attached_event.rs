//! The hooks and hit counts of one attached event. Also the session as a place to try hooks.

use tracer_abi::Counters;

use super::InstanceSession;
use crate::{attach::AttachPoint, engine::hooks::Trial, event::EventId};

/// The trial of hooks in a session that does not trace yet, with hits of this thread.
pub(crate) fn trial(session: &mut InstanceSession, own_thread: u32) -> Trial<'_> {
    Trial { session: &mut session.session, drain: &mut session.queue.drain, own_thread }
}

/// Counts of the hits of an event, on all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HitCounts {
    /// Hits that reached the programs, by outcome.
    pub(crate) counters: Counters,
    /// Hits for which the kernel did not run the event's own programs.
    pub(crate) missed: u64,
}

/// The counts of an event, summed over its probes.
pub(crate) fn counts(session: &InstanceSession, event: EventId) -> HitCounts {
    session.table.of_event(event).fold(HitCounts::default(), |sum, part| {
        let row = part.attached.slot().map(|slot| session.session.counters().total(slot));
        HitCounts {
            counters: sum.counters.plus(row.unwrap_or_default()),
            missed: sum.missed + part.attached.missed(),
        }
    })
}

/// The hooks of an event, each with the reason why it is no raw tracepoint. Empty for an event that other programs
/// emit.
pub(crate) fn hooks(session: &InstanceSession, event: EventId) -> impl Iterator<Item = (&AttachPoint, &str)> {
    let at_hooks = session.table.of_event(event).filter(|part| part.plan.point != AttachPoint::Inject);
    at_hooks.map(|part| (&part.plan.point, part.plan.reason.as_str()))
}
