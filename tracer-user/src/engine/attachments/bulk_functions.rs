//! Function events that are enabled at once. They are linked through as few links as possible, before each is enabled
//! like any other event ([`InstanceSession::plan_shared`](super::session::InstanceSession::plan_shared)). Another
//! thread makes the links.
//!
//! Events with triggers or several probes are attached one by one, because their programs refer to each other's
//! slots.

use std::collections::HashMap;

use crate::{
    engine::{
        Cooperative,
        attachments::{
            reconcile::Reconciler,
            session::{
                event_config::{EventConfig, EventSettings},
                probes::SharedProbe,
            },
        },
        hooks::BULK_THRESHOLD,
        probes,
    },
    event::{EventId, Format},
    lang::define::Defined,
};

impl Reconciler<'_> {
    /// Links those of these events that can share a link, if there are more than [`BULK_THRESHOLD`].
    pub(super) fn attach_together(&mut self, events: &[EventId]) {
        if events.len() <= BULK_THRESHOLD {
            return;
        }
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let mut functions: Vec<SharedProbe> = Vec::new();
        for event in events {
            self.engine.yield_to_readers();
            let Some(state) = self.engine.instances.get(self.instance) else { return };
            if state.enabled.contains(event)
                || !state.triggers.of(*event).is_empty()
                || state.triggers.is_soft(*event)
            {
                continue;
            }
            if let Some([Defined { probe, serial, .. }]) =
                self.engine.registry.dynamic().probes_of(*event).as_deref()
                && let Some(plan) = probes::shared(probe, &facts)
            {
                functions.push(SharedProbe { event: *event, serial: *serial, plan });
            }
        }
        if functions.len() <= BULK_THRESHOLD {
            return;
        }
        let formats: HashMap<EventId, &Format> = functions
            .iter()
            .filter_map(|probe| Some((probe.event, catalogue.format(probe.event, &facts)?)))
            .collect();
        functions.retain(|probe| formats.contains_key(&probe.event));
        let mut settings: Vec<EventSettings> = Vec::with_capacity(functions.len());
        for probe in &functions {
            self.engine.yield_to_readers();
            let Ok(wanted) = self.settings(probe.event) else { return };
            settings.push(wanted);
        }
        let configs: Vec<EventConfig<'_>> = functions
            .iter()
            .zip(&settings)
            .filter_map(|(probe, settings)| {
                Some(EventConfig { format: formats.get(&probe.event)?, settings, begins_off: false })
            })
            .collect();
        let Ok(session) = self.session() else { return };
        let planned = session.plan_shared(&functions, &configs);
        let linked = self.engine.run_off_thread(|| planned.link());
        if let Ok(session) = self.session() {
            session.finish_shared(functions, settings, linked);
        }
    }
}
