//! Events of functions that are turned on at once: hung up through as few links as can be, before each is turned on as any other
//! ([`InstanceSession::plan_shared`](super::live::Live)). The links are made by a thread meanwhile.
//!
//! Left to themselves are events with triggers or several probes, whose programs refer to each other's slots.

use std::collections::HashMap;

use crate::{
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::event_config::{EventConfig, EventSettings},
        },
        hooks::BULK_THRESHOLD,
        probes::{self, Candidate},
    },
    event::{EventId, Format, InstanceId},
};

impl Engine {
    /// Hangs up those of these events that can share a link, where they are many.
    pub(in crate::engine) fn attach_together(&mut self, instance: InstanceId, events: &[EventId]) {
        if events.len() <= BULK_THRESHOLD {
            return;
        }
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        let mut functions: Vec<(EventId, Candidate)> = Vec::new();
        for event in events {
            self.yield_to_readers();
            let Some(state) = self.instances.get(&instance) else { return };
            if state.enabled.contains(event)
                || !state.triggers.of(*event).is_empty()
                || state.triggers.is_soft(*event)
            {
                continue;
            }
            if let Some([probe]) = self.registry.dynamic().probes_of(*event).as_deref()
                && let Some(candidate) = probes::shared(probe, &facts)
            {
                functions.push((*event, candidate));
            }
        }
        if functions.len() <= BULK_THRESHOLD {
            return;
        }
        let formats: HashMap<EventId, &Format> = functions
            .iter()
            .filter_map(|(event, _)| Some((*event, catalogue.format(*event, &facts)?)))
            .collect();
        functions.retain(|(event, _)| formats.contains_key(event));
        let mut settings: Vec<EventSettings> = Vec::with_capacity(functions.len());
        for (event, _) in &functions {
            self.yield_to_readers();
            let Ok(wanted) = desired::settings(self, instance, *event) else { return };
            settings.push(wanted);
        }
        let configs: Vec<EventConfig<'_>> = functions
            .iter()
            .zip(&settings)
            .filter_map(|((event, _), settings)| {
                Some(EventConfig { format: formats.get(event)?, settings, begins_off: false })
            })
            .collect();
        let Some(session) = self.attachments.session_mut(instance) else { return };
        let planned = session.plan_shared(&functions, &configs);
        let linked = self.run_off_thread(|| planned.link());
        if let Some(session) = self.attachments.session_mut(instance) {
            session.finish_shared(functions, linked);
        }
    }
}
