//! The choice of an event's hook: a raw tracepoint if its plan was seen to make the kernel's records, else the perf
//! tracepoint.
//!
//! A plan is tried when its event is first enabled, in a session of its own, and the result is kept. If many events
//! are enabled at once, system calls share programs behind their dispatchers, one for all calls of the same shape.
//! All other events use perf tracepoints, where events with the same code share a program too. There is no time to
//! try the plans of all these events, and at raw tracepoints each would have its own program.

use std::collections::HashMap;

use crate::{
    attach::{AttachPoint, Session, ids},
    engine::{
        attachments::session::{InstanceSession, Scope, SessionFactory},
        facts::Facts,
        hooks::{self, AttachPlan, BULK_THRESHOLD, Trial, Verdicts},
    },
    event::Format,
    kernel::{PreemptGuard, syscalls::Registers},
    ring::Drain,
};

/// The event system of the system calls.
const SYSCALLS: &str = "syscalls";
/// Bytes of a CPU's ring for trials.
const RING_BYTES: u32 = 1 << 18;
/// Slots of the session for trials.
const SLOTS: u32 = 2048;

/// The hooks that were chosen, and the results of trials.
#[derive(Debug, Default)]
pub(crate) struct HookChoices {
    /// By id and name. A new event can reuse either of them, but not both.
    known: HashMap<(u16, String), AttachPlan>,
    verdicts: Verdicts,
    trial: Option<(Session, Drain)>,
}

impl HookChoices {
    /// Chooses the hooks of events that are about to be enabled and have none yet. `recording` is the session of a
    /// recording, which does not trace yet.
    pub(crate) fn learn(
        &mut self,
        events: &[&Format],
        factory: &SessionFactory,
        recording: Option<&mut InstanceSession>,
        facts: &Facts,
    ) {
        let mut new: Vec<&Format> =
            events.iter().filter(|format| !self.known.contains_key(&key(format))).copied().collect();
        let many = new.len() > BULK_THRESHOLD;
        // The programs of a recording are never replaced and need no gate. So a raw tracepoint costs less than a
        // shared perf tracepoint.
        let is_recording = recording.is_some();
        if many && !is_recording {
            new.retain(|format| format.system == SYSCALLS);
        }
        if new.is_empty() {
            return;
        }
        let Ok(own) = ids::own() else { return };
        let mut trial = if let Some(session) = recording {
            session.trial(own.thread)
        } else {
            if self.trial.is_none() {
                let made = factory.session(RING_BYTES, SLOTS, Scope::Every, facts);
                self.trial = made.ok().map(|(session, rings)| (session, Drain::new(rings)));
            }
            let Some((session, drain)) = &mut self.trial else { return };
            Trial { session, drain, own_thread: own.thread }
        };
        let mut chosen = hooks::choose(
            &new,
            factory.options().perf_tracepoints_only,
            facts,
            &mut trial,
            &mut self.verdicts,
        );
        // A lone program would miss hits where the kernel preempts it.
        if is_recording && facts.preempt_guard().and_then(PreemptGuard::of_skipped).is_none() {
            hooks::alone(&mut chosen);
        }
        let registers = facts.btf().filter(|_| many).and_then(|btf| Registers::find(btf).ok()?);
        for (format, mut chosen) in new.into_iter().zip(chosen) {
            if let Some(registers) = &registers {
                hooks::for_any_call(&mut chosen, registers);
            }
            tracing::debug!(event = format.full_name(), point = ?chosen.point, why = chosen.reason, "hook");
            self.known.insert(key(format), chosen);
        }
    }

    /// The perf tracepoint that an event uses when it is enabled with many others. `None` if it uses another hook, or
    /// if its hook is not known yet.
    pub(crate) fn perf_id(&self, format: &Format) -> Option<u16> {
        match self.known.get(&key(format)).map(|chosen| &chosen.point) {
            None => (format.system != SYSCALLS).then_some(format.id),
            Some(AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id)) => Some(*id),
            Some(_) => None,
        }
    }

    /// The hook of an event.
    pub(crate) fn of(&self, format: &Format) -> AttachPlan {
        self.known
            .get(&key(format))
            .cloned()
            .unwrap_or_else(|| AttachPlan::tracepoint(format, "many events were enabled at once"))
    }
}

fn key(format: &Format) -> (u16, String) {
    (format.id, format.full_name())
}
