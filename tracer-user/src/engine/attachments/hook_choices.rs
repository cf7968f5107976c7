//! Which hook an event hangs on: a raw tracepoint where its plan was seen to make the kernel's records, else the perf
//! tracepoint.
//!
//! A plan is put to the test when its event is first turned on, in a session of its own, and what came out stays known.
//! Where many events are turned on at once, system calls share programs behind their dispatchers, one for all calls of a
//! shape; all others go on perf tracepoints, where events with the same code share one as well. There is no time to put
//! the plans of all others to the test, and at raw tracepoints each would have a program of its own.

use std::collections::HashMap;

use crate::{
    attach::{AttachPoint, Session, ids},
    engine::{
        attachments::session::SessionFactory,
        facts::Facts,
        hooks::{self, AttachPlan, BULK_THRESHOLD, Trial, Verdicts},
    },
    event::Format,
    kernel::syscalls::Registers,
    ring::Drain,
};

/// The system of system calls.
const SYSCALLS: &str = "syscalls";
/// Bytes of a CPU's ring for trials.
const RING_BYTES: u32 = 1 << 18;
/// Programs that trials may load.
const SLOTS: u32 = 2048;

/// What is known of hooks.
#[derive(Debug, Default)]
pub(in crate::engine) struct HookChoices {
    /// By id and name: both can come again for another event, but not together.
    known: HashMap<(u16, String), AttachPlan>,
    verdicts: Verdicts,
    trial: Option<(Session, Drain)>,
}

impl HookChoices {
    /// Chooses for events that are about to be turned on, and were not before.
    pub(in crate::engine) fn learn(&mut self, events: &[&Format], factory: &SessionFactory, facts: &Facts) {
        let mut new: Vec<&Format> =
            events.iter().filter(|format| !self.known.contains_key(&key(format))).copied().collect();
        let many = new.len() > BULK_THRESHOLD;
        if many {
            new.retain(|format| format.system == SYSCALLS);
        }
        if new.is_empty() {
            return;
        }
        if self.trial.is_none() {
            let made = factory.session(RING_BYTES, SLOTS, facts);
            self.trial = made.ok().map(|(session, rings)| (session, Drain::new(rings)));
        }
        let (Some((session, drain)), Ok(own)) = (&mut self.trial, ids::own()) else { return };
        let mut trial = Trial { session, drain, own_thread: own.thread };
        let chosen = hooks::choose(&new, false, facts, &mut trial, &mut self.verdicts);
        let registers = facts.btf().filter(|_| many).and_then(|btf| Registers::find(btf).ok()?);
        for (format, mut chosen) in new.into_iter().zip(chosen) {
            if let Some(registers) = &registers {
                hooks::for_any_call(&mut chosen, registers);
            }
            tracing::debug!(event = format.full_name(), via = ?chosen.via, why = chosen.reason, "hook");
            self.known.insert(key(format), chosen);
        }
    }

    /// The perf tracepoint that an event will hang on when it is turned on with many others, so far as that is known before
    /// they were looked at.
    pub(in crate::engine) fn perf_id(&self, format: &Format) -> Option<u16> {
        match self.known.get(&key(format)).map(|chosen| &chosen.via) {
            None => (format.system != SYSCALLS).then_some(format.id),
            Some(AttachPoint::Tracepoint(id)) => Some(*id),
            Some(_) => None,
        }
    }

    /// The hook of an event.
    pub(in crate::engine) fn of(&self, format: &Format) -> AttachPlan {
        self.known
            .get(&key(format))
            .cloned()
            .unwrap_or_else(|| AttachPlan::tracepoint(format, "many were turned on at once"))
    }
}

fn key(format: &Format) -> (u16, String) {
    (format.id, format.full_name())
}
