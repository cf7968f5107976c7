//! The histogram triggers of all instances, and each instance's tables.
//!
//! All instances share one set of triggers, because triggers with the same name share a table. A table belongs to the
//! trigger that created it, and has its own words in the instance's session.

use std::{collections::BTreeMap, sync::Arc};

use tracer_abi::HISTS;

use crate::{
    attach::Counts,
    engine::{
        command::error::{CommandError, ErrorKind},
        registry::EventRegistry,
    },
    event::{EventId, InstanceId},
    lang::hist::{HistId, Set, Trigger, TriggerId},
};

/// A trigger's table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) trigger: TriggerId,
    pub(crate) hist: HistId,
    /// The event. The trigger may have been removed.
    pub(crate) event: EventId,
    pub(crate) counts: Arc<Counts>,
    /// The place of its words in the session.
    pub(crate) place: u16,
    /// Number of checks that found new hits.
    pub(crate) hits: u64,
}

/// The tables of an instance.
#[derive(Debug, Default)]
struct InstanceTables {
    tables: Vec<Table>,
    free: Vec<u16>,
    used: u16,
}

/// All histograms.
#[derive(Debug, Default)]
pub(crate) struct Histograms {
    set: Set,
    instances: BTreeMap<InstanceId, InstanceTables>,
}

impl Histograms {
    /// The triggers of all instances.
    pub(crate) fn set(&self) -> &Set {
        &self.set
    }

    /// Replaces the set of triggers, and returns the previous one.
    pub(crate) fn replace_set(&mut self, set: Set) -> Set {
        std::mem::replace(&mut self.set, set)
    }

    /// Updates which synthetic events histograms use.
    pub(crate) fn count_uses(&self, registry: &mut EventRegistry) {
        registry.synthetic_mut().mark_referenced(|name| self.set.uses_of_synthetic(name) > 0);
    }

    /// A trigger of any instance.
    pub(crate) fn trigger(&self, id: TriggerId) -> Option<&Trigger> {
        self.set.trigger(id)
    }

    /// Sets whether a trigger is paused.
    pub(crate) fn set_paused(&mut self, id: TriggerId, paused: bool) {
        self.set.set_paused(id, paused);
    }

    /// The tables of an instance.
    pub(crate) fn tables(&self, instance: InstanceId) -> &[Table] {
        self.instances.get(&instance).map_or(&[], |own| &own.tables)
    }

    /// The tables of all instances.
    pub(crate) fn all(&self) -> impl Iterator<Item = (InstanceId, &Table)> {
        self.instances.iter().flat_map(|(instance, own)| own.tables.iter().map(|table| (*instance, table)))
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = (InstanceId, &mut Table)> {
        let each = self.instances.iter_mut();
        each.flat_map(|(instance, own)| own.tables.iter_mut().map(|table| (*instance, table)))
    }

    /// The table of an instance's trigger.
    pub(crate) fn table(&self, instance: InstanceId, trigger: TriggerId) -> Option<&Table> {
        self.tables(instance).iter().find(|table| table.trigger == trigger)
    }

    pub(crate) fn table_mut(&mut self, instance: InstanceId, trigger: TriggerId) -> Option<&mut Table> {
        self.instances.get_mut(&instance)?.tables.iter_mut().find(|table| table.trigger == trigger)
    }

    /// Whether an event has histograms in an instance.
    pub(crate) fn counts_event(&self, instance: InstanceId, event: EventId) -> bool {
        self.tables(instance).iter().any(|table| table.event == event)
    }

    /// The places of the words of an event's histograms in an instance.
    pub(crate) fn places(&self, instance: InstanceId, event: EventId) -> Vec<u16> {
        let own = self.tables(instance).iter().filter(|table| table.event == event);
        own.map(|table| table.place).collect()
    }

    /// The triggers of an event's tables in an instance.
    pub(crate) fn counting(&self, instance: InstanceId, event: EventId) -> impl Iterator<Item = &Trigger> {
        let tables = self.tables(instance).iter().filter(move |table| table.event == event);
        tables.filter_map(|table| self.trigger(table.trigger))
    }

    /// The events of the histograms whose actions emit certain synthetic events, selected by name.
    pub(crate) fn emitters(
        &self,
        is_emitted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (InstanceId, EventId)> {
        let emits = move |trigger: &Trigger| trigger.hist.synthetic_events().any(|name| is_emitted(&name));
        let tables = self.all().filter(move |(_, table)| self.trigger(table.trigger).is_some_and(&emits));
        tables.map(|(instance, table)| (instance, table.event))
    }

    /// The counts of a histogram, whose triggers may be in any instance.
    pub(crate) fn counts(&self, hist: HistId) -> Option<&Arc<Counts>> {
        self.all().find(|(_, table)| table.hist == hist).map(|(_, table)| &table.counts)
    }

    /// Adds a table for a trigger of an instance. Returns the place of its words.
    ///
    /// # Errors
    /// `ENOMEM` if all places are in use.
    pub(crate) fn add(
        &mut self,
        instance: InstanceId,
        trigger: &Trigger,
        event: EventId,
        counts: Arc<Counts>,
    ) -> Result<u16, CommandError> {
        let own = self.instances.entry(instance).or_default();
        let new = (usize::from(own.used) < HISTS).then_some(own.used);
        let place = own.free.pop().or(new).ok_or(ErrorKind::NoMemory)?;
        own.used = own.used.max(place + 1);
        own.tables.push(Table { trigger: trigger.id, hist: trigger.hist.id, event, counts, place, hits: 0 });
        Ok(place)
    }

    /// Removes a trigger's table.
    pub(crate) fn remove(&mut self, instance: InstanceId, trigger: TriggerId) -> Option<Table> {
        let own = self.instances.get_mut(&instance)?;
        let at = own.tables.iter().position(|table| table.trigger == trigger)?;
        let table = own.tables.remove(at);
        own.free.push(table.place);
        if own.tables.is_empty() {
            self.instances.remove(&instance);
        }
        Some(table)
    }
}
