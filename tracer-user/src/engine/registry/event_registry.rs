//! All events, and the definitions of some of them.
//!
//! The registry has no access to instances. A change of definitions therefore collects its consequences for instances
//! in [`EventChanges`], which the engine applies, even if the change itself fails half-way.

use std::{
    collections::HashSet,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        programs,
        registry::{
            catalogue::Events,
            dynamic::{DynamicEvents, LinePlanner},
            program_events::ProgramEvents,
            synthetic::SyntheticEvents,
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{Catalogue, EventId, synthetic::SYSTEM},
    kernel::{Error, modules},
    lang::{
        define::{File, Line, Planned, Refusal},
        facts::Files,
        synth,
    },
};

/// All events; none by default.
#[derive(Debug, Default)]
pub struct EventRegistry {
    table: EventTable,
    dynamic: DynamicEvents,
    synthetic: SyntheticEvents,
    programs: ProgramEvents,
    /// Reports loaded and unloaded modules, if the kernel does.
    modules: Option<modules::Changes>,
}

impl EventRegistry {
    /// Reads the kernel's events.
    ///
    /// # Errors
    /// Their list cannot be read.
    pub(crate) fn read(facts: &Facts) -> Result<Self, Error> {
        // First, so that no change is missed.
        let modules = modules::Changes::watch();
        Ok(Self { modules, table: EventTable::new(Events::read(facts)?), ..Self::default() })
    }

    /// The catalogue, with what belongs to definitions.
    pub(crate) fn table(&self) -> &EventTable {
        &self.table
    }

    pub(crate) fn table_mut(&mut self) -> &mut EventTable {
        &mut self.table
    }

    /// The catalogue: events by number and by name.
    pub fn events(&self) -> &Arc<Events> {
        self.table.events()
    }

    /// Whether an event belongs to the system that cannot be enabled, such as the events of marks and stacks.
    pub(crate) fn is_special(&self, event: EventId) -> bool {
        self.events().get(event).is_some_and(|known| self.events().is_special(known.system))
    }

    /// Events of probes.
    pub fn dynamic(&self) -> &DynamicEvents {
        &self.dynamic
    }

    /// Events of probes, to record what was counted.
    pub(crate) fn dynamic_mut(&mut self) -> &mut DynamicEvents {
        &mut self.dynamic
    }

    /// Synthetic events.
    pub fn synthetic(&self) -> &SyntheticEvents {
        &self.synthetic
    }

    /// Synthetic events, to mark their uses.
    pub(crate) fn synthetic_mut(&mut self) -> &mut SyntheticEvents {
        &mut self.synthetic
    }

    /// Events of programs.
    pub fn programs(&self) -> &ProgramEvents {
        &self.programs
    }

    /// A descriptor that becomes readable when modules are loaded or unloaded.
    pub fn module_fd(&self) -> Option<OwnedFd> {
        self.modules.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// Whether modules were loaded or unloaded since the last call.
    pub(crate) fn modules_changed(&self) -> bool {
        self.modules.as_ref().is_some_and(modules::Changes::pending)
    }

    /// The state that is needed to check a line of probes in another thread.
    pub(crate) fn planner(&self, facts: &Arc<Facts>) -> LinePlanner {
        self.dynamic.planner(self.table.events(), facts)
    }

    /// Applies the plan of a line of probes.
    ///
    /// # Errors
    /// The kernel's error for that line; `ENOMEM` if the client has reached its limit of definitions.
    pub(crate) fn apply_probes(
        &mut self,
        planned: Result<Planned, Refusal>,
        line: (File, &Line<'_>),
        owner: DefinitionOwner<'_>,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.dynamic.apply_plan(planned, line, (&mut self.table, owner), changes)
    }

    /// Deletes all probes of a file, or none with `EBUSY` if one is in use.
    pub(crate) fn clear_probes(
        &mut self,
        file: File,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.dynamic.clear(file, &mut self.table, changes)
    }

    /// Applies a line that defines or deletes a synthetic event.
    ///
    /// # Errors
    /// The kernel's error for that line; `ENOMEM` if the client has reached its limit of definitions.
    pub(crate) fn apply_synthetic(
        &mut self,
        line: (synth::File, &Line<'_>),
        owner: DefinitionOwner<'_>,
        facts: &Facts,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.synthetic.apply(line, (&mut self.table, owner), facts, changes)
    }

    /// Deletes a synthetic event; `EBUSY` if it is in use.
    pub(crate) fn delete_synthetic(
        &mut self,
        name: &str,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.synthetic.delete(name, &mut self.table, changes)
    }

    /// Deletes all synthetic events, in order up to the first one in use.
    ///
    /// # Errors
    /// `EBUSY` if one is in use; if a histogram produces one, none is deleted.
    pub(crate) fn clear_synthetic(&mut self, changes: &mut EventChanges) -> Result<(), CommandError> {
        if self.synthetic.is_referenced() {
            return Err(ErrorKind::Busy.into());
        }
        self.synthetic.names().iter().try_for_each(|name| self.delete_synthetic(name, changes))
    }

    /// Deletes all probes and synthetic events, in the order of their definition up to the first one in use (`EBUSY`).
    pub(crate) fn clear_definitions(&mut self, changes: &mut EventChanges) -> Result<(), CommandError> {
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
    pub(crate) fn is_any_definition_busy(&self) -> bool {
        self.dynamic.probes().iter().any(|defined| defined.busy) || self.synthetic.is_referenced()
    }

    /// Applies a write to `program_events`: a path adds its events, a path after `-` removes them. Enabled events
    /// (`is_enabled`) cannot be removed. An empty write removes the events of all programs.
    ///
    /// # Errors
    /// The error of the first refused line: `EINVAL` for a file without events and for a relative path, `EEXIST` for an
    /// event whose name exists, `EBUSY` for events in use, `ENOMEM` if the client has reached its limit of definitions,
    /// and the error of opening the file. `files` are those of [`program_files`](super::program_files).
    pub(crate) fn apply_programs(
        &mut self,
        written: Option<(&[u8], &Files, DefinitionOwner<'_>)>,
        facts: &Facts,
        is_enabled: &dyn Fn(EventId) -> bool,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        let Self { programs, table, .. } = self;
        match written {
            Some((written, files, owner)) => {
                programs.apply(written, (files, facts, owner), is_enabled, (table, changes))
            }
            None => programs.clear(is_enabled, (table, changes)),
        }
    }

    /// Adds the events of a program for a recording, even if their names exist, because several programs may have the
    /// same ones.
    ///
    /// # Errors
    /// When the program cannot be read or has no events, or ids are used up.
    pub(crate) fn add_program(
        &mut self,
        path: &[u8],
        facts: &Facts,
    ) -> Result<Vec<EventId>, programs::Error> {
        self.programs.add_alike(path, facts, &mut self.table)
    }

    /// Marks the definitions in use: their events are enabled, or targets of event probes.
    pub(crate) fn mark_busy(&mut self, is_enabled: impl Fn(EventId) -> bool) {
        self.dynamic.mark_busy(&is_enabled);
        let dynamic = &self.dynamic;
        let is_probed = |name: &str| !dynamic.eprobes_on(SYSTEM, name).is_empty();
        self.synthetic.mark_busy(|name, event| is_enabled(event) || is_probed(name));
    }

    /// Compares the kernel's events with `available_events`, which changes with modules. Removes events that no
    /// longer exist, and adds new ones.
    pub(crate) fn sync_with(&mut self, available: &str, changes: &mut EventChanges) {
        let listed = Catalogue::parse(available);
        let there: HashSet<(&str, &str)> = listed.iter().collect();
        let events = self.events();
        let is_gone = |event: &EventId| {
            let Some(known) = events.get(*event) else { return false };
            let system = events.system(known.system).map_or("", |system| system.name.as_str());
            !there.contains(&(system, known.name.as_str())) && !events.is_made(*event)
        };
        let gone: Vec<EventId> = events.ordinary().filter(is_gone).collect();
        for event in gone {
            self.table.remove(event, changes);
        }
        // The kernel lists the newest first, and so does the catalogue.
        let new: Vec<(&str, &str)> =
            listed.iter().filter(|(system, name)| !self.events().has(system, name)).collect();
        for (system, name) in new.into_iter().rev() {
            if let Err(error) = self.table.events_mut().add_known(system, name) {
                tracing::warn!("{system}:{name}: {error}");
            }
        }
    }
}
