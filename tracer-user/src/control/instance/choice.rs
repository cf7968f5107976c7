//! Which hook an event hangs on: a raw tracepoint where its plan was seen to make the kernel's records, else the perf
//! tracepoint.
//!
//! A plan is put to the test when its event is first turned on, in a session of its own, and what came out stays known.
//! Where many events are turned on at once they all go on perf tracepoints: there events with the same code share
//! a program, while at raw tracepoints each has its own.

use std::collections::HashMap;

use super::live::Grounds;
use crate::{
    attach::{Session, ids},
    control::{
        facts::Facts,
        hooks::{self, Chosen, Trial, Verdicts},
    },
    event::Format,
    ring::Drain,
};

/// So many events at once are few.
const FEW: usize = 32;
/// Bytes of a CPU's ring for trials.
const RING_BYTES: u32 = 1 << 18;
/// Programs that trials may load.
const SLOTS: u32 = 2048;

/// What is known of hooks.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// By id and name: both can come again for another event, but not together.
    known: HashMap<(u16, String), Chosen>,
    verdicts: Verdicts,
    trial: Option<(Session, Drain)>,
}

impl Choices {
    /// Chooses for events that are about to be turned on, and were not before.
    pub(super) fn learn(&mut self, events: &[&Format], grounds: &Grounds, facts: &Facts) {
        let new: Vec<&Format> =
            events.iter().filter(|format| !self.known.contains_key(&key(format))).copied().collect();
        if new.is_empty() || new.len() > FEW {
            return;
        }
        if self.trial.is_none() {
            let made = grounds.session(RING_BYTES, SLOTS, facts);
            self.trial = made.ok().map(|(session, rings)| (session, Drain::new(rings)));
        }
        let (Some((session, drain)), Ok(own)) = (&mut self.trial, ids::own()) else { return };
        let mut trial = Trial { session, drain, own_thread: own.thread };
        let chosen = hooks::choose(&new, false, facts, &mut trial, &mut self.verdicts);
        for (format, chosen) in new.into_iter().zip(chosen) {
            tracing::debug!(event = format.full_name(), via = ?chosen.via, why = chosen.reason, "hook");
            self.known.insert(key(format), chosen);
        }
    }

    /// The hook of an event.
    pub(super) fn of(&self, format: &Format) -> Chosen {
        self.known
            .get(&key(format))
            .cloned()
            .unwrap_or_else(|| Chosen::tracepoint(format, "many were turned on at once"))
    }
}

fn key(format: &Format) -> (u16, String) {
    (format.id, format.full_name())
}
