//! Loaded and unloaded modules, with their events and the locations of probes in them.

use std::sync::Arc;

use crate::{
    engine::{
        Cooperative, Engine, InstanceCommand, attachments::session::table::ProgramRole,
        instances::select::Selector, operations::changes::Definitions, registry::table::EventChanges,
    },
    event::EventId,
};

impl Engine {
    /// If modules were loaded or unloaded: updates the events, enables those that waited for their module, and attaches
    /// or detaches probes in modules.
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
                    tracing::debug!("cannot read facts in advance: {error}");
                }
            }
            Err(error) => tracing::warn!("cannot read the symbols of modules: {error}"),
        }
        // Lookups and opens wait until events and probes match the loaded modules.
        self.scheduler.set_lookups_wait(true);
        let facts = Arc::clone(&self.facts);
        if let Ok(available) = self.run_off_thread(|| facts.tracefs.available_events()) {
            let mut changes = EventChanges::default();
            self.registry.sync_with(&available, &mut changes);
            Definitions::of(self).apply_changes(changes);
            Definitions::of(self).enable_awaited();
        }
        Definitions::of(self).follow_moved_probes();
        self.scheduler.set_lookups_wait(false);
    }
}

impl Definitions<'_> {
    /// Enables the events that waited for modules which were loaded.
    fn enable_awaited(&mut self) {
        for instance in self.engine.instances.ids() {
            let events = Arc::clone(self.engine.registry.events());
            let Ok(state) = self.engine.instances.state(instance) else { continue };
            for text in state.awaited.take_loaded(&events) {
                let Some((on, which)) = Selector::read(text.as_bytes()) else { continue };
                // The module may lack the event.
                if let Err(error) = self.engine.apply(instance, InstanceCommand::Events { which, on }) {
                    tracing::info!("{text}: {error}");
                }
            }
        }
    }

    /// Attaches probes that waited for a module, and detaches probes whose module was unloaded.
    fn follow_moved_probes(&mut self) {
        self.engine.registry.dynamic_mut().forget_sites();
        let has_probes = |event: &EventId| {
            let roles = [ProgramRole::Probe, ProgramRole::Relay];
            self.engine
                .attachments
                .sessions()
                .any(|(_, session)| roles.iter().any(|role| session.table.has(*event, *role)))
        };
        let events: Vec<EventId> = self.engine.registry.dynamic().numbers().filter(has_probes).collect();
        for event in events {
            self.follow_probes(event);
            self.engine.yield_to_readers();
        }
    }
}
