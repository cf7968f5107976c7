//! Histograms: `hist` lines of `trigger` files, and the `hist` files.
//!
//! All instances share one set of triggers ([`super::tables`]). A command may create and remove histograms on other
//! events, so the tables follow the set of triggers ([`set_triggers`]). A word in the session states whether a
//! histogram counts. Triggers of other events also change it (`enable_hist`), so files show the word.

use std::sync::Arc;

use tracer_abi::hist;

use crate::{
    attach::{Counts, Opening},
    buffer::clock::Clock,
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::{
            off_thread,
            reconcile::{self, Goal},
            session::table::ProgramRole,
        },
        command::error::{CommandError, ErrorKind},
        dependents,
        histograms::{tables::Table, text::shown},
        operations::buffers,
    },
    event::{EventId, Format, InstanceId, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, HistId, Set, Trigger, TriggerId, World},
    },
    plan::resolve,
};

/// The environment of a histogram command.
pub(crate) struct HistScope<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) instance: InstanceId,
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

/// How far an event's histograms have counted: each trigger with hits, and the last hit that was seen.
pub type Seen = Vec<(TriggerId, u64)>;

/// The content of an event's `trigger` file.
///
/// # Errors
/// `ENODEV` if the instance was removed.
pub fn trigger_text(engine: &Engine, instance: InstanceId, event: EventId) -> Result<Vec<u8>, CommandError> {
    let status = engine.status(instance).ok_or(ErrorKind::Gone)?;
    let hists = hists_of(engine, instance, event).iter().flat_map(Trigger::read_back).collect();
    Ok(status.trigger_text(event, hists, |event| engine.registry.events().full_name(event)))
}

