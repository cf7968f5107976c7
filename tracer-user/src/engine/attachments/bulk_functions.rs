//! Events of functions that are turned on at once: hung up through as few links as can be, before each is turned on as any other
//! ([`InstanceSession::plan_together`](super::live::Live)). The links are made by a thread meanwhile.
//!
//! Left to themselves are events with triggers or several probes, whose programs refer to each other's slots.

use std::collections::HashMap;

use crate::{
    attach::FunctionLinks,
    engine::{
        Cooperative, Engine,
        attachments::session::{EventConfig, InstanceSession},
        hooks::BULK_THRESHOLD,
        instances::instance::Instance,
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
        let (facts, catalogue, kinds) = (self.facts.clone(), self.events.clone(), self.stack_kinds());
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
            if let Some([probe]) = self.dynamic.probes_of(*event).as_deref()
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
        let Ok(state) = self.state(instance) else { return };
        let Some(together) = state.plan_together(&functions, &formats, kinds) else { return };
        let linked = self.run_off_thread(|| together.link());
        if let Ok(state) = self.state(instance)
            && let Some(live) = &mut state.live
        {
            live.finish_together(functions, linked);
        }
    }
}

impl Instance {
    fn plan_together(
        &mut self,
        functions: &[(EventId, Candidate)],
        formats: &HashMap<EventId, &Format>,
        kinds: [u16; 2],
    ) -> Option<FunctionLinks> {
        let Self { live, filters, options, hists, .. } = self;
        let live: &mut InstanceSession = live.as_mut()?;
        let stacks = [options.is("stacktrace"), options.is("userstacktrace")];
        let wanted = functions.iter().map(|(event, _)| {
            Some(EventConfig {
                format: formats.get(event)?,
                filter: filters.get(event).and_then(|filtering| filtering.filter.as_ref()),
                triggers: &[],
                soft: false,
                counted: hists.counts_event(*event),
                begins_off: false,
                stacks,
                kinds,
            })
        });
        let wanted: Vec<EventConfig<'_>> = wanted.collect::<Option<_>>()?;
        Some(live.plan_together(functions, &wanted))
    }
}
