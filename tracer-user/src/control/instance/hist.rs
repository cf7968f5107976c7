//! Histograms of an instance: `hist` lines of `trigger` files, and the `hist` files.
//!
//! A histogram is a program of its own on the event's perf tracepoint, beside whatever else the event is traced by; its
//! table stays while it is paused. What cannot be counted yet (references to variables, actions, events that the kernel does not know)
//! is refused with `EOPNOTSUPP`, once the kernel would have taken it.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Command, mirror::Mirror};
use crate::{
    attach::{Counting, Counts, Via, ids},
    buffer::clock::{Clock, monotonic},
    code::lower::hist as lower,
    control::{facts::Facts, hist::shown},
    event::{Format, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, Set, Trigger, TriggerId, World},
    },
    plan::{resolve, source::Hook},
};

/// A trigger's table, and what counts in it unless it is paused.
#[derive(Debug)]
struct Table {
    trigger: TriggerId,
    counts: Arc<Counts>,
    running: Option<Counting>,
}

/// The histograms of an instance.
#[derive(Debug, Default)]
pub(super) struct Hists {
    set: Set,
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

    fn table(&self, trigger: TriggerId) -> Option<&Table> {
        self.tables.iter().find(|table| table.trigger == trigger)
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
struct Around<'a> {
    mirror: &'a Mirror,
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
            Change::Added(id, clock) => {
                let trigger = set.trigger(id).ok_or(Errno::NODEV)?;
                let table = self.new_table(instance, event, trigger)?;
                self.make_live(instance)?;
                if let Some(clock) = clock {
                    self.apply(instance, &Command::Clock(&clock))?;
                }
                let state = self.state(instance)?;
                let before = std::mem::replace(&mut state.hists.set, set);
                state.hists.tables.push(table);
                let done = self.soften(instance, event);
                if done.is_err() {
                    let state = self.state(instance)?;
                    state.hists.set = before;
                    state.hists.tables.pop();
                }
                done
            }
            Change::Removed(id) => {
                let state = self.state(instance)?;
                state.hists.set = set;
                state.hists.tables.retain(|table| table.trigger != id);
                self.harden(instance, event)
            }
            Change::Paused(id) | Change::Resumed(id) => {
                let trigger = set.trigger(id).ok_or(Errno::NODEV)?;
                let counts = self.state(instance)?.hists.table(id).map(|table| Arc::clone(&table.counts));
                let running = match (trigger.paused, counts) {
                    (false, Some(counts)) => Some(self.counting(trigger, &counts)?),
                    _ => None,
                };
                let state = self.state(instance)?;
                state.hists.set = set;
                if let Some(table) = state.hists.tables.iter_mut().find(|table| table.trigger == id) {
                    table.running = running;
                }
                Ok(())
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
        let gone = set.clear(system, event_name, &Around { mirror: self });
        let state = self.state(instance)?;
        state.hists.set = set;
        state.hists.tables.retain(|table| !gone.contains(&table.trigger));
        gone.iter().try_for_each(|_| self.harden(instance, event))
    }

    /// The table of a trigger, shared with those of its name, and what counts in it.
    fn new_table(&mut self, instance: u32, event: u32, trigger: &Trigger) -> Result<Table, Errno> {
        let is_kernels = !self.events.is_made(event, &self.facts);
        if lower::unsupported(&trigger.hist).is_some() || !is_kernels {
            return Err(Errno::OPNOTSUPP);
        }
        let hists = &self.state(instance)?.hists;
        let of_same_hist = |table: &&Table| {
            hists.set.trigger(table.trigger).is_some_and(|other| other.hist.id == trigger.hist.id)
        };
        let shared = hists.tables.iter().find(of_same_hist).map(|table| Arc::clone(&table.counts));
        let counts = match shared {
            Some(counts) => counts,
            None => Arc::new(Counts::of(&trigger.hist, self.facts.cpus()).map_err(|_| Errno::NOMEM)?),
        };
        let running = if trigger.paused { None } else { Some(self.counting(trigger, &counts)?) };
        Ok(Table { trigger: trigger.id, counts, running })
    }

    fn counting(&self, trigger: &Trigger, counts: &Counts) -> Result<Counting, Errno> {
        let format = &*trigger.event;
        let filter = match &trigger.filter {
            Some(text) => {
                let filter = resolve::filter(text, format, self.facts.as_ref());
                Some(filter.map_err(|error| error.errno())?)
            }
            None => None,
        };
        let own = ids::own().map_err(|_| Errno::PERM)?;
        let request = lower::Request {
            hist: &trigger.hist,
            filter: filter.as_ref(),
            hook: &Hook::Tracepoint,
            kind: format.id,
            but_process: Some(own.process),
        };
        Counting::start(&request, &Via::Tracepoint(format.id), counts).map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })
    }
}