/// The content of an event's `hist` file.
///
/// # Errors
/// `ENODEV` if the instance was removed.
pub fn text_of(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<Vec<u8>, CommandError> {
    engine.instances.get(instance).ok_or(ErrorKind::Gone)?;
    let with_counts = |trigger: Trigger| {
        let counts = engine.histograms.table(instance, trigger.id).map(|table| Arc::clone(&table.counts));
        (trigger, counts)
    };
    let tables: Vec<_> = hists_of(engine, instance, event).into_iter().map(with_counts).collect();
    let facts = Arc::clone(&engine.facts);
    // Reading, sorting and printing a table can take long: it has up to 131,072 entries.
    Ok(engine.run_off_thread(move || {
        let mut text = Vec::new();
        for (number, (trigger, counts)) in tables.iter().enumerate() {
            let read = counts.as_ref().and_then(|counts| counts.read().ok());
            text.extend(shown(trigger, read.unwrap_or_default(), number, &facts));
        }
        text
    }))
}

/// How far an event's histograms have counted. With `wake`, the next hit of any of them is reported by a control record.
pub fn hits_seen(engine: &mut Engine, instance: InstanceId, event: EventId, wake: bool) -> Seen {
    let tables = engine.histograms.tables(instance).iter().filter(|table| table.event == event);
    let tables: Vec<(TriggerId, HistId)> = tables.map(|table| (table.trigger, table.hist)).collect();
    let mut seen = Seen::new();
    for (trigger, hist) in tables {
        // Triggers with the same name share the histogram.
        note_hits(engine, hist, wake);
        let same = engine.histograms.all().filter(|(_, table)| table.hist == hist);
        let hits = same.map(|(_, table)| table.hits).sum();
        seen.extend((hits > 0).then_some((trigger, hits)));
    }
    seen
}

/// Removes an event's histograms, when `trigger` is opened with `O_TRUNC`. Other triggers stay.
///
/// # Errors
/// `ENODEV` if the instance or the event was removed.
pub(crate) fn clear_hists(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
) -> Result<(), CommandError> {
    let name = engine.registry.events().full_name(event);
    let (system, event_name) = name.split_once(':').ok_or(ErrorKind::Gone)?;
    let mut set = engine.histograms.set().clone();
    set.clear(system, event_name, &HistScope { engine, instance });
    set_triggers(engine, set)
}

/// Removes an instance's histograms, before the instance is removed.
pub(crate) fn forget_hists(engine: &mut Engine, instance: InstanceId) {
    let mut set = engine.histograms.set().clone();
    set.forget_instance(instance, &HistScope { engine, instance });
    // Removing cannot be refused.
    let _ = set_triggers(engine, set);
}

/// An event's histogram triggers, each with the state of its word.
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

/// Records which tables of a histogram counted since the last call. The next hit is recorded again, and a control
/// record reports it if a client waits for it.
fn note_hits(engine: &mut Engine, hist: HistId, wake: bool) {
    let next = if wake { hist::WAKE } else { hist::NOTE };
    let Engine { histograms, attachments, .. } = engine;
    for (instance, table) in histograms.all_mut().filter(|(_, table)| table.hist == hist) {
        let Some(session) = attachments.session(instance) else { continue };
        table.hits += u64::from(session.kernel().switches().await_hist(table.place, next));
    }
}

/// Applies a `hist` line written to an event's `trigger`; `text` is the part after `hist`.
pub(crate) fn set_hist(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    text: Option<&[u8]>,
    remove: bool,
) -> Result<(), CommandError> {
    off_thread::read_format(engine, event)?;
    let facts = engine.facts.clone();
    // In a private engine, do not read what the command does not need.
    if !facts.is_warm() && engine.scheduler().is_shared() {
        engine.run_off_thread(|| facts.warm());
    }
    off_thread::read_matched_formats(engine, text.unwrap_or_default());
    let format = Arc::new(engine.registry.events().try_format(event, &engine.facts)?.clone());
    let mut set = engine.histograms.set().clone();
    let result = set.apply(&format, text, remove, &HistScope { engine, instance });
    let taken = result?;
    // A command can succeed after an error that the kernel logs.
    engine.instances.log(instance, &taken.log.texts());
    match taken.change {
        Change::Nothing => Ok(()),
        Change::Added(_, clock) => {
            let _opening = Opening::begin_at_once();
            engine.make_session(instance)?;
            set_triggers(engine, set)?;
            clock.map_or(Ok(()), |clock| buffers::set_clock(engine, instance, &clock))
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
            let counts = Arc::clone(&table.counts);
            engine.run_off_thread(move || counts.clear()).map_err(|_| ErrorKind::Io.into())
        }
    }
}

/// Sets whether a histogram is paused.
pub(crate) fn pause_hist(engine: &mut Engine, instance: InstanceId, id: TriggerId, paused: bool) {
    engine.histograms.set_paused(id, paused);
    let table = engine.histograms.table(instance, id);
    if let (Some(table), Some(session)) = (table, engine.attachments.session(instance)) {
        session.kernel().switches().pause_hist(table.place, paused);
    }
}

/// Creates tables for the new triggers of a set, drops those of removed triggers, and stores the set. If something is
/// refused, nothing changes.
fn set_triggers(engine: &mut Engine, set: Set) -> Result<(), CommandError> {
    let mut before = engine.histograms.replace_set(set);
    let all = engine.histograms.set().triggers().map(|trigger| (trigger.instance, trigger.id));
    let is_new = |(instance, id): &(InstanceId, TriggerId)| {
        engine.instances.get(*instance).is_some() && engine.histograms.table(*instance, *id).is_none()
    };
    let new: Vec<(InstanceId, TriggerId)> = all.filter(is_new).collect();
    for (done, (instance, id)) in new.iter().enumerate() {
        if let Err(errno) = add_table(engine, *instance, *id) {
            // Programs are compared by the ids of triggers.
            before.skip_ids_of(engine.histograms.set());
            engine.histograms.replace_set(before);
            for (instance, id) in new.iter().take(done).rev() {
                if let Err(error) = drop_table(engine, *instance, *id) {
                    tracing::warn!("a histogram that was taken back: {error}");
                }
            }
            return Err(errno);
        }
    }
    // The set keeps unlisted triggers for references to their variables, but they no longer count.
    let is_gone = |(_, table): &(InstanceId, &Table)| {
        engine.histograms.set().triggers().all(|trigger| trigger.id != table.trigger)
    };
    let gone = engine.histograms.all().filter(is_gone).map(|(instance, table)| (instance, table.trigger));
    let gone: Vec<(InstanceId, TriggerId)> = gone.collect();
    let mut first = Ok(());
    for (instance, id) in gone {
        first = first.and(drop_table(engine, instance, id));
    }
    count_uses(engine);
    first
}

/// Updates which synthetic events are used by histograms.
pub(crate) fn count_uses(engine: &mut Engine) {
    let Engine { registry, histograms, .. } = engine;
    registry.synthetic_mut().mark_referenced(|name| histograms.set().uses_of_synthetic(name) > 0);
}

/// Creates the table of a trigger, which triggers of the same name share, and its programs.
fn add_table(engine: &mut Engine, instance: InstanceId, id: TriggerId) -> Result<(), CommandError> {
    let trigger = engine.histograms.trigger(id).ok_or(ErrorKind::Gone)?.clone();
    let (hist, format) = (&trigger.hist, &trigger.event);
    let event = engine.registry.events().find_system(&format.system);
    let event = event
        .and_then(|system| engine.registry.events().find(system, &format.name))
        .ok_or(ErrorKind::Gone)?;
    if lower::unsupported(hist).is_some() {
        return Err(ErrorKind::Unsupported.into());
    }
    if hist.takes_snapshots() {
        // Programs do not overwrite records any more, so that a snapshot has those before it.
        engine.collect(instance);
        engine.instances.state(instance)?.arm_snapshot();
    }
    let counts = match engine.histograms.counts(hist.id) {
        Some(counts) => Arc::clone(counts),
        None => Arc::new(Counts::of(hist, engine.facts.cpus()).map_err(|_| ErrorKind::NoMemory)?),
    };
    let place = engine.histograms.add(instance, &trigger, event, counts)?;
    if let Some(session) = engine.attachments.session(instance) {
        session.kernel().switches().pause_hist(place, trigger.paused);
        session.kernel().switches().await_hist(place, hist::NOTE);
    }
    let mut done = dependents::update(engine, instance, event);
    let mut is_counted = false;
    if done.is_ok() && !engine.registry.is_special(event) {
        done = reconcile::soft_mode_get(engine, instance, event, true);
        is_counted = done.is_ok();
    }
    done = done.and_then(|()| update_switches(engine, instance, event));
    if done.is_err() {
        remove_table(engine, instance, id);
        // The event's other dependents run as before.
        let counted =
            if is_counted { reconcile::soft_mode_put(engine, instance, event, true) } else { Ok(()) };
        let others = dependents::update(engine, instance, event);
        if let Err(error) = counted.and(others) {
            tracing::warn!("after a refused histogram: {error}");
        }
    }
    done
}

/// Removes a table with its programs. Returns its event.
fn remove_table(engine: &mut Engine, instance: InstanceId, id: TriggerId) -> Option<EventId> {
    let table = engine.histograms.remove(instance, id)?;
    let (event, session) = (table.event, engine.attachments.session_mut(instance));
    let programs = session.map(|session| {
        [ProgramRole::Histogram(id), ProgramRole::HistogramInject(id)]
            .map(|role| session.table.take(event, role))
    });
    // The kernel verifies the sequence of the consumers that stay, and frees the programs and a table that can be large.
    engine.run_off_thread(move || drop((programs, table)));
    Some(event)
}

/// Removes a table, and updates the programs of its event.
fn drop_table(engine: &mut Engine, instance: InstanceId, id: TriggerId) -> Result<(), CommandError> {
    // Requested snapshots must be taken first.
    engine.collect(instance);
    let Some(event) = remove_table(engine, instance, id) else { return Ok(()) };
    let updated = dependents::update(engine, instance, event);
    let switched = update_switches(engine, instance, event);
    let counted = if engine.registry.is_special(event) {
        Ok(())
    } else {
        reconcile::soft_mode_put(engine, instance, event, true)
    };
    switched.and(counted).and(updated)
}

/// Updates the programs of triggers that enable or disable an event's histograms.
fn update_switches(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let switching = engine.instances.state(instance)?.triggers.switching(event, true);
    let mut first = Ok(());
    for other in switching {
        first = first.and(reconcile::reconcile(engine, instance, &[other], Goal::Unchanged));
    }
    first
}
