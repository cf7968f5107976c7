//! Histograms of an instance: `hist` lines of `trigger` files, and the `hist` files.
//!
//! A histogram is a program of its own on the event's perf tracepoint, beside whatever else the event is traced by; its
//! table stays while it is paused. A command may make histograms on other events and take them away again, so that tables
//! follow the set of triggers ([`Mirror::follow`]). What cannot be counted yet (events that the kernel does not know) is
//! refused with `EOPNOTSUPP`, once the kernel would have taken it.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Command, live::Live, mirror::Mirror};
use crate::{
    attach::{self, AttachError, Block, Counting, Counts, HistAround, Via, ids},
    buffer::clock::{Clock, monotonic},
    code::lower::hist as lower,
    control::{facts::Facts, hist::shown},
    event::{Format, dynamic::latin1, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, HistId, Set, Trigger, TriggerId, World, action::Deed},
    },
    plan::{hist::References, resolve, source::Hook},
};

/// A trigger's table, and what counts in it unless it is paused.
#[derive(Debug)]
pub(super) struct Table {
    trigger: TriggerId,
    hist: HistId,
    /// The event, for when the trigger is gone.
    event: u32,
    pub(super) counts: Arc<Counts>,
    running: Option<Counting>,
}

/// The histograms of an instance.
#[derive(Debug, Default)]
pub(super) struct Hists {
    pub(super) set: Set,
    tables: Vec<Table>,
}

impl Hists {
    /// The lines in an event's `trigger`; `name` is `SYSTEM:EVENT`.
    pub(super) fn lines(&self, name: &str) -> Vec<u8> {
        self.of(name).flat_map(Trigger::read_back).collect()
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Trigger> {
        let (system, event) = name.split_once(':').unwrap_or_default();
        self.set.of_event(system, event)
    }

    /// Whether an event has any.
    pub(super) fn counts_event(&self, event: u32) -> bool {
        self.tables.iter().any(|table| table.event == event)
    }

    pub(super) fn table(&self, trigger: TriggerId) -> Option<&Table> {
        self.tables.iter().find(|table| table.trigger == trigger)
    }

    fn table_mut(&mut self, trigger: TriggerId) -> Option<&mut Table> {
        self.tables.iter_mut().find(|table| table.trigger == trigger)
    }

    /// Whether a table's trigger is there.
    fn lists(&self, table: &Table) -> bool {
        self.set.triggers().any(|trigger| trigger.id == table.trigger)
    }

    /// The counts of a histogram, which triggers of one name share.
    fn counts(&self, hist: HistId) -> Option<&Arc<Counts>> {
        self.tables.iter().find(|table| table.hist == hist).map(|table| &table.counts)
    }

    /// What an event's `hist` file reads.
    fn text(&self, name: &str, facts: &Facts) -> Vec<u8> {
        let mut text = Vec::new();
        for (number, trigger) in self.of(name).enumerate() {
            let read = self.table(trigger.id).and_then(|table| table.counts.read().ok());
            text.extend(shown(trigger, read.unwrap_or_default(), number, facts));
        }
        text
    }
}

/// What the mirror has that histograms are about.
pub(super) struct Around<'a> {
    pub(super) mirror: &'a Mirror,
}

impl World for Around<'_> {
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

