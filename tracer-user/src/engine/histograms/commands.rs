//! Histograms: `hist` lines of `trigger` files, and the `hist` files.
//!
//! The set of triggers is one for all instances ([`super::tables`]). A command may make histograms on other events and take
//! them away again, so that tables follow the set of triggers ([`set_triggers`]). A word in the session says whether a
//! histogram counts. Triggers of other events change the word too (`enable_hist`), so that files show the word.

use std::sync::Arc;

use rustix::io::Errno;
use tracer_abi::hist;

use crate::{
    attach::{Counts, Opening},
    buffer::clock::{Clock, monotonic},
    code::lower::hist as lower,
    engine::{
        Command, Cooperative, Engine,
        attachments::reconcile::{self, Goal},
        hist::shown,
        histograms::{programs, tables::Table},
    },
    event::{EventId, Format, InstanceId, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, HistId, Set, Trigger, TriggerId, World},
    },
    plan::resolve,
};

/// What a command about histograms may ask for.
pub(in crate::engine) struct Around<'a> {
    pub(in crate::engine) engine: &'a Engine,
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

/// How far an event's histograms had counted: each trigger of which a hit was seen, and when the last one was.
pub type Seen = Vec<(TriggerId, u64)>;

impl Engine {
    /// What an event's `trigger` file reads.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn trigger_text(&self, instance: InstanceId, event: EventId) -> Result<Vec<u8>, Errno> {
        let status = self.status(instance).ok_or(Errno::NODEV)?;
        let hists = hists_of(self, instance, event).iter().flat_map(Trigger::read_back).collect();
        Ok(status.trigger_text(event, hists, |event| self.registry.events().full_name(event)))
    }

    /// What an event's `hist` file reads.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn hist_text(&mut self, instance: InstanceId, event: EventId) -> Result<Vec<u8>, Errno> {
        self.get(instance).ok_or(Errno::NODEV)?;
        let with_counts = |trigger: Trigger| {
            let counts = self.histograms.table(instance, trigger.id).map(|table| Arc::clone(&table.counts));
            (trigger, counts)
        };
        let tables: Vec<_> = hists_of(self, instance, event).into_iter().map(with_counts).collect();
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
        let tables = self.histograms.tables(instance).iter().filter(|table| table.event == event);
        let tables: Vec<(TriggerId, HistId)> = tables.map(|table| (table.trigger, table.hist)).collect();
        let mut seen = Seen::new();
        for (trigger, hist) in tables {
            // Whoever has the same name may have counted.
            note_hits(self, hist, wake);
            let same = self.histograms.all().filter(|(_, table)| table.hist == hist);
            let hits = same.map(|(_, table)| table.hits).sum();
            seen.extend((hits > 0).then_some((trigger, hits)));
        }
        seen
    }

    /// Takes an event's histograms away, as opening its `trigger` for writing from the start does; other triggers stay.
    ///
    /// # Errors
    /// `ENODEV` when the instance or the event is gone.
    pub fn clear_hists(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        self.touch();
        let name = self.registry.events().full_name(event);
        let (system, event_name) = name.split_once(':').ok_or(Errno::NODEV)?;
        let mut set = self.histograms.set().clone();
        set.clear(system, event_name, &Around { engine: self, instance });
        set_triggers(self, set)
    }

    /// Takes an instance's histograms away, before the instance goes.
    pub(in crate::engine) fn forget_hists(&mut self, instance: InstanceId) {
        let mut set = self.histograms.set().clone();
        set.forget_instance(instance, &Around { engine: self, instance });
        // What goes is refused nothing.
        let _ = set_triggers(self, set);
    }
}

/// An event's triggers, each with what its word says.
fn hists_of(engine: &Engine, instance: InstanceId, event: EventId) -> Vec<Trigger> {
    let name = engine.registry.events().full_name(event);
    let (system, event) = name.split_once(':').unwrap_or_default();
    let status = engine.status(instance);
    let triggers = engine.histograms.set().of_event(instance, system, event).cloned();
    let as_said = |mut trigger: Trigger| {
        trigger.paused = status.is_some_and(|status| status.is_paused(trigger.id));
        trigger
    };
    triggers.map(as_said).collect()
}

/// Notes which tables of a histogram were counted in since they were last asked. The next hit is noted again, and
/// written to the ring if a client waits for it.
fn note_hits(engine: &mut Engine, hist: HistId, wake: bool) {
    let next = if wake { hist::WAKE } else { hist::NOTE };
    let Engine { histograms, attachments, .. } = engine;
    for (instance, table) in histograms.all_mut().filter(|(_, table)| table.hist == hist) {
        let Some(session) = attachments.session(instance) else { continue };
        table.hits += u64::from(session.kernel().switches().await_hist(table.place, next));
    }
}

/// A line with `hist` that was written to an event's `trigger`; `text` is what stands behind it.
pub(in crate::engine) fn set_hist(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    text: Option<&[u8]>,
    remove: bool,
) -> Result<(), Errno> {
    engine.read_format(event)?;
    let facts = engine.facts.clone();
    if !facts.is_warm() {
        engine.run_off_thread(|| facts.warm());
    }
    engine.read_matched_formats(text.unwrap_or_default());
    let format = Arc::new(engine.registry.events().try_format(event, &engine.facts)?.clone());
    let mut set = engine.histograms.set().clone();
    let result = set.apply(&format, text, remove, &Around { engine, instance });
    let entries = match &result {
        Ok(taken) => taken.log.texts(),
        Err(refusal) => refusal.log().texts(),
    };
    let state = engine.state(instance)?;
    for entry in entries {
        state.errors.push(monotonic(), entry);
    }
    match result.map_err(|refusal| refusal.errno())?.change {
        Change::Nothing => Ok(()),
        Change::Added(_, clock) => {
            let _opening = Opening::begin_at_once();
            engine.make_session(instance)?;
            set_triggers(engine, set)?;
            clock.map_or(Ok(()), |clock| engine.apply(instance, &Command::Clock(&clock)))
        }
        Change::Removed(_) => set_triggers(engine, set),
        Change::Paused(id) => {
            pause_hist(engine, instance, id, true);
            Ok(())
        }
        Change::Resumed(id) => {
            pause_hist(engine, instance, id, false);
            Ok(())
        }
        Change::Cleared(id) => {
            let Some(table) = engine.histograms.table_mut(instance, id) else { return Ok(()) };
            table.hits += 1;
            table.counts.clear().map_err(|_| Errno::IO)
        }
    }
}

