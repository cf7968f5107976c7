//! Synthetic events: `synthetic_events`, and the lines of `dynamic_events` that start with `s:`.
//!
//! Such an event has no hook. Actions of histograms emit it in the kernel, and the engine emits it from user space
//! ([`crate::engine::operations::emission`]). An instance enables, filters and triggers it like any event.

use std::{collections::HashMap, sync::Arc};

use rustix::io::Errno;

use crate::{
    engine::{
        facts::Facts,
        registry::{
            catalogue::{Events, Made},
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{
        EventId, Format,
        dynamic::latin1,
        synthetic::{Event, Member, SYSTEM, TEXT_ROOM, Value},
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
    /// How often the programs of each became others.
    generations: HashMap<EventId, u64>,
}

impl SyntheticEvents {
    /// What `synthetic_events` reads.
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

    /// Names of all events.
    pub(in crate::engine) fn names(&self) -> Vec<String> {
        self.set.events().iter().map(|defined| defined.event.name.clone()).collect()
    }

    /// Whether there is none.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.set.events().is_empty()
    }

    /// Lines of `dynamic_events`, each with its place among all dynamic events.
    pub(in crate::engine) fn lines(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.set.lines(File::Dynamic)
    }

    /// Places among all dynamic events, and names.
    pub(super) fn serials(&self) -> impl Iterator<Item = (u64, &str)> {
        self.set.events().iter().map(|defined| (defined.serial, defined.event.name.as_str()))
    }

    /// Whether a histogram makes any of them.
    pub(in crate::engine) fn is_referenced(&self) -> bool {
        self.set.is_held()
    }

    /// The event that a deletion in `dynamic_events` names, and its place among all dynamic events.
    pub(in crate::engine) fn named(&self, group: Option<&[u8]>, name: &[u8]) -> Option<(String, u64)> {
        let name = latin1(name);
        let own = group.is_none_or(|group| group == SYSTEM.as_bytes());
        let is_meant = |defined: &&Defined| own && defined.event.name == name;
        let found = self.set.events().iter().find(is_meant)?;
        Some((found.event.name.clone(), found.serial))
    }

    /// Marks the events that histograms use.
    pub(in crate::engine) fn mark_referenced(&mut self, is_referenced: impl Fn(&str) -> bool) {
        for name in self.names() {
            let referenced = is_referenced(&name);
            self.set.set_referenced(&name, referenced);
        }
    }

    /// Marks the events that are in use.
    pub(super) fn mark_busy(&mut self, is_busy: impl Fn(&str, EventId) -> bool) {
        for (name, event) in &self.numbers {
            self.set.set_busy(name, is_busy(name, *event));
        }
    }

    /// Counts that the programs of an event are others than before.
    pub(in crate::engine) fn count_change(&mut self, event: EventId) {
        *self.generations.entry(event).or_default() += 1;
    }

    /// How often the programs of an event became others: an emission is valid as long as this stays.
    pub fn generation(&self, event: EventId) -> u64 {
        self.generations.get(&event).copied().unwrap_or_default()
    }
}

impl SyntheticEvents {
    /// Applies a line that defines or deletes an event.
    ///
    /// # Errors
    /// The kernel's for that line; `ENOMEM` when its client has as many definitions as it may have.
    pub(super) fn apply(
        &mut self,
        (file, line): (File, &Line<'_>),
        (table, owner): (&mut EventTable, DefinitionOwner<'_>),
        facts: &Facts,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
        self.set.number_from(table.definitions());
        match self.set.apply(line.text(), file) {
            Ok(Change::Nothing) => Ok(()),
            Ok(Change::Added(event)) => {
                table.count_definition();
                let added = self.added(&event, line.text().len(), (table, owner), facts);
                if added.is_err() {
                    let _ = self.set.delete(&event.name);
                }
                added
            }
            Ok(Change::Deleted(event)) => {
                self.deleted(&event.name, table, changes);
                Ok(())
            }
            Err(refusal) => {
                changes.log.extend(refusal.log_entry());
                Err(refusal.errno())
            }
        }
    }

    /// Deletes an event.
    ///
    /// # Errors
    /// `EBUSY` for one that is in use.
    pub(super) fn delete(
        &mut self,
        name: &str,
        table: &mut EventTable,
        changes: &mut EventChanges,
    ) -> Result<(), Errno> {
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
    ) -> Result<(), Errno> {
        let charge = owner.charge(bytes)?;
        let id = table.free_id()?;
        let format = event.format(id);
        let printer = printer(event, &format, facts);
        let number = table.add(Made { text: event.format_text(id), format, printer })?;
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

    /// A record of an event as a thread emits it.
    ///
    /// # Errors
    /// `ENODEV` for an event that is gone, `EINVAL` for values that are not its fields'.
    pub(super) fn record(
        &self,
        event: EventId,
        values: &[Value<'_>],
        pid: u32,
        (events, facts): (&Events, &Facts),
    ) -> Result<Vec<u8>, Errno> {
        let name = &events.get(event).ok_or(Errno::NODEV)?.name;
        let known = self.find(name).ok_or(Errno::NODEV)?;
        let id = events.try_format(event, facts)?.id;
        let mut record = known.encode(values).ok_or(Errno::INVAL)?;
        let ([low, high], pid) = (id.to_ne_bytes(), pid.to_ne_bytes());
        let head = record.first_chunk_mut::<{ tracer_abi::COMMON_SIZE }>().ok_or(Errno::INVAL)?;
        *head = [low, high, 0, 0, pid[0], pid[1], pid[2], pid[3]];
        Ok(record)
    }
}

/// What prints a synthetic event's records.
fn printer(event: &Event, format: &Format, facts: &Facts) -> Printer {
    let value = |(member, field): (&Member, &crate::event::Field)| {
        let kind = match (member.is_text(), member.is_stack()) {
            (true, _) if member.is_dynamic() => SynthKind::DynText,
            (true, _) => SynthKind::Text(TEXT_ROOM),
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

/// What prints the names of allocation flags: the kernel's own table, as an event with such a field has it.
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