impl Mirror {
    /// What an event's `hist` file reads.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn hist_text(&self, instance: u32, event: u32) -> Result<Vec<u8>, Errno> {
        let state = self.get(instance).ok_or(Errno::NODEV)?;
        Ok(state.hists.text(&self.events.full_name(event), &self.facts))
    }

    /// A line with `hist` that was written to an event's `trigger`; `text` is what stands behind it.
    pub(super) fn set_hist(
        &mut self,
        instance: u32,
        event: u32,
        text: Option<&[u8]>,
        remove: bool,
    ) -> Result<(), Errno> {
        let format = Arc::new(self.events.format(event, &self.facts).ok_or(Errno::NODEV)?.clone());
        let mut set = self.state(instance)?.hists.set.clone();
        let result = set.apply(&format, text, remove, &Around { mirror: self });
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
                self.make_live(instance)?;
                self.follow(instance, set)?;
                clock.map_or(Ok(()), |clock| self.apply(instance, &Command::Clock(&clock)))
            }
            Change::Removed(_) => self.follow(instance, set),
            Change::Paused(id) | Change::Resumed(id) => {
                let before = std::mem::replace(&mut self.state(instance)?.hists.set, set);
                let done = self.run_table(instance, id);
                if done.is_err() {
                    self.state(instance)?.hists.set = before;
                }
                self.relink(event);
                done
            }
            Change::Cleared(id) => {
                let table = self.state(instance)?.hists.table(id);
                table.map_or(Ok(()), |table| table.counts.clear().map_err(|_| Errno::IO))
            }
        }
    }

    /// Takes an event's histograms away, as opening its `trigger` for writing from the start does; other triggers stay.
    ///
    /// # Errors
    /// `ENODEV` when the instance or the event is gone.
    pub fn clear_hists(&mut self, instance: u32, event: u32) -> Result<(), Errno> {
        let name = self.events.full_name(event);
        let (system, event_name) = name.split_once(':').ok_or(Errno::NODEV)?;
        let mut set = self.state(instance)?.hists.set.clone();
        set.clear(system, event_name, &Around { mirror: self });
        self.follow(instance, set)
    }

    /// Makes tables for the triggers of a set that have none, takes those away whose triggers are gone, and keeps the set;
    /// when something is refused, all is as it was.
    fn follow(&mut self, instance: u32, set: Set) -> Result<(), Errno> {
        let hists = &mut self.state(instance)?.hists;
        let before = std::mem::replace(&mut hists.set, set);
        let new = hists.set.triggers().map(|trigger| trigger.id);
        let new: Vec<TriggerId> = new.filter(|id| hists.table(*id).is_none()).collect();
        for (done, id) in new.iter().enumerate() {
            if let Err(errno) = self.add_table(instance, *id) {
                self.state(instance)?.hists.set = before;
                for _ in 0..done {
                    let table = self.state(instance)?.hists.tables.pop();
                    table.map_or(Ok(()), |table| self.leave(instance, table.event))?;
                }
                return Err(errno);
            }
        }
        let gone: Vec<u32> = {
            let hists = &self.state(instance)?.hists;
            hists.tables.iter().filter(|table| !hists.lists(table)).map(|table| table.event).collect()
        };
        if !gone.is_empty() {
            // Snapshots that they asked for are taken.
            self.collect(instance);
        }
        let Hists { set, tables } = &mut self.state(instance)?.hists;
        tables.retain(|table| set.triggers().any(|trigger| trigger.id == table.trigger));
        self.count_uses();
        gone.into_iter().try_for_each(|event| self.leave(instance, event))
    }

    /// Tells the synthetic events whether a histogram uses them.
    pub(super) fn count_uses(&mut self) {
        let names: Vec<String> =
            self.synthetic.set.events().iter().map(|defined| defined.event.name.clone()).collect();
        for name in names {
            let used = self.numbered().any(|(_, state)| state.hists.set.uses_of_synthetic(&name) > 0);
            self.synthetic.set.set_referenced(&name, used);
        }
    }

    /// Makes the table of a trigger, shared with those of its name, and what counts in it.
    fn add_table(&mut self, instance: u32, id: TriggerId) -> Result<(), Errno> {
        let trigger = self.state(instance)?.hists.set.trigger(id).ok_or(Errno::NODEV)?.clone();
        let (hist, format) = (&trigger.hist, &trigger.event);
        let event = self.events.find_system(&format.system);
        let event = event.and_then(|system| self.events.find(system, &format.name)).ok_or(Errno::NODEV)?;
        if lower::unsupported(hist).is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        if hist.takes_snapshots() {
            self.state(instance)?.arm_snapshot();
        }
        let counts = match self.state(instance)?.hists.counts(hist.id) {
            Some(counts) => Arc::clone(counts),
            None => Arc::new(Counts::of(hist, self.facts.cpus()).map_err(|_| Errno::NOMEM)?),
        };
        let table = Table { trigger: id, hist: hist.id, event, counts, running: None };
        self.state(instance)?.hists.tables.push(table);
        let done = self.run_table(instance, id);
        let done =
            done.and_then(|()| if self.is_special(event) { Ok(()) } else { self.soften(instance, event) });
        if done.is_err() {
            self.state(instance)?.hists.tables.pop();
        }
        done
    }

    /// An event has a histogram less.
    fn leave(&mut self, instance: u32, event: u32) -> Result<(), Errno> {
        if self.is_special(event) {
            return Ok(());
        }
        self.harden(instance, event)?;
        self.refollow(instance, event)
    }

    /// What an event's histograms hang on: nothing where records come from elsewhere.
    fn via(&self, event: u32, format: &Format) -> Via {
        let elsewhere = self.events.is_made(event, &self.facts) || self.is_special(event);
        if elsewhere { Via::Inject } else { Via::Tracepoint(format.id) }
    }

    /// Lets an event's histograms count a record that user space made.
    pub(super) fn count_record(&self, instance: u32, event: u32, record: &[u8], writer: &attach::Writer) {
        let Some(state) = self.get(instance) else { return };
        for table in state.hists.tables.iter().filter(|table| table.event == event) {
            if let Some(Err(error)) = table.running.as_ref().map(|running| running.count(record, writer)) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Lets a table count or not, as its trigger says.
    pub(super) fn run_table(&mut self, instance: u32, id: TriggerId) -> Result<(), Errno> {
        let hists = &self.state(instance)?.hists;
        let trigger = hists.set.trigger(id).ok_or(Errno::NODEV)?.clone();
        let event = hists.table(id).ok_or(Errno::NODEV)?.event;
        if self.is_relayed(event) {
            return self.refollow(instance, event);
        }
        let running = if trigger.paused {
            None
        } else {
            let via = self.via(event, &trigger.event);
            let start = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
                Counting::start(request, &via, counts, &around)
            };
            Some(self.with_request(instance, &trigger, &Use::new(&via), &mut Vec::new(), start)?)
        };
        if let Some(table) = self.state(instance)?.hists.table_mut(id) {
            table.running = running;
        }
        Ok(())
    }

    /// Does something with what the kernel side of a histogram is made of.
    fn with_request<T>(
        &mut self,
        instance: u32,
        trigger: &Trigger,
        how: &Use,
        outer: &mut Vec<u32>,
        act: impl FnOnce(&lower::Request<'_>, &Counts, HistAround<'_>) -> Result<T, AttachError>,
    ) -> Result<T, Errno> {
        let (hist, format) = (&*trigger.hist, &*trigger.event);
        let mut emissions = Vec::new();
        for action in &hist.actions {
            let name = latin1(action.synthetic_name());
            let inner = self.synthetic_number(&name).is_some_and(|number| !outer.contains(&number));
            emissions.push(match action.deed {
                Deed::Trace if inner => self.emission_within(&name, outer)?,
                _ => None,
            });
        }
        let filter = match &trigger.filter {
            Some(text) => {
                let filter = resolve::filter(text, format, self.facts.as_ref());
                Some(filter.map_err(|error| error.errno())?)
            }
            None => None,
        };
        let own = ids::own().map_err(|_| Errno::PERM)?;
        let state = self.get(instance).ok_or(Errno::NODEV)?;
        let references = References::of(hist, &state.hists.set).ok_or(Errno::INVAL)?;
        let owners = references.owners.iter().map(|id| state.hists.counts(*id).map(AsRef::as_ref));
        let owners = owners.collect::<Option<Vec<&Counts>>>().ok_or(Errno::INVAL)?;
        let around = HistAround { owners, session: state.live.as_ref().map(Live::asked), emissions };
        let emits = around.emits();
        let request = lower::Request {
            hist,
            references: &references,
            filter: filter.as_ref(),
            hook: &how.hook,
            kind: format.id,
            but_process: (how.hook == Hook::Tracepoint).then_some(own.process),
            entry: how.entry,
            emits: &emits,
        };
        let counts = state.hists.counts(hist.id).ok_or(Errno::NODEV)?;
        act(&request, counts, around).map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })
    }

    /// What an instance's histograms on an event that no tracepoint makes do with its record.
    pub(super) fn hist_parts(
        &mut self,
        instance: u32,
        event: u32,
        outer: &mut Vec<u32>,
    ) -> Result<Vec<Block>, Errno> {
        let state = self.state(instance)?;
        let tables = state.hists.tables.iter().filter(|table| table.event == event);
        let triggers = tables.filter_map(|table| state.hists.set.trigger(table.trigger));
        let wanted: Vec<Trigger> = triggers.filter(|trigger| !trigger.paused).cloned().collect();
        let part = |trigger: Trigger| {
            let how = Use { hook: Hook::Inject, entry: lower::Entry::Record };
            self.with_request(instance, &trigger, &how, outer, attach::hist_part)
        };
        wanted.into_iter().map(part).collect()
    }

    /// Gives histograms whose actions emit synthetic events the programs that are right by now.
    pub(super) fn make_emitters_anew(&mut self) {
        let mut emitters: Vec<(u32, Trigger)> = Vec::new();
        let mut relayed: Vec<(u32, u32)> = Vec::new();
        for (instance, state) in self.numbered() {
            let tables = state.hists.tables.iter().filter(|table| self.is_relayed(table.event));
            let emits = |table: &&Table| {
                let trigger = state.hists.set.trigger(table.trigger);
                trigger.is_some_and(|trigger| trigger.hist.synthetic_events().next().is_some())
            };
            relayed.extend(tables.filter(emits).map(|table| (instance, table.event)));
            let tables = state.hists.tables.iter().filter(|table| table.running.is_some());
            let triggers = tables.filter_map(|table| state.hists.set.trigger(table.trigger));
            let emits = |trigger: &&Trigger| trigger.hist.synthetic_events().next().is_some();
            emitters.extend(triggers.filter(emits).map(|trigger| (instance, trigger.clone())));
        }
        for (instance, event) in relayed {
            if let Err(errno) = self.refollow(instance, event) {
                tracing::warn!("{}: {errno}", self.events.full_name(event));
            }
        }
        for (instance, trigger) in emitters {
            let Ok(state) = self.state(instance) else { continue };
            let Some(table) = state.hists.table_mut(trigger.id) else { continue };
            let Some(mut running) = table.running.take() else { continue };
            let hook = running.hook();
            let change = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
                running.change(request, counts, &around)
            };
            let how = Use { hook, entry: lower::Entry::Hook };
            let _ = self.with_request(instance, &trigger, &how, &mut Vec::new(), change);
            if let Ok(state) = self.state(instance)
                && let Some(table) = state.hists.table_mut(trigger.id)
            {
                table.running = Some(running);
            }
        }
    }
}

/// How a histogram's update is entered.
struct Use {
    hook: Hook,
    entry: lower::Entry,
}

impl Use {
    fn new(via: &Via) -> Self {
        let hook = if *via == Via::Inject { Hook::Inject } else { Hook::Tracepoint };
        Self { hook, entry: lower::Entry::Hook }
    }
}
