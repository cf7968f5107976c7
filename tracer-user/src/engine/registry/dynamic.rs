//! Dynamic events: `dynamic_events`, `kprobe_events` and `uprobe_events` are three views of one set. The first also
//! lists synthetic events ([`crate::engine::registry::synthetic`]) and user events.
//!
//! An accepted definition becomes an event like any other. Its probes are attached when an instance enables the
//! event.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use crate::{
    engine::{
        command::error::CommandError,
        facts::Facts,
        probes,
        registry::{
            catalogue::{DefinedEvent, Events},
            profile::{ProbeCounts, Profile},
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{
        EventId, Format,
        dynamic::{Kind, Target},
    },
    kernel::opened::Identity,
    lang::{
        define::{Change, Defined, File, Line, NotApplied, Planned, Probe, Refusal, Set},
        facts::{Files, Machine, Sites},
        filter::FilterError,
    },
    plan::resolve,
};

/// The definitions of probes, and their events.
#[derive(Debug, Default)]
pub struct DynamicEvents {
    set: Arc<Set>,
    /// Numbers of the events, by group and name.
    numbers: HashMap<(String, String), EventId>,
    sites: Arc<OnceLock<Option<Sites>>>,
    profile: Profile,
}

impl DynamicEvents {
    /// The probes of an event, in the order of their definition; `None` for an event without a definition.
    pub(crate) fn probes_of(&self, event: EventId) -> Option<Vec<Defined>> {
        let (group, name) = self.numbers.iter().find(|(_, known)| **known == event)?.0;
        let own =
            |defined: &&Defined| defined.probe.event.group == *group && defined.probe.event.name == *name;
        Some(self.set.probes().iter().filter(own).cloned().collect())
    }

    /// The event probes on an event, with their numbers.
    pub(crate) fn eprobes_on(&self, group: &str, event: &str) -> Vec<(EventId, Probe)> {
        let probes = self.set.probes().iter().map(|defined| &defined.probe);
        let on = probes.filter(|probe| match &probe.event.target {
            Target::Event { system, name, .. } => system == group && name == event,
            _ => false,
        });
        on.filter_map(|probe| Some((self.number(probe)?, probe.clone()))).collect()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = EventId> {
        self.numbers.values().copied()
    }

    pub(crate) fn number(&self, probe: &Probe) -> Option<EventId> {
        self.numbers.get(&(probe.event.group.clone(), probe.event.name.clone())).copied()
    }

    /// All probes, in the order of the listing.
    pub(crate) fn probes(&self) -> &[Defined] {
        self.set.probes()
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The content of `kprobe_profile` or `uprobe_profile`: hits and misses of each probe.
    pub(crate) fn profile_text(&self, kind: Kind, counts: ProbeCounts<'_>) -> Vec<u8> {
        let probes = self.set.probes().iter();
        self.profile.text(probes.filter_map(|probe| Some((self.number(&probe.probe)?, probe))), kind, counts)
    }

    pub(crate) fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// Lines of a file, each with its serial number among all dynamic events.
    pub(crate) fn lines(&self, file: File) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.set.lines(file)
    }

    /// Lines that define all probes again, each with its serial number and the identity of the probe's file.
    pub(crate) fn saved_lines(&self) -> impl Iterator<Item = (u64, Vec<u8>, Option<Identity>)> {
        self.set.probes().iter().map(|defined| {
            let file = defined.probe.file.as_ref().and_then(|file| file.opened.as_ref());
            (defined.serial, defined.probe.event.read_back(), file.map(|file| file.identity()))
        })
    }

    /// The serial number of the first probe that a deletion selects.
    pub(crate) fn first_named(&self, line: &Line<'_>) -> Option<u64> {
        self.set.first_named(line, File::Dynamic)
    }

    /// Drops the known locations of functions, after modules were loaded or unloaded.
    pub(crate) fn forget_sites(&mut self) {
        self.sites = Arc::default();
    }

    /// The set, for changes. It is shared only while a line is planned.
    fn set_mut(&mut self) -> &mut Set {
        Arc::make_mut(&mut self.set)
    }

    /// Marks the probes in use: their events are enabled, or targets of event probes.
    pub(super) fn mark_busy(&mut self, is_busy: impl Fn(EventId) -> bool) {
        let targets = self.set.probes().iter().filter_map(|defined| match &defined.probe.event.target {
            Target::Event { system, name, .. } => Some((system.clone(), name.clone())),
            _ => None,
        });
        let on = self.numbers.iter().filter(|(_, event)| is_busy(**event));
        let busy: HashSet<(String, String)> = targets.chain(on.map(|(name, _)| name.clone())).collect();
        let is_busy =
            |group: &str, name: &str| !busy.is_empty() && busy.contains(&(group.to_owned(), name.to_owned()));
        self.set_mut().set_busy(is_busy);
    }

    /// The state that is needed to check a line in another thread.
    pub(super) fn planner(&self, events: &Arc<Events>, facts: &Arc<Facts>) -> LinePlanner {
        LinePlanner {
            set: Arc::clone(&self.set),
            sites: Arc::clone(&self.sites),
            events: Arc::clone(events),
            facts: Arc::clone(facts),
        }
    }
}

/// Checks lines that define or delete probes.
#[derive(Debug)]
pub(crate) struct LinePlanner {
    set: Arc<Set>,
    sites: Arc<OnceLock<Option<Sites>>>,
    events: Arc<Events>,
    facts: Arc<Facts>,
}

impl LinePlanner {
    /// Plans the effect of a line, or returns the kernel's error for it.
    pub(crate) fn plan(&self, line: &Line<'_>, file: File, files: &Files) -> Result<Planned, Refusal> {
        self.set.plan(line, file, &self.machine(files))
    }

    /// A suggestion for a refused line, for the command line.
    pub(crate) fn hint(&self, line: &Line<'_>, refusal: &Refusal, files: &Files) -> Option<String> {
        probes::hint(line, refusal, &self.machine(files), &self.facts)
    }

    /// The facts that checking a line needs. BTF and symbols take some 60 ms to read.
    fn machine<'a>(&'a self, files: &'a Files) -> Machine<'a> {
        // Of dynamic events, only those of functions and tracepoints can be targets of event probes
        // (`find_and_get_event()`, kernel/trace/trace_eprobe.c of 6.12).
        let set = Arc::clone(&self.set);
        let is_closed = move |system: &str, name: &str| {
            let mut probes = set.probes().iter().map(|defined| &defined.probe.event);
            probes.any(|own| own.kind() != Kind::Fprobe && own.group == system && own.name == name)
        };
        let (facts, events, all) = (&self.facts, Arc::clone(&self.events), Arc::clone(&self.events));
        let known = Arc::clone(facts);
        let check = move |format: &Format, text: &[u8]| -> Result<(), FilterError> {
            resolve::filter(text, format, known.as_ref()).map(drop)
        };
        let made = move |system: &str, name: &str| {
            let event = events.find(events.find_system(system)?, name)?;
            let format = events.known_format(event).filter(|_| events.is_made(event));
            format.filter(|_| !is_closed(system, name)).cloned()
        };
        let machine = Machine::running(facts.btf(), Some(&facts.tracefs))
            .with_language(facts.language())
            .with_symbols(Box::new(|| facts.symbols()))
            .with_sites(&self.sites)
            .with_events(Box::new(move |system, name| all.has(system, name)))
            .with_made(Box::new(made))
            .with_files(files)
            .with_filter_check(Box::new(check));
        if facts.is_frozen() {
            machine.without_symbols()
        } else {
            machine.with_probe_check(Box::new(probes::may_probe))
        }
    }
}

impl DynamicEvents {
    /// As [`EventRegistry::apply_probes`](super::EventRegistry::apply_probes).
    pub(super) fn apply_plan(
        &mut self,
        planned: Result<Planned, Refusal>,
        (file, line): (File, &Line<'_>),
        (table, owner): (&mut EventTable, DefinitionOwner<'_>),
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        let set = self.set_mut();
        set.number_from(table.definitions());
        match planned.map_err(NotApplied::from).and_then(|planned| set.apply_plan(planned, line, file)) {
            Ok(Change::Nothing) => {}
            Ok(Change::Added { new_event }) => {
                table.count_definition();
                let added = self.added(new_event, line.text().len(), (table, owner), changes);
                if added.is_err()
                    && let Some(last) = self.set.probes().last().map(|defined| defined.serial)
                {
                    self.set_mut().remove(last);
                }
                added?;
            }
            Ok(Change::Deleted(gone)) => self.deleted(&gone, table, changes),
            Err(NotApplied { refusal, deleted }) => {
                self.deleted(&deleted, table, changes);
                return Err(refusal.into());
            }
        }
        Ok(())
    }

    /// As [`EventRegistry::clear_probes`](super::EventRegistry::clear_probes).
    pub(super) fn clear(
        &mut self,
        file: File,
        table: &mut EventTable,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        let gone = self.set_mut().clear(file)?;
        self.deleted(&gone, table, changes);
        Ok(())
    }

    /// Deletes the probe with a serial number.
    pub(super) fn remove(&mut self, serial: u64, table: &mut EventTable, changes: &mut EventChanges) {
        let gone = self.set_mut().remove(serial);
        self.deleted(gone.as_slice(), table, changes);
    }

    /// Updates events after a line of this many bytes added a probe, to a new event or to an existing one, which may
    /// be enabled.
    fn added(
        &mut self,
        new_event: bool,
        bytes: usize,
        (table, owner): (&mut EventTable, DefinitionOwner<'_>),
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        let Some(Defined { probe, .. }) = self.set.probes().last() else { return Ok(()) };
        let (event, number) = (probe.event.clone(), self.number(probe));
        let charge = owner.charge(bytes)?;
        if !new_event {
            if let Some(number) = number {
                table.keep_charge(number, charge);
                changes.redefined.push(number);
            }
            return Ok(());
        }
        let id = table.free_id()?;
        let format = event.format(id);
        let made = DefinedEvent { text: format.text(), format, printer: probes::printer(&event, id) };
        let number = table.events_mut().add(made)?;
        table.keep_charge(number, charge);
        self.numbers.insert((event.group, event.name), number);
        Ok(())
    }

    /// Updates events after probes were deleted. An event without probes is removed.
    fn deleted(&mut self, gone: &[Probe], table: &mut EventTable, changes: &mut EventChanges) {
        for probe in gone {
            let Some(event) = self.number(probe) else { continue };
            let left = self.probes_of(event).unwrap_or_default();
            if !left.is_empty() {
                table.keep_charges(event, left.len());
                let left: Vec<u64> = left.iter().map(|defined| defined.serial).collect();
                self.profile.forget_deleted(event, &left);
                changes.redefined.push(event);
                continue;
            }
            self.numbers.remove(&(probe.event.group.clone(), probe.event.name.clone()));
            self.profile.forget(event);
            table.remove(event, changes);
        }
    }
}
