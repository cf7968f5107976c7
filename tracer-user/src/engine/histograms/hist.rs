//! Histograms: `hist` lines of `trigger` files, and the `hist` files.
//!
//! What triggers there are is known for all instances together, as a name is shared by all; tables, words and programs
//! (`counting.rs`) are an instance's own. A command may make histograms on other events and take them away again, so that
//! tables follow the set of triggers ([`Engine::follow_hists`]). Whether one counts is said by a word in the session, which
//! triggers of other events turn too (`enable_hist`), so that what is set is asked of the word.

use std::sync::Arc;

use rustix::io::Errno;
use tracer_abi::{HISTS, hist};

use crate::{
    attach::{Counts, Opening},
    buffer::clock::{Clock, monotonic},
    code::lower::hist as lower,
    engine::{
        Command, Cooperative, Engine, hist::shown, histograms::counting::Running,
        instances::instance::Instance,
    },
    event::{EventId, Format, InstanceId, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, HistId, Set, Trigger, TriggerId, World},
    },
    plan::resolve,
};

/// A trigger's table, and what counts in it.
#[derive(Debug)]
pub(in crate::engine) struct Table {
    pub(in crate::engine) trigger: TriggerId,
    pub(in crate::engine) hist: HistId,
    /// The event, for when the trigger is gone.
    pub(in crate::engine) event: EventId,
    pub(in crate::engine) counts: Arc<Counts>,
    /// Where its words are.
    pub(in crate::engine) place: u16,
    pub(in crate::engine) running: Running,
    /// How often it was found that there were hits since it was last asked.
    hits: u64,
}

/// The histograms of an instance.
#[derive(Debug, Default)]
pub(in crate::engine) struct Hists {
    pub(in crate::engine) tables: Vec<Table>,
    free: Vec<u16>,
    used: u16,
}

impl Hists {
    /// Whether an event has any.
    pub(in crate::engine) fn counts_event(&self, event: EventId) -> bool {
        self.tables.iter().any(|table| table.event == event)
    }

    /// Where the words of an event's histograms are.
    pub(in crate::engine) fn places(&self, event: EventId) -> Vec<u16> {
        self.tables.iter().filter(|table| table.event == event).map(|table| table.place).collect()
    }

    pub(in crate::engine) fn table(&self, trigger: TriggerId) -> Option<&Table> {
        self.tables.iter().find(|table| table.trigger == trigger)
    }

    pub(in crate::engine) fn table_mut(&mut self, trigger: TriggerId) -> Option<&mut Table> {
        self.tables.iter_mut().find(|table| table.trigger == trigger)
    }

    /// The counts of a histogram, which triggers of one name share.
    fn counts(&self, hist: HistId) -> Option<&Arc<Counts>> {
        self.tables.iter().find(|table| table.hist == hist).map(|table| &table.counts)
    }

    fn take_place(&mut self) -> Result<u16, Errno> {
        let new = || (usize::from(self.used) < HISTS).then_some(self.used);
        let place = self.free.pop().or_else(new).ok_or(Errno::NOMEM)?;
        self.used = self.used.max(place + 1);
        Ok(place)
    }
}

/// What the mirror has that histograms are about.
pub(in crate::engine) struct Around<'a> {
    pub(in crate::engine) mirror: &'a Engine,
    pub(in crate::engine) instance: InstanceId,
}

impl World for Around<'_> {
    fn instance(&self) -> InstanceId {
        self.instance
    }

    fn dialect(&self) -> Dialect {
        Dialect::newest()
    }

    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>> {
        let events = &self.mirror.events;
        let event = events.find(events.find_system(system)?, name)?;
        events.format(event, &self.mirror.facts).cloned().map(Arc::new)
    }

    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>> {
        self.mirror.find_synthetic(name)
    }

    fn has_clock(&self, name: &[u8]) -> bool {
        Clock::named(name).is_some()
    }

    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError> {
        resolve::filter(text, event, self.mirror.facts.as_ref()).map(|_| ())
    }
}

