//! Loaded and unloaded modules: their events and the places of probes come and go.

use std::sync::Arc;

use crate::{
    engine::{
        Command, Cooperative, Engine, instances::select::Selector, probes, registry::table::EventChanges,
    },
    event::EventId,
    lang::define::Probe,
};

impl Engine {
    /// Where modules came or went, learns their events, enables those that were awaited, and attaches or detaches probes whose
    /// place came or went.
    pub fn learn_modules(&mut self) {
        if !self.registry.modules_changed() {
            return;
        }
        match self.facts.anew() {
            Ok(facts) => {
                self.facts = facts.into();
                let facts = Arc::clone(&self.facts);
                let warmed = std::thread::Builder::new().name("facts".to_owned()).spawn(move || facts.warm());
                if let Err(error) = warmed {
                    tracing::debug!("facts are read when they are needed: {error}");
                }
            }
            Err(error) => tracing::warn!("symbols of modules: {error}"),
        }
        // Lookups and opens wait until the events and probes are those of the modules that are loaded now.
        self.scheduler.set_lookups_wait(true);
        let facts = Arc::clone(&self.facts);
        if let Ok(available) = self.run_off_thread(|| facts.tracefs.available_events()) {
            let mut changes = EventChanges::default();
            self.registry.sync_with(&available, &mut changes);
            self.apply_changes(changes);
            self.enable_awaited();
        }
        self.reattach_moved_probes();
        self.scheduler.set_lookups_wait(false);
    }

    /// Enables the events that waited for modules which were loaded.
    fn enable_awaited(&mut self) {
        for instance in self.numbers().collect::<Vec<_>>() {
            let events = Arc::clone(self.registry.events());
            let Ok(state) = self.state(instance) else { continue };
            for text in state.awaited.take_loaded(&events) {
                let Some((on, which)) = Selector::read(text.as_bytes()) else { continue };
                // The module may lack the event.
                if let Err(error) = self.apply(instance, &Command::Events { which, on }) {
                    tracing::info!("{text}: {error}");
                }
            }
        }
    }

    /// Attaches the probes that waited for a module, and detaches those whose place is gone.
    fn reattach_moved_probes(&mut self) {
        self.registry.dynamic_mut().forget_sites();
        let facts = Arc::clone(&self.facts);
        let waits = |probe: &Probe| probes::waits(probe, &facts);
        let events: Vec<EventId> = self.registry.dynamic().numbers().collect();
        for event in events {
            let probes = self.registry.dynamic().probes_of(event).unwrap_or_default();
            let waits: Vec<Option<bool>> = probes.iter().map(waits).collect();
            let mut attached = self.attachments.sessions().filter_map(|(_, session)| session.probes(event));
            let stale = attached.any(|attached| {
                attached.waiting().zip(&waits).any(|(was, now)| now.is_some_and(|now| was != now))
            });
            drop(attached);
            if stale {
                self.reattach(event);
            }
        }
    }
}
