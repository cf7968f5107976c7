//! All events, and the definitions that make some of them.
//!
//! The registry knows no instance. A change of definitions therefore collects its consequences for instances in
//! [`EventChanges`], which the engine applies, also when the change itself fails half-way.

use std::{
    collections::{BTreeMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::io::Errno;

use crate::{
    engine::{
        facts::Facts,
        registry::{
            catalogue::{Events, Made},
            dynamic::{DynamicEvents, LinePlanner},
            program_events::ProgramEvents,
            synthetic::SyntheticEvents,
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{Catalogue, EventId, synthetic::Value},
    kernel::{Error, modules},
    lang::{
        define::{File, Line, Planned, Refusal},
        facts::Files,
        synth,
    },
};

/// All events.
#[derive(Debug)]
pub struct EventRegistry {
    table: EventTable,
    dynamic: DynamicEvents,
    synthetic: SyntheticEvents,
    programs: ProgramEvents,
    /// References to events (`trace_event_try_get_ref()`).
    held: BTreeMap<EventId, usize>,
    /// Reports loaded and unloaded modules, where the kernel does.
    modules: Option<modules::Changes>,
}

impl EventRegistry {
    /// The kernel's events.
    ///
    /// # Errors
    /// When their list cannot be read.
    pub(in crate::engine) fn read(facts: &Facts) -> Result<Self, Error> {
        // First, so that no change is missed.
        let modules = modules::Changes::watch();
        Ok(Self {
            table: EventTable::new(Events::read(facts)?),
            dynamic: DynamicEvents::default(),
            synthetic: SyntheticEvents::default(),
            programs: ProgramEvents::default(),
            held: BTreeMap::new(),
            modules,
        })
    }

    /// The catalogue: events by number and by name.
    pub fn events(&self) -> &Arc<Events> {
        self.table.events()
    }

    /// Events of probes.
    pub fn dynamic(&self) -> &DynamicEvents {
        &self.dynamic
    }

    /// Events of probes, to record what was counted.
    pub(in crate::engine) fn dynamic_mut(&mut self) -> &mut DynamicEvents {
        &mut self.dynamic
    }

    /// Synthetic events.
    pub fn synthetic(&self) -> &SyntheticEvents {
        &self.synthetic
    }

    /// Synthetic events, to mark their uses.
    pub(in crate::engine) fn synthetic_mut(&mut self) -> &mut SyntheticEvents {
        &mut self.synthetic
    }

    /// Events that programs bring.
    pub fn programs(&self) -> &ProgramEvents {
        &self.programs
    }

    /// A descriptor that becomes readable when modules come or go.
    pub fn module_fd(&self) -> Option<OwnedFd> {
        self.modules.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// Whether modules came or went since the last call.
    pub(in crate::engine) fn modules_changed(&self) -> bool {
        self.modules.as_ref().is_some_and(modules::Changes::pending)
    }

    /// Adds an event that the kernel does not know.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken.
    pub(in crate::engine) fn add(&mut self, made: Made) -> Result<EventId, Errno> {
        self.table.add(made)
    }

    /// Removes an event.
    pub(in crate::engine) fn remove(&mut self, event: EventId, changes: &mut EventChanges) {
        self.table.remove(event, changes);
    }

    /// Counts a dynamic event; its place among all of them.
    pub(in crate::engine) fn count_definition(&mut self) -> u64 {
        self.table.count_definition()
    }

    /// Everything that checks a line of probes, so that another thread can do it.
    pub(in crate::engine) fn planner(&self, facts: &Arc<Facts>) -> LinePlanner {
        self.dynamic.planner(self.table.events(), facts)
    }

    /// Carries out what a line of probes was planned to change.
    ///
    /// # Errors
    /// The kernel's for that line; `ENOMEM` when its client has as many definitions as it may have.
    pub(in crate::engine) fn apply_probes(
        &mut self,
        planned: Result<Planned, Refusal>,
        line: (File, &Line<'_>),
        owner: DefinitionOwner<'_>,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        self.dynamic.carry_out(planned, line, (&mut self.table, owner), changes)
    }

    /// Deletes all probes of a file.
    ///
    /// # Errors
    /// `EBUSY` when one is in use; all stay then.
    pub(in crate::engine) fn clear_probes(
        &mut self,
        file: File,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        self.dynamic.clear(file, &mut self.table, changes)
    }

    /// Applies a line that defines or deletes a synthetic event.
    ///
    /// # Errors
    /// The kernel's for that line; `ENOMEM` when its client has as many definitions as it may have.
    pub(in crate::engine) fn apply_synthetic(
        &mut self,
        line: (synth::File, &Line<'_>),
        owner: DefinitionOwner<'_>,
        facts: &Facts,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        self.synthetic.apply(line, (&mut self.table, owner), facts, changes)
    }

    /// Deletes a synthetic event.
    ///
    /// # Errors
    /// `EBUSY` for one that is in use.
    pub(in crate::engine) fn delete_synthetic(
        &mut self,
        name: &str,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        self.synthetic.delete(name, &mut self.table, changes)
    }

    /// Deletes all synthetic events, in order up to one that is in use.
    ///
    /// # Errors
    /// `EBUSY` when one stays; when a histogram makes one, all stay.
    pub(in crate::engine) fn clear_synthetic(&mut self, changes: &mut EventChanges) -> Result<(), Errno> {
        if self.synthetic.is_referenced() {
            return Err(Errno::BUSY);
        }
        self.synthetic.names().iter().try_for_each(|name| self.delete_synthetic(name, changes))
    }

    /// A record of a synthetic event as a thread emits it.
    ///
    /// # Errors
    /// `ENODEV` for an event that is gone, `EINVAL` for values that are not its fields'.
    pub(in crate::engine) fn synthetic_record(
        &self,
        event: EventId,
        values: &[Value<'_>],
        pid: u32,
        facts: &Facts,
    ) -> Result<Vec<u8>, Errno> {
        self.synthetic.record(event, values, pid, (self.table.events(), facts))
    }

    /// Deletes all probes and synthetic events, in the order of their definition and up to one that is in use.
    ///
    /// # Errors
    /// `EBUSY` when one stays.
    pub(in crate::engine) fn clear_definitions(&mut self, changes: &mut EventChanges) -> Result<(), Errno> {
        let probes = self.dynamic.probes().iter();
        let mut all: Vec<(u64, Option<String>)> = probes.map(|defined| (defined.serial, None)).collect();
        all.extend(self.synthetic.serials().map(|(serial, name)| (serial, Some(name.to_owned()))));
        all.sort();
        for (serial, name) in all {
            match name {
                Some(name) => self.delete_synthetic(&name, changes)?,
                None => self.dynamic.remove(serial, &mut self.table, changes),
            }
        }
        Ok(())
    }

    /// Whether emptying `dynamic_events` is refused as a whole.
    pub(in crate::engine) fn is_any_definition_busy(&self) -> bool {
        self.dynamic.probes().iter().any(|defined| defined.busy) || self.synthetic.is_referenced()
    }

    /// Applies what is written to `program_events`: a path adds its events, a path after `-` removes them. `is_enabled` are the
    /// events that cannot go; neither can those that are held. Nothing written removes the events of all programs.
    ///
    /// # Errors
    /// Of the first line that is refused: `EINVAL` for a file without events and a path that is not absolute, `EEXIST` for an
    /// event whose name is taken, `EBUSY` for events that are in use, and what opening the file says. `files` are those of
    /// [`program_files`](super::program_files).
    pub(in crate::engine) fn apply_programs(
        &mut self,
        written: Option<(&[u8], &Files)>,
        facts: &Facts,
        is_enabled: &dyn Fn(EventId) -> bool,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        let Self { programs, table, held, .. } = self;
        let is_busy = |event| held.contains_key(&event) || is_enabled(event);
        match written {
            Some((written, files)) => programs.apply(written, (files, facts), &is_busy, (table, changes)),
            None => programs.clear(&is_busy, (table, changes)),
        }
    }

    /// Takes a reference to an event, which then is not removed.
    pub(in crate::engine) fn hold(&mut self, event: EventId) {
        *self.held.entry(event).or_default() += 1;
    }

    /// Releases a reference; whether it was the last one.
    pub(in crate::engine) fn release(&mut self, event: EventId) -> bool {
        let Some(times) = self.held.get_mut(&event) else { return false };
        *times -= 1;
        let last = *times == 0;
        if last {
            self.held.remove(&event);
        }
        last
    }

    /// Whether there are references to an event.
    pub(in crate::engine) fn is_held(&self, event: EventId) -> bool {
        self.held.contains_key(&event)
    }

    /// Marks the definitions that are in use: their events are enabled, held, or the targets of event probes.
    pub(in crate::engine) fn mark_busy(&mut self, is_enabled: impl Fn(EventId) -> bool) {
        let held = &self.held;
        let is_busy = |event| held.contains_key(&event) || is_enabled(event);
        self.dynamic.mark_busy(is_busy);
        let dynamic = &self.dynamic;
        self.synthetic.mark_busy(|name, event| is_busy(event) || dynamic.is_probed_synthetic(name));
    }

    /// Compares the kernel's events with `available_events`, which changes with modules: removes those that are gone and adds
    /// the new ones.
    pub(in crate::engine) fn sync_with(&mut self, available: &str, changes: &mut EventChanges) {
        let listed = Catalogue::parse(available);
        let there: HashSet<(&str, &str)> = listed.iter().collect();
        let gone: Vec<EventId> = self
            .events()
            .ordinary()
            .filter(|event| {
                let Some(known) = self.events().get(*event) else { return false };
                let system = self.events().system(known.system).map_or("", |system| system.name.as_str());
                !there.contains(&(system, known.name.as_str())) && !self.events().is_made(*event)
            })
            .collect();
        for event in gone {
            self.remove(event, changes);
        }
        // The kernel lists the youngest first, and so does the catalogue.
        let mut new: Vec<(&str, &str)> = listed
            .iter()
            .filter(|(system, name)| {
                self.events()
                    .find_system(system)
                    .is_none_or(|number| self.events().find(number, name).is_none())
            })
            .collect();
        new.reverse();
        for (system, name) in new {
            if let Err(error) = self.table.add_known(system, name) {
                tracing::warn!("{system}:{name}: {error}");
            }
        }
    }
}
