//! Histograms: `hist` lines of `trigger` files, and the `hist` files.
//!
//! All instances share one set of triggers ([`super::tables`]). A command may create and remove histograms on other
//! events, so the tables follow the set of triggers (`HistCommands::set_triggers`). A word in the session states
//! whether a histogram counts. Triggers of other events also change it (`enable_hist`), so files show the word.

use std::sync::Arc;

use tracer_abi::hist;

use crate::{
    attach::{Counts, Opening},
    buffer::clock::Clock,
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::{
            reconcile::{Goal, Reconciler},
            session::table::ProgramRole,
        },
        command::error::{CommandError, ErrorKind},
        dependents::Dependents,
        histograms::{tables::Table, text::shown},
        instances::change::InstanceChange,
    },
    event::{EventId, Format, InstanceId, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, HistId, Set, Trigger, TriggerId, World},
    },
    plan::resolve,
};

/// The histograms of an instance, to be read: the environment of a histogram command.
pub struct HistScope<'a> {
    engine: &'a Engine,
    instance: InstanceId,
}

impl<'a> HistScope<'a> {
    /// The histograms of this instance.
    pub fn of(engine: &'a Engine, instance: InstanceId) -> Self {
        Self { engine, instance }
    }

    /// The content of an event's `trigger` file.
    ///
    /// # Errors
    /// `ENODEV` if the instance was removed.
    pub fn trigger_text(&self, event: EventId) -> Result<Vec<u8>, CommandError> {
        let status = self.engine.status(self.instance).ok_or(ErrorKind::Gone)?;
        let hists = self.triggers(event).iter().flat_map(Trigger::read_back).collect();
        Ok(status.trigger_text(event, hists, |event| self.engine.registry.events().full_name(event)))
    }

    /// An event's histogram triggers, each with the state of its word.
    fn triggers(&self, event: EventId) -> Vec<Trigger> {
        let name = self.engine.registry.events().full_name(event);
        let (system, event) = name.split_once(':').unwrap_or_default();
        let status = self.engine.status(self.instance);
        let triggers = self.engine.histograms.set().of_event(self.instance, system, event).cloned();
        let as_said = |mut trigger: Trigger| {
            trigger.paused = status.is_some_and(|status| status.is_paused(trigger.id));
            trigger
        };
        triggers.map(as_said).collect()
    }
}

impl World for HistScope<'_> {
    fn instance(&self) -> InstanceId {
        self.instance
    }

    fn dialect(&self) -> Dialect {
        Dialect::newest()
    }

    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>> {
        let events = &self.engine.registry.events();
        let event = events.find(events.find_system(system)?, name)?;
        events.format(event, &self.engine.facts).cloned().map(Arc::new)
    }

    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>> {
        self.engine.registry.synthetic().find(name)
    }

    fn has_clock(&self, name: &[u8]) -> bool {
        Clock::named(name).is_some()
    }

    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError> {
        resolve::filter(text, event, self.engine.facts.as_ref()).map(|_| ())
    }
}

/// Commands that change an instance's histograms. Borrows the engine.
pub struct HistCommands<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) instance: InstanceId,
}

impl<'e> HistCommands<'e> {
    /// The histograms of this instance.
    pub fn of(engine: &'e mut Engine, instance: InstanceId) -> Self {
        Self { engine, instance }
    }

    pub(super) fn scope(&self) -> HistScope<'_> {
        HistScope::of(self.engine, self.instance)
    }

    fn reconciler(&mut self) -> Reconciler<'_> {
        Reconciler::of(self.engine, self.instance)
    }
}

/// How far an event's histograms have counted: each trigger with hits, and the last hit that was seen.
pub type Seen = Vec<(TriggerId, u64)>;

