//! Function events that are enabled at once. They are linked through as few links as possible, before each is enabled
//! like any other event ([`InstanceSession::plan_shared`](super::session::InstanceSession::plan_shared)). Another
//! thread makes the links.
//!
//! Events with triggers or several probes are attached one by one, because their programs refer to each other's
//! slots.

use std::collections::HashMap;

use crate::{
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::{
                event_config::{EventConfig, EventSettings},
                probes::SharedProbe,
            },
        },
        hooks::BULK_THRESHOLD,
        probes,
    },
    event::{EventId, Format, InstanceId},
    lang::define::Defined,
};

/// Links those of these events that can share a link, if there are more than [`BULK_THRESHOLD`].
pub(crate) fn attach_together(engine: &mut Engine, instance: InstanceId, events: &[EventId]) {
    if events.len() <= BULK_THRESHOLD {
        return;
    }
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let mut functions: Vec<SharedProbe> = Vec::new();
    for event in events {
        engine.yield_to_readers();
        let Some(state) = engine.instances.get(instance) else { return };
        if state.enabled.contains(event)
            || !state.triggers.of(*event).is_empty()
            || state.triggers.is_soft(*event)
        {
            continue;
        }
        if let Some([Defined { probe, serial, .. }]) = engine.registry.dynamic().probes_of(*event).as_deref()
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
        engine.yield_to_readers();
        let Ok(wanted) = desired::settings(engine, instance, probe.event) else { return };
        settings.push(wanted);
    }
    let configs: Vec<EventConfig<'_>> = functions
        .iter()
        .zip(&settings)
        .filter_map(|(probe, settings)| {
            Some(EventConfig { format: formats.get(&probe.event)?, settings, begins_off: false })
        })
        .collect();
    let Some(session) = engine.attachments.session_mut(instance) else { return };
    let planned = session.plan_shared(&functions, &configs);
    let linked = engine.run_off_thread(|| planned.link());
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.finish_shared(functions, settings, linked);
    }
}
