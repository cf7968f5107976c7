//! Events of functions that are turned on at once: hung up through as few links as can be, before each is turned on as any other
//! ([`Live::hang_together`](super::live::Live)).
//!
//! Left to themselves are events with triggers or several probes, whose programs refer to each other's slots.

use super::{
    live::{Live, Wanted},
    mirror::Mirror,
    state::Instance,
};
use crate::{
    control::{
        hooks::FEW,
        probes::{self, Candidate},
    },
    event::Format,
};

impl Mirror {
    /// Hangs up those of these events that can share a link, where they are many.
    pub(super) fn hang_together(&mut self, instance: u32, events: &[u32]) {
        if events.len() <= FEW {
            return;
        }
        let (facts, catalogue, kinds) = (self.facts.clone(), self.events.clone(), self.stack_kinds());
        let Some(state) = self.instances.get(&instance) else { return };
        let plain = events.iter().filter(|event| {
            !state.enabled.contains(event)
                && state.triggers.of(**event).is_empty()
                && !state.triggers.is_soft(**event)
        });
        let functions: Vec<(u32, &Format, Candidate)> = plain
            .filter_map(|event| match self.dynamic.probes_of(*event)?.as_slice() {
                [probe] => Some((*event, catalogue.format(*event, &facts)?, probes::shared(probe, &facts)?)),
                _ => None,
            })
            .collect();
        if functions.len() > FEW
            && let Ok(state) = self.state(instance)
        {
            state.hang_together(&functions, kinds);
        }
    }
}

impl Instance {
    fn hang_together(&mut self, functions: &[(u32, &Format, Candidate)], kinds: [u16; 2]) {
        let Self { live, filters, options, hists, .. } = self;
        let Some(live): Option<&mut Live> = live.as_mut() else { return };
        let wanted: Vec<Wanted<'_>> = functions
            .iter()
            .map(|(event, format, _)| Wanted {
                format,
                filter: filters.get(event).and_then(|filtering| filtering.filter.as_ref()),
                triggers: &[],
                soft: false,
                counted: hists.counts_event(*event),
                begins_off: false,
                stacks: [options.is("stacktrace"), options.is("userstacktrace")],
                kinds,
            })
            .collect();
        let events = functions.iter().map(|(event, _, candidate)| (*event, candidate.clone())).collect();
        live.hang_together(events, &wanted);
    }
}