impl HistCommands<'_> {
    /// The content of an event's `hist` file.
    ///
    /// # Errors
    /// `ENODEV` if the instance was removed.
    pub fn text_of(&mut self, event: EventId) -> Result<Vec<u8>, CommandError> {
        self.engine.instances.get(self.instance).ok_or(ErrorKind::Gone)?;
        let with_counts = |trigger: Trigger| {
            let counts = self
                .engine
                .histograms
                .table(self.instance, trigger.id)
                .map(|table| Arc::clone(&table.counts));
            (trigger, counts)
        };
        let tables: Vec<_> = self.scope().triggers(event).into_iter().map(with_counts).collect();
        let facts = Arc::clone(&self.engine.facts);
        // Reading, sorting and printing a table can take long: it has up to 131,072 entries.
        Ok(self.engine.run_off_thread(move || {
            let mut text = Vec::new();
            for (number, (trigger, counts)) in tables.iter().enumerate() {
                let read = counts.as_ref().and_then(|counts| counts.read().ok());
                text.extend(shown(trigger, read.unwrap_or_default(), number, &facts));
            }
            text
        }))
    }

    /// How far an event's histograms have counted. With `wake`, the next hit of any of them is reported by a control
    /// record.
    pub fn hits_seen(&mut self, event: EventId, wake: bool) -> Seen {
        let tables = self.engine.histograms.tables(self.instance).iter().filter(|table| table.event == event);
        let tables: Vec<(TriggerId, HistId)> = tables.map(|table| (table.trigger, table.hist)).collect();
        let mut seen = Seen::new();
        for (trigger, hist) in tables {
            // Triggers with the same name share the histogram.
            self.note_hits(hist, wake);
            let same = self.engine.histograms.all().filter(|(_, table)| table.hist == hist);
            let hits = same.map(|(_, table)| table.hits).sum();
            seen.extend((hits > 0).then_some((trigger, hits)));
        }
        seen
    }

    /// Removes an event's histograms, when `trigger` is opened with `O_TRUNC`. Other triggers stay.
    ///
    /// # Errors
    /// `ENODEV` if the instance or the event was removed.
    pub(crate) fn clear_hists(&mut self, event: EventId) -> Result<(), CommandError> {
        let name = self.engine.registry.events().full_name(event);
        let (system, event_name) = name.split_once(':').ok_or(ErrorKind::Gone)?;
        let mut set = self.engine.histograms.set().clone();
        set.clear(system, event_name, &self.scope());
        self.set_triggers(set)
    }

    /// Removes an instance's histograms, before the instance is removed.
    pub(crate) fn forget_hists(&mut self) {
        let mut set = self.engine.histograms.set().clone();
        set.forget_instance(self.instance, &self.scope());
        // Removing cannot be refused.
        let _ = self.set_triggers(set);
    }
}