/// How far an event's histograms had counted: each trigger of which a hit was seen, and when the last one was.
pub type Seen = Vec<(TriggerId, u64)>;

impl Engine {
    /// An event's triggers, each with what its word says.
    fn hists_of(&self, instance: InstanceId, event: EventId) -> Vec<Trigger> {
        let name = self.events.full_name(event);
        let (system, event) = name.split_once(':').unwrap_or_default();
        let status = self.status(instance);
        let triggers = self.histograms.of_event(instance, system, event).cloned();
        let as_said = |mut trigger: Trigger| {
            trigger.paused = status.is_some_and(|status| status.is_paused(trigger.id));
            trigger
        };
        triggers.map(as_said).collect()
    }

    /// What an event's `trigger` file reads.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn trigger_text(&self, instance: InstanceId, event: EventId) -> Result<Vec<u8>, Errno> {
        let status = self.status(instance).ok_or(Errno::NODEV)?;
        let hists = self.hists_of(instance, event).iter().flat_map(Trigger::read_back).collect();
        Ok(status.trigger_text(event, hists, |event| self.events.full_name(event)))
    }

    /// What an event's `hist` file reads.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn hist_text(&mut self, instance: InstanceId, event: EventId) -> Result<Vec<u8>, Errno> {
        let state = self.get(instance).ok_or(Errno::NODEV)?;
        let with_counts = |trigger: Trigger| {
            let counts = state.hists.table(trigger.id).map(|table| Arc::clone(&table.counts));
            (trigger, counts)
        };
        let tables: Vec<_> = self.hists_of(instance, event).into_iter().map(with_counts).collect();
        let facts = Arc::clone(&self.facts);
        // A table has up to 131,072 entries to be read, sorted and shown.
        Ok(self.run_off_thread(move || {
            let mut text = Vec::new();
            for (number, (trigger, counts)) in tables.iter().enumerate() {
                let read = counts.as_ref().and_then(|counts| counts.read().ok());
                text.extend(shown(trigger, read.unwrap_or_default(), number, &facts));
            }
            text
        }))
    }

    /// How far an event's histograms have counted; the ring is written to at the next hit of any if somebody waits for that.
    pub fn hist_seen(&mut self, instance: InstanceId, event: EventId, wake: bool) -> Seen {
        let Some(state) = self.get(instance) else { return Seen::new() };
        let tables = state.hists.tables.iter().filter(|table| table.event == event);
        let tables: Vec<(TriggerId, HistId)> = tables.map(|table| (table.trigger, table.hist)).collect();
        let mut seen = Seen::new();
        for (trigger, hist) in tables {
            // Whoever has the same name may have counted.
            self.note_hits(hist, wake);
            let same = self.all().flat_map(|state| &state.hists.tables).filter(|table| table.hist == hist);
            let hits = same.map(|table| table.hits).sum();
            seen.extend((hits > 0).then_some((trigger, hits)));
        }
        seen
    }

    /// Notes which tables of a histogram were counted in since they were last asked. The next hit is noted again, and
    /// written to the ring if a client waits for it.
    fn note_hits(&mut self, hist: HistId, wake: bool) {
        let Self { instances, attachments, .. } = self;
        for (instance, state) in instances {
            let Some(session) = attachments.session(*instance) else { continue };
            for table in state.hists.tables.iter_mut().filter(|table| table.hist == hist) {
                let next = if wake { hist::WAKE } else { hist::NOTE };
                table.hits += u64::from(session.kernel().switches().await_hist(table.place, next));
            }
        }
    }

    /// A line with `hist` that was written to an event's `trigger`; `text` is what stands behind it.
    pub(in crate::engine) fn set_hist(
        &mut self,
        instance: InstanceId,
        event: EventId,
        text: Option<&[u8]>,
        remove: bool,
    ) -> Result<(), Errno> {
        self.read_format(event)?;
        let facts = self.facts.clone();
        if !facts.is_warm() {
            self.run_off_thread(|| facts.warm());
        }
        self.read_matched_formats(text.unwrap_or_default());
        let format = Arc::new(self.events.try_format(event, &self.facts)?.clone());
        let mut set = self.histograms.clone();
        let result = set.apply(&format, text, remove, &Around { mirror: self, instance });
        let entries = match &result {
            Ok(taken) => taken.log.texts(),
            Err(refusal) => refusal.log().texts(),
        };
        let state = self.state(instance)?;
        for entry in entries {
            state.errors.push(monotonic(), entry);
        }
        match result.map_err(|refusal| refusal.errno())?.change {
            Change::Nothing => Ok(()),
            Change::Added(_, clock) => {
                let _opening = Opening::begin_at_once();
                self.make_session(instance)?;
                self.follow_hists(set)?;
                clock.map_or(Ok(()), |clock| self.apply(instance, &Command::Clock(&clock)))
            }
            Change::Removed(_) => self.follow_hists(set),
            Change::Paused(id) => self.pause_hist(instance, id, true),
            Change::Resumed(id) => self.pause_hist(instance, id, false),
            Change::Cleared(id) => {
                let Some(table) = self.state(instance)?.hists.table_mut(id) else { return Ok(()) };
                table.hits += 1;
                table.counts.clear().map_err(|_| Errno::IO)
            }
        }
    }

    /// Says whether a histogram counts.
    pub(in crate::engine) fn pause_hist(
        &mut self,
        instance: InstanceId,
        id: TriggerId,
        paused: bool,
    ) -> Result<(), Errno> {
        self.histograms.set_paused(id, paused);
        let state = self.instances.get(&instance).ok_or(Errno::NODEV)?;
        if let (Some(table), Some(session)) = (state.hists.table(id), self.attachments.session(instance)) {
            session.kernel().switches().pause_hist(table.place, paused);
        }
        Ok(())
    }

    /// Takes an event's histograms away, as opening its `trigger` for writing from the start does; other triggers stay.
    ///
    /// # Errors
    /// `ENODEV` when the instance or the event is gone.
    pub fn clear_hists(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        self.touch();
        let name = self.events.full_name(event);
        let (system, event_name) = name.split_once(':').ok_or(Errno::NODEV)?;
        let mut set = self.histograms.clone();
        set.clear(system, event_name, &Around { mirror: self, instance });
        self.follow_hists(set)
    }

    /// Takes an instance's histograms away, before the instance goes.
    pub(in crate::engine) fn forget_hists(&mut self, instance: InstanceId) {
        let mut set = self.histograms.clone();
        set.forget_instance(instance, &Around { mirror: self, instance });
        // What goes is refused nothing.
        let _ = self.follow_hists(set);
    }

    /// Makes tables for the triggers of a set that have none, takes those away whose triggers are gone, and keeps the set;
    /// when something is refused, all is as it was.
    fn follow_hists(&mut self, set: Set) -> Result<(), Errno> {
        let before = std::mem::replace(&mut self.histograms, set);
        let new = self.histograms.triggers().map(|trigger| (trigger.instance, trigger.id));
        let is_new = |(instance, id): &(InstanceId, TriggerId)| {
            self.get(*instance).is_some_and(|state| state.hists.table(*id).is_none())
        };
        let new: Vec<(InstanceId, TriggerId)> = new.filter(is_new).collect();
        for (done, (instance, id)) in new.iter().enumerate() {
            if let Err(errno) = self.add_table(*instance, *id) {
                self.histograms = before;
                for (instance, id) in new.iter().take(done).rev() {
                    self.drop_table(*instance, *id)?;
                }
                return Err(errno);
            }
        }
        let is_gone = |table: &&Table| self.histograms.triggers().all(|trigger| trigger.id != table.trigger);
        let gone = |(instance, state): (InstanceId, &Instance)| {
            let gone = state.hists.tables.iter().filter(is_gone);
            gone.map(|table| (instance, table.trigger)).collect::<Vec<_>>()
        };
        let gone: Vec<(InstanceId, TriggerId)> = self.numbered().flat_map(gone).collect();
        let done = gone.into_iter().try_for_each(|(instance, id)| self.drop_table(instance, id));
        self.count_uses();
        done
    }

    /// Tells the synthetic events whether a histogram uses them.
    pub(in crate::engine) fn count_uses(&mut self) {
        let names: Vec<String> =
            self.synthetic.set.events().iter().map(|defined| defined.event.name.clone()).collect();
        for name in names {
            let used = self.histograms.uses_of_synthetic(&name) > 0;
            self.synthetic.set.set_referenced(&name, used);
        }
    }

    /// The counts of a histogram, in whatever instance its triggers are.
    pub(in crate::engine) fn counts_of(&self, hist: HistId) -> Option<&Arc<Counts>> {
        self.all().find_map(|state| state.hists.counts(hist))
    }

    /// Makes the table of a trigger, shared with those of its name, and what counts in it.
    fn add_table(&mut self, instance: InstanceId, id: TriggerId) -> Result<(), Errno> {
        let trigger = self.histograms.trigger(id).ok_or(Errno::NODEV)?.clone();
        let (hist, format) = (&trigger.hist, &trigger.event);
        let event = self.events.find_system(&format.system);
        let event = event.and_then(|system| self.events.find(system, &format.name)).ok_or(Errno::NODEV)?;
        if lower::unsupported(hist).is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        if hist.takes_snapshots() {
            self.state(instance)?.arm_snapshot();
        }
        let counts = match self.counts_of(hist.id) {
            Some(counts) => Arc::clone(counts),
            None => Arc::new(Counts::of(hist).map_err(|_| Errno::NOMEM)?),
        };
        let state = self.state(instance)?;
        let place = state.hists.take_place()?;
        if let Some(session) = self.attachments.session(instance) {
            session.kernel().switches().pause_hist(place, trigger.paused);
            session.kernel().switches().await_hist(place, hist::NOTE);
        }
        let state = self.state(instance)?;
        let (running, hits) = (Running::default(), 0);
        state.hists.tables.push(Table { trigger: id, hist: hist.id, event, counts, place, running, hits });
        let mut done = self.run_table(instance, id);
        if done.is_ok() && !self.is_special(event) {
            done = self.soften_idle(instance, event);
        }
        done = done.and_then(|()| self.tell_switches(instance, event));
        if done.is_err() {
            self.forget_table(instance, id);
        }
        done
    }

    fn forget_table(&mut self, instance: InstanceId, id: TriggerId) -> Option<Table> {
        let hists = &mut self.get_mut(instance)?.hists;
        let at = hists.tables.iter().position(|table| table.trigger == id)?;
        let table = hists.tables.remove(at);
        hists.free.push(table.place);
        Some(table)
    }

    /// Takes a table away.
    fn drop_table(&mut self, instance: InstanceId, id: TriggerId) -> Result<(), Errno> {
        // Snapshots that it asked for are taken.
        self.collect(instance);
        let Some(table) = self.forget_table(instance, id) else { return Ok(()) };
        let event = table.event;
        // For its perf event the kernel takes some 30 to 60 ms.
        self.run_off_thread(move || drop(table));
        self.tell_switches(instance, event)?;
        if self.is_special(event) {
            return Ok(());
        }
        self.harden_idle(instance, event)?;
        self.rebuild_dependents(instance, event)
    }

    /// Lets triggers that turn an event's histograms on and off know which these are by now.
    fn tell_switches(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        let switching = self.state(instance)?.triggers.switching_hists(event);
        switching.into_iter().try_for_each(|other| self.refresh(instance, other))
    }
}