/// Says whether a histogram counts.
pub(in crate::engine) fn pause_hist(engine: &mut Engine, instance: InstanceId, id: TriggerId, paused: bool) {
    engine.histograms.set_paused(id, paused);
    let table = engine.histograms.table(instance, id);
    if let (Some(table), Some(session)) = (table, engine.attachments.session(instance)) {
        session.kernel().switches().pause_hist(table.place, paused);
    }
}

/// Makes tables for the triggers of a set that have none, drops those whose triggers are gone, and keeps the set. When
/// something is refused, everything is as before.
fn set_triggers(engine: &mut Engine, set: Set) -> Result<(), Errno> {
    let before = engine.histograms.replace_set(set);
    let all = engine.histograms.set().triggers().map(|trigger| (trigger.instance, trigger.id));
    let is_new = |(instance, id): &(InstanceId, TriggerId)| {
        engine.get(*instance).is_some() && engine.histograms.table(*instance, *id).is_none()
    };
    let new: Vec<(InstanceId, TriggerId)> = all.filter(is_new).collect();
    for (done, (instance, id)) in new.iter().enumerate() {
        if let Err(errno) = add_table(engine, *instance, *id) {
            engine.histograms.replace_set(before);
            for (instance, id) in new.iter().take(done).rev() {
                drop_table(engine, *instance, *id)?;
            }
            return Err(errno);
        }
    }
    // The set keeps unlisted triggers for the sake of references to their variables; they count no more.
    let is_gone = |(_, table): &(InstanceId, &Table)| {
        engine.histograms.set().triggers().all(|trigger| trigger.id != table.trigger)
    };
    let gone = engine.histograms.all().filter(is_gone).map(|(instance, table)| (instance, table.trigger));
    let gone: Vec<(InstanceId, TriggerId)> = gone.collect();
    let done = gone.into_iter().try_for_each(|(instance, id)| drop_table(engine, instance, id));
    count_uses(engine);
    done
}

/// Tells the synthetic events whether a histogram uses them.
pub(in crate::engine) fn count_uses(engine: &mut Engine) {
    let Engine { registry, histograms, .. } = engine;
    registry.synthetic_mut().mark_referenced(|name| histograms.set().uses_of_synthetic(name) > 0);
}

/// Makes the table of a trigger, shared with those of its name, and what counts in it.
fn add_table(engine: &mut Engine, instance: InstanceId, id: TriggerId) -> Result<(), Errno> {
    let trigger = engine.histograms.trigger(id).ok_or(Errno::NODEV)?.clone();
    let (hist, format) = (&trigger.hist, &trigger.event);
    let event = engine.registry.events().find_system(&format.system);
    let event =
        event.and_then(|system| engine.registry.events().find(system, &format.name)).ok_or(Errno::NODEV)?;
    if lower::unsupported(hist).is_some() {
        return Err(Errno::OPNOTSUPP);
    }
    if hist.takes_snapshots() {
        engine.state(instance)?.arm_snapshot();
    }
    let counts = match engine.histograms.counts(hist.id) {
        Some(counts) => Arc::clone(counts),
        None => Arc::new(Counts::of(hist).map_err(|_| Errno::NOMEM)?),
    };
    let place = engine.histograms.add(instance, &trigger, event, counts)?;
    if let Some(session) = engine.attachments.session(instance) {
        session.kernel().switches().pause_hist(place, trigger.paused);
        session.kernel().switches().await_hist(place, hist::NOTE);
    }
    let mut done = programs::run_table(engine, instance, id);
    if done.is_ok() && !engine.is_special(event) {
        done = reconcile::soft_mode_get(engine, instance, event, true);
    }
    done = done.and_then(|()| tell_switches(engine, instance, event));
    if done.is_err() {
        engine.histograms.remove(instance, id);
    }
    done
}

/// Takes a table away.
fn drop_table(engine: &mut Engine, instance: InstanceId, id: TriggerId) -> Result<(), Errno> {
    // Snapshots that it asked for are taken.
    engine.collect(instance);
    let Some(table) = engine.histograms.remove(instance, id) else { return Ok(()) };
    let event = table.event;
    // For its perf event the kernel takes some 30 to 60 ms.
    engine.run_off_thread(move || drop(table));
    tell_switches(engine, instance, event)?;
    if engine.is_special(event) {
        return Ok(());
    }
    reconcile::soft_mode_put(engine, instance, event, true)?;
    engine.rebuild_dependents(instance, event)
}

/// Lets triggers that turn an event's histograms on and off know which these are by now.
fn tell_switches(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), Errno> {
    let switching = engine.state(instance)?.triggers.switching_hists(event);
    switching
        .into_iter()
        .try_for_each(|other| reconcile::reconcile(engine, instance, &[other], Goal::Unchanged))
}