impl HistCommands<'_> {
    /// Records which tables of a histogram counted since the last call. The next hit is recorded again, and a control
    /// record reports it if a client waits for it.
    fn note_hits(&mut self, hist: HistId, wake: bool) {
        let next = if wake { hist::WAKE } else { hist::NOTE };
        let Engine { histograms, attachments, .. } = self.engine;
        for (instance, table) in histograms.all_mut().filter(|(_, table)| table.hist == hist) {
            let Some(session) = attachments.session(instance) else { continue };
            table.hits += u64::from(session.kernel().switches().await_hist(table.place, next));
        }
    }

    /// Reads the formats of the events that a histogram's `onmatch(SYSTEM.EVENT)` names.
    fn read_matched_formats(&mut self, command: &[u8]) {
        let text = String::from_utf8_lossy(command);
        for named in text.split("onmatch(").skip(1) {
            let name = named.split(')').next().and_then(|name| name.split_once('.'));
            let events = self.engine.registry.events();
            let event =
                name.and_then(|(system, name)| events.find(events.find_system(system.trim())?, name.trim()));
            if let Some(event) = event {
                // The command finds the error again.
                let _ = self.reconciler().read_format(event);
            }
        }
    }

    /// Applies a `hist` line written to an event's `trigger`; `text` is the part after `hist`.
    pub(crate) fn set_hist(
        &mut self,
        event: EventId,
        text: Option<&[u8]>,
        remove: bool,
    ) -> Result<(), CommandError> {
        self.reconciler().read_format(event)?;
        let facts = self.engine.facts.clone();
        // In a private engine, do not read what the command does not need.
        if !facts.is_warm() && self.engine.scheduler().is_shared() {
            self.engine.run_off_thread(|| facts.warm());
        }
        self.read_matched_formats(text.unwrap_or_default());
        let format = Arc::new(self.engine.registry.events().try_format(event, &self.engine.facts)?.clone());
        let mut set = self.engine.histograms.set().clone();
        let result = set.apply(&format, text, remove, &self.scope());
        let taken = result?;
        // A command can succeed after an error that the kernel logs.
        self.engine.instances.log(self.instance, &taken.log.texts());
        match taken.change {
            Change::Nothing => Ok(()),
            Change::Added(_, clock) => {
                let _opening = Opening::begin_at_once();
                self.engine.make_session(self.instance)?;
                self.set_triggers(set)?;
                clock.map_or(Ok(()), |clock| InstanceChange::of(self.engine, self.instance).set_clock(&clock))
            }
            Change::Removed(_) => self.set_triggers(set),
            Change::Paused(id) => {
                self.pause_hist(id, true);
                Ok(())
            }
            Change::Resumed(id) => {
                self.pause_hist(id, false);
                Ok(())
            }
            Change::Cleared(id) => {
                let Some(table) = self.engine.histograms.table_mut(self.instance, id) else { return Ok(()) };
                table.hits += 1;
                let counts = Arc::clone(&table.counts);
                self.engine.run_off_thread(move || counts.clear()).map_err(|_| ErrorKind::Io.into())
            }
        }
    }

    /// Sets whether a histogram is paused.
    pub(crate) fn pause_hist(&mut self, id: TriggerId, paused: bool) {
        self.engine.histograms.set_paused(id, paused);
        let table = self.engine.histograms.table(self.instance, id);
        if let (Some(table), Some(session)) = (table, self.engine.attachments.session(self.instance)) {
            session.kernel().switches().pause_hist(table.place, paused);
        }
    }

    /// Creates tables for the new triggers of a set, drops those of removed triggers, and stores the set. If something
    /// is refused, nothing changes.
    fn set_triggers(&mut self, set: Set) -> Result<(), CommandError> {
        let mut before = self.engine.histograms.replace_set(set);
        let all = self.engine.histograms.set().triggers().map(|trigger| (trigger.instance, trigger.id));
        let is_new = |(instance, id): &(InstanceId, TriggerId)| {
            self.engine.instances.get(*instance).is_some()
                && self.engine.histograms.table(*instance, *id).is_none()
        };
        let new: Vec<(InstanceId, TriggerId)> = all.filter(is_new).collect();
        for (done, (instance, id)) in new.iter().enumerate() {
            if let Err(errno) = HistCommands::of(self.engine, *instance).add_table(*id) {
                // Programs are compared by the ids of triggers.
                before.skip_ids_of(self.engine.histograms.set());
                self.engine.histograms.replace_set(before);
                for (instance, id) in new.iter().take(done).rev() {
                    if let Err(error) = HistCommands::of(self.engine, *instance).drop_table(*id) {
                        tracing::warn!("a histogram that was taken back: {error}");
                    }
                }
                return Err(errno);
            }
        }
        // The set keeps unlisted triggers for references to their variables, but they no longer count.
        let is_gone = |(_, table): &(InstanceId, &Table)| {
            self.engine.histograms.set().triggers().all(|trigger| trigger.id != table.trigger)
        };
        let gone =
            self.engine.histograms.all().filter(is_gone).map(|(instance, table)| (instance, table.trigger));
        let gone: Vec<(InstanceId, TriggerId)> = gone.collect();
        let mut first = Ok(());
        for (instance, id) in gone {
            first = first.and(HistCommands::of(self.engine, instance).drop_table(id));
        }
        self.engine.histograms.count_uses(&mut self.engine.registry);
        first
    }
}

