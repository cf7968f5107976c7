//! Synthetic events: `synthetic_events`, and the lines of `dynamic_events` that start with `s:`.
//!
//! Such an event has no hook. Actions of histograms emit it in the kernel, and the engine emits it from user space
//! ([`crate::engine::dependents::emission`]). An instance enables, filters and triggers it like any event.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        records::common::common_fields,
        registry::{
            catalogue::{DefinedEvent, Events},
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{
        EventId, Format,
        dynamic::latin1,
        synthetic::{Event, Member, SYSTEM, TEXT_SIZE, Value},
    },
    lang::{
        define::Line,
        synth::{Change, Defined, File, Set},
    },
    render::{Printer, SynthKind, SynthValue},
};

/// The definitions of synthetic events, and their numbers.
#[derive(Debug, Default)]
pub struct SyntheticEvents {
    set: Set,
    /// Numbers of the events, by name.
    numbers: HashMap<String, EventId>,
    /// Number of changes of each event's programs.
    generations: HashMap<EventId, u64>,
}

impl SyntheticEvents {
    /// The content of `synthetic_events`.
    pub fn listing(&self) -> Vec<u8> {
        self.set.listing(File::Synthetic)
    }

    /// An event.
    pub fn find(&self, name: &str) -> Option<Arc<Event>> {
        self.set.find(name).cloned()
    }

    /// The number of an event among all events.
    pub fn number(&self, name: &str) -> Option<EventId> {
        self.numbers.get(name).copied()
    }

    /// Whether an event is a synthetic one.
    pub fn contains(&self, event: EventId) -> bool {
        self.numbers.values().any(|known| *known == event)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.set.events().iter().map(|defined| defined.event.name.clone()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.events().is_empty()
    }

    /// Lines of `dynamic_events`, each with its serial number among all dynamic events.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.set.lines(File::Dynamic)
    }

    /// Serial numbers among all dynamic events, and names.
    pub(super) fn serials(&self) -> impl Iterator<Item = (u64, &str)> {
        self.set.events().iter().map(|defined| (defined.serial, defined.event.name.as_str()))
    }

    /// Whether a histogram produces any of them.
    pub(crate) fn is_referenced(&self) -> bool {
        self.set.is_held()
    }

    /// The event that a deletion in `dynamic_events` selects, and its serial number among all dynamic events.
    pub(crate) fn named(&self, group: Option<&[u8]>, name: &[u8]) -> Option<(String, u64)> {
        let name = latin1(name);
        let own = group.is_none_or(|group| group == SYSTEM.as_bytes());
        let is_selected = |defined: &&Defined| own && defined.event.name == name;
        let found = self.set.events().iter().find(is_selected)?;
        Some((found.event.name.clone(), found.serial))
    }

    pub(crate) fn mark_referenced(&mut self, is_referenced: impl Fn(&str) -> bool) {
        for name in self.names() {
            let referenced = is_referenced(&name);
            self.set.set_referenced(&name, referenced);
        }
    }

    pub(super) fn mark_busy(&mut self, is_busy: impl Fn(&str, EventId) -> bool) {
        for (name, event) in &self.numbers {
            self.set.set_busy(name, is_busy(name, *event));
        }
    }

    pub(crate) fn count_change(&mut self, event: EventId) {
        *self.generations.entry(event).or_default() += 1;
    }

    /// An event's number, and the number of changes of its programs. An emission is valid as long as they stay the
    /// same.
    pub(super) fn state(&self, name: &str) -> Option<(EventId, u64)> {
        let event = self.number(name)?;
        Some((event, self.generations.get(&event).copied().unwrap_or_default()))
    }
}