impl HistCommands<'_> {
    /// Creates the table of a trigger, which triggers of the same name share, and its programs.
    fn add_table(&mut self, id: TriggerId) -> Result<(), CommandError> {
        let trigger = self.engine.histograms.trigger(id).ok_or(ErrorKind::Gone)?.clone();
        let (hist, format) = (&trigger.hist, &trigger.event);
        let event = self.engine.registry.events().find_system(&format.system);
        let event = event
            .and_then(|system| self.engine.registry.events().find(system, &format.name))
            .ok_or(ErrorKind::Gone)?;
        if lower::unsupported(hist).is_some() {
            return Err(ErrorKind::Unsupported.into());
        }
        if hist.takes_snapshots() {
            // Programs do not overwrite records any more, so that a snapshot has those before it.
            self.engine.collect(self.instance);
            self.engine.instances.state(self.instance)?.arm_snapshot();
        }
        let counts = match self.engine.histograms.counts(hist.id) {
            Some(counts) => Arc::clone(counts),
            None => Arc::new(Counts::of(hist, self.engine.facts.cpus()).map_err(|_| ErrorKind::NoMemory)?),
        };
        let place = self.engine.histograms.add(self.instance, &trigger, event, counts)?;
        if let Some(session) = self.engine.attachments.session(self.instance) {
            session.kernel().switches().pause_hist(place, trigger.paused);
            session.kernel().switches().await_hist(place, hist::NOTE);
        }
        let mut done = Dependents::of(self.engine, self.instance).update(event);
        let mut is_counted = false;
        if done.is_ok() && !self.engine.registry.is_special(event) {
            done = self.reconciler().soft_mode_get(event, true);
            is_counted = done.is_ok();
        }
        done = done.and_then(|()| self.update_switches(event));
        if done.is_err() {
            self.remove_table(id);
            // The event's other dependents run as before.
            let counted = if is_counted { self.reconciler().soft_mode_put(event, true) } else { Ok(()) };
            let others = Dependents::of(self.engine, self.instance).update(event);
            if let Err(error) = counted.and(others) {
                tracing::warn!("after a refused histogram: {error}");
            }
        }
        done
    }

    /// Removes a table with its programs. Returns its event.
    fn remove_table(&mut self, id: TriggerId) -> Option<EventId> {
        let table = self.engine.histograms.remove(self.instance, id)?;
        let (event, session) = (table.event, self.engine.attachments.session_mut(self.instance));
        let programs = session.map(|session| {
            [ProgramRole::Histogram(id), ProgramRole::HistogramInject(id)]
                .map(|role| session.table.take(event, role))
        });
        // The kernel verifies the sequence of the consumers that stay, and frees the programs and a table that can be
        // large.
        self.engine.run_off_thread(move || drop((programs, table)));
        Some(event)
    }

    /// Removes a table, and updates the programs of its event.
    fn drop_table(&mut self, id: TriggerId) -> Result<(), CommandError> {
        // Requested snapshots must be taken first.
        self.engine.collect(self.instance);
        let Some(event) = self.remove_table(id) else { return Ok(()) };
        let updated = Dependents::of(self.engine, self.instance).update(event);
        let switched = self.update_switches(event);
        let counted = if self.engine.registry.is_special(event) {
            Ok(())
        } else {
            self.reconciler().soft_mode_put(event, true)
        };
        switched.and(counted).and(updated)
    }

    /// Updates the programs of triggers that enable or disable an event's histograms.
    fn update_switches(&mut self, event: EventId) -> Result<(), CommandError> {
        let switching = self.engine.instances.state(self.instance)?.triggers.switching(event, true);
        let mut first = Ok(());
        for other in switching {
            first = first.and(self.reconciler().reconcile(&[other], Goal::Unchanged));
        }
        first
    }
}