impl SyntheticEvents {
    /// As [`EventRegistry::apply_synthetic`](super::EventRegistry::apply_synthetic).
    pub(super) fn apply(
        &mut self,
        (file, line): (File, &Line<'_>),
        (table, owner): (&mut EventTable, DefinitionOwner<'_>),
        facts: &Facts,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.set.number_from(table.definitions());
        match self.set.apply(line.text(), file)? {
            Change::Nothing => {}
            Change::Added(event) => {
                table.count_definition();
                self.added(&event, line.text().len(), (table, owner), facts).inspect_err(|_| {
                    let _ = self.set.delete(&event.name);
                })?;
            }
            Change::Deleted(event) => self.deleted(&event.name, table, changes),
        }
        Ok(())
    }

    /// As [`EventRegistry::delete_synthetic`](super::EventRegistry::delete_synthetic).
    pub(super) fn delete(
        &mut self,
        name: &str,
        table: &mut EventTable,
        changes: &mut EventChanges,
    ) -> Result<(), CommandError> {
        self.set.delete(name)?;
        self.deleted(name, table, changes);
        Ok(())
    }

    fn added(
        &mut self,
        event: &Event,
        bytes: usize,
        (table, owner): (&mut EventTable, DefinitionOwner<'_>),
        facts: &Facts,
    ) -> Result<(), CommandError> {
        let charge = owner.charge(bytes)?;
        let id = table.free_id()?;
        let format = event.format(id, facts.version());
        let printer = printer(event, &format, facts);
        let number = table.events_mut().add(DefinedEvent { text: format.text(), format, printer })?;
        table.keep_charge(number, charge);
        self.numbers.insert(event.name.clone(), number);
        Ok(())
    }

    fn deleted(&mut self, name: &str, table: &mut EventTable, changes: &mut EventChanges) {
        if let Some(event) = self.numbers.remove(name) {
            self.generations.remove(&event);
            table.remove(event, changes);
        }
    }

    /// The record of an event that a thread emits.
    ///
    /// # Errors
    /// `ENODEV` for a deleted event, `EINVAL` for values that do not match its fields.
    pub(crate) fn record(
        &self,
        event: EventId,
        values: &[Value<'_>],
        pid: u32,
        events: &Events,
    ) -> Result<Vec<u8>, CommandError> {
        let format = events.known_format(event).ok_or(ErrorKind::Gone)?;
        let known = self.find(&format.name).ok_or(ErrorKind::Gone)?;
        let mut record = known.encode(values).ok_or(ErrorKind::Invalid)?;
        *record.first_chunk_mut().ok_or(ErrorKind::Invalid)? = common_fields(format.id, pid);
        Ok(record)
    }
}

/// The printer of a synthetic event's records.
fn printer(event: &Event, format: &Format, facts: &Facts) -> Printer {
    let value = |(member, field): (&Member, &crate::event::Field)| {
        let kind = match (member.is_text(), member.is_stack()) {
            (true, _) if member.is_dynamic() => SynthKind::DynText,
            (true, _) => SynthKind::Text(TEXT_SIZE),
            (_, true) => SynthKind::Stack,
            _ if member.ty() == "gfp_t" => {
                SynthKind::Flags(member.size(), Box::new(allocation_flags(format, &field.name, facts)))
            }
            _ => SynthKind::Number(member.size()),
        };
        SynthValue { name: member.name.clone(), offset: field.offset, conversion: member.conversion(), kind }
    };
    Printer::synthetic(format, event.fields.iter().zip(&format.fields).map(value).collect())
}

/// The printer of the names of allocation flags, from the table of a kernel event with such a field.
fn allocation_flags(format: &Format, field: &str, facts: &Facts) -> Printer {
    const BEGIN: &str = "__print_flags(REC->gfp_flags, \"|\", ";
    let text = facts.tracefs.format("kmem", "kmalloc").ok().flatten().unwrap_or_default();
    let table =
        text.split_once(BEGIN).and_then(|(_, table)| table.split_once(" ) :").or(table.split_once(") :")));
    let print_fmt = match table {
        Some((table, _)) => format!("\"%s\", __print_flags(REC->{field}, \"|\", {table})"),
        None => format!("\"0x%x\", REC->{field}"),
    };
    Printer::compile(&Format { print_fmt, ..format.clone() }, facts)
}
