//! Synthetic events of the mirror: `synthetic_events`, and the lines of `dynamic_events` that start with `s:`.
//!
//! Such an event has no hook. Histograms' actions emit it in the kernel, and [`Engine::emit`] from user space, by injection;
//! what is on in which instance, its filter and its triggers are those of any event.

use std::{collections::HashMap, sync::Arc};

use rustix::io::Errno;
use tracer_abi::asked;

use crate::{
    attach::{self, Block},
    buffer::clock::monotonic,
    engine::histograms::commands as hist_commands,
    engine::histograms::programs as hist_programs,
    engine::{
        Engine,
        attachments::{desired, session},
        facts::Facts,
        records::mark::Writer,
        registry::catalogue::Made,
    },
    event::{
        EventId, Format, InstanceId,
        dynamic::latin1,
        synthetic::{Event, Member, SYSTEM, TEXT_ROOM, Value},
    },
    lang::{
        define::{Line, lines},
        synth::{Change, Defined, File, Set},
    },
    render::{Printer, SynthKind, SynthValue},
};

/// What definitions made.
#[derive(Debug, Default)]
pub(in crate::engine) struct Synthetic {
    pub(in crate::engine) set: Set,
    /// Numbers of the events, by name.
    numbers: HashMap<String, EventId>,
    /// How often each was on otherwise than before.
    generations: HashMap<EventId, u64>,
}

impl Synthetic {
    /// The event that a deletion in `dynamic_events` names.
    pub(in crate::engine) fn named(&self, group: Option<&[u8]>, name: &[u8]) -> Option<&Defined> {
        let name = latin1(name);
        let own = group.is_none_or(|group| group == SYSTEM.as_bytes());
        self.set.events().iter().find(|defined| own && defined.event.name == name)
    }
}

impl Engine {
    /// What `synthetic_events` reads.
    pub fn synthetic_definitions(&self) -> Vec<u8> {
        self.synthetic.set.listing(File::Synthetic)
    }

    /// A synthetic event.
    pub fn find_synthetic(&self, name: &str) -> Option<Arc<Event>> {
        self.synthetic.set.find(name).cloned()
    }

    /// Names of all synthetic events.
    pub(in crate::engine) fn synthetic_names(&self) -> Vec<String> {
        self.synthetic.set.events().iter().map(|defined| defined.event.name.clone()).collect()
    }

    /// The number of a synthetic event among all events.
    pub fn synthetic_number(&self, name: &str) -> Option<EventId> {
        self.synthetic.numbers.get(name).copied()
    }

    /// Whether an event is a synthetic one.
    pub fn is_synthetic(&self, event: EventId) -> bool {
        self.synthetic.numbers.values().any(|known| *known == event)
    }

    /// Takes what is written to `synthetic_events`, line by line up to the first that is refused.
    ///
    /// # Errors
    /// The kernel's for that line.
    pub fn define_synthetic(&mut self, written: &[u8]) -> Result<(), Errno> {
        self.touch();
        for line in lines(written) {
            self.tell_busy();
            self.define_synthetic_line(File::Synthetic, &Line::split(line.map_err(|_| Errno::INVAL)?))?;
        }
        Ok(())
    }

    /// Takes all synthetic events away, in order up to one that is on.
    ///
    /// # Errors
    /// `EBUSY` when one stays; when a histogram makes one, all stay.
    pub fn undefine_synthetic(&mut self) -> Result<(), Errno> {
        self.touch();
        self.tell_busy();
        if self.synthetic.set.is_held() {
            return Err(Errno::BUSY);
        }
        let names: Vec<_> = self.synthetic.set.events().iter().map(|one| one.event.name.clone()).collect();
        names.iter().try_for_each(|name| self.delete_synthetic(name))
    }

    pub(in crate::engine) fn define_synthetic_line(
        &mut self,
        file: File,
        line: &Line<'_>,
    ) -> Result<(), Errno> {
        self.synthetic.set.number_from(self.definitions);
        match self.synthetic.set.apply(line.text(), file) {
            Ok(Change::Nothing) => Ok(()),
            Ok(Change::Added(event)) => {
                self.definitions += 1;
                let added = self.add_synthetic(&event, line.text().len());
                if added.is_err() {
                    let _ = self.synthetic.set.delete(&event.name);
                }
                added
            }
            Ok(Change::Deleted(event)) => {
                self.synthetic_gone(&event.name);
                Ok(())
            }
            Err(refusal) => {
                if let Some(entry) = refusal.log_entry() {
                    self.state(InstanceId::TOP)?.errors.push(monotonic(), entry);
                }
                Err(refusal.errno())
            }
        }
    }

    fn add_synthetic(&mut self, event: &Event, bytes: usize) -> Result<(), Errno> {
        let charge = self.charge_definition(bytes)?;
        let id = self.events.free_id().ok_or(Errno::NOSPC)?;
        let format = event.format(id);
        let printer = printer(event, &format, &self.facts);
        let made = Made { text: event.format_text(id), format, printer };
        let number = self.add_event(made)?;
        self.keep_charge(number, charge);
        self.synthetic.numbers.insert(event.name.clone(), number);
        Ok(())
    }

    /// Takes a synthetic event away.
    pub(in crate::engine) fn delete_synthetic(&mut self, name: &str) -> Result<(), Errno> {
        self.synthetic.set.delete(name)?;
        self.synthetic_gone(name);
        Ok(())
    }

    fn synthetic_gone(&mut self, name: &str) {
        if let Some(event) = self.synthetic.numbers.remove(name) {
            self.synthetic.generations.remove(&event);
            self.remove_event(event);
        }
    }

    /// Tells the set which events are in use: those that are on, and those that event probes sit on.
    pub(in crate::engine) fn tell_busy_synthetic(&mut self) {
        // Instances may have gone since with their histograms.
        hist_commands::count_uses(self);
        let numbers = self.synthetic.numbers.clone();
        for (name, event) in numbers {
            let busy = self.is_busy(event) || self.dynamic.is_probed(SYSTEM, &name);
            self.synthetic.set.set_busy(&name, busy);
        }
    }

    /// Emits a synthetic event from user space, in all instances where it is on: through its filter, triggers and histograms.
    ///
    /// # Errors
    /// `ENOENT` for an event that there is none of, `EINVAL` for values that are not its fields'.
    pub fn emit(&mut self, name: &str, values: &[Value<'_>], writer: Writer) -> Result<(), Errno> {
        let event = self.synthetic_number(name).ok_or(Errno::NOENT)?;
        let record = self.synthetic_record(event, values, writer)?;
        let all: Vec<InstanceId> = self.numbers().collect();
        for instance in all {
            self.emit_record(instance, event, &record, writer);
        }
        Ok(())
    }

    /// Emits a synthetic event from user space in one instance, where it is on (`synth_event_trace()`).
    ///
    /// # Errors
    /// `ENODEV` for an event that is gone; `EINVAL` for one that is not synthetic, for values that are not its fields', and
    /// where nothing is recorded.
    pub fn emit_in(
        &mut self,
        instance: InstanceId,
        event: EventId,
        values: &[Value<'_>],
        writer: Writer,
    ) -> Result<(), Errno> {
        if !self.is_synthetic(event) {
            return Err(if self.events.get(event).is_none() { Errno::NODEV } else { Errno::INVAL });
        }
        let state = self.state(instance)?;
        if !state.is_enabled(event) {
            return Ok(());
        }
        if !self.status(instance).is_some_and(|status| status.records()) {
            return Err(Errno::INVAL);
        }
        let record = self.synthetic_record(event, values, writer)?;
        self.emit_record(instance, event, &record, writer);
        Ok(())
    }

    fn synthetic_record(
        &self,
        event: EventId,
        values: &[Value<'_>],
        writer: Writer,
    ) -> Result<Vec<u8>, Errno> {
        let name = &self.events.get(event).ok_or(Errno::NODEV)?.name;
        let known = self.find_synthetic(name).ok_or(Errno::NODEV)?;
        let id = self.events.try_format(event, &self.facts)?.id;
        let mut record = known.encode(values).ok_or(Errno::INVAL)?;
        let ([low, high], pid) = (id.to_ne_bytes(), writer.pid.to_ne_bytes());
        let head = record.first_chunk_mut::<{ tracer_abi::COMMON_SIZE }>().ok_or(Errno::INVAL)?;
        *head = [low, high, 0, 0, pid[0], pid[1], pid[2], pid[3]];
        Ok(record)
    }

    fn emit_record(&mut self, instance: InstanceId, event: EventId, record: &[u8], writer: Writer) {
        self.tasks.meet(writer.pid.cast_signed(), true);
        let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
        if self.hand(instance, event, record, &hit) & asked::STACK != 0 {
            self.collect(instance);
            self.stack_of_writer(instance, record, writer);
        }
    }

    /// Whether an event is on in an instance, and no trigger has turned it off.
    pub fn takes_hits(&self, instance: InstanceId, event: EventId) -> bool {
        self.status(instance).is_some_and(|status| status.takes_hits(event))
    }
}

impl Engine {
    /// What a program calls to emit a synthetic event in the kernel, for that program alone (`code::lower::emission` has its
    /// arguments). None when the event is on nowhere. It is right for how the event is on at this moment: once that changes,
    /// [`Engine::relink`] lets the programs that have it be made anew.
    ///
    /// # Errors
    /// `ENOENT` for an event that there is none of, and what the kernel refuses.
    pub fn emission(&mut self, name: &str) -> Result<Option<Block>, Errno> {
        self.emission_within(name, &mut Vec::new())
    }

    /// The same, within emissions of other events.
    pub(in crate::engine) fn emission_within(
        &mut self,
        name: &str,
        outer: &mut Vec<EventId>,
    ) -> Result<Option<Block>, Errno> {
        let event = self.find_synthetic(name).ok_or(Errno::NOENT)?;
        let number = self.synthetic_number(name).ok_or(Errno::NOENT)?;
        let (catalogue, facts) = (self.events.clone(), self.facts.clone());
        let format = catalogue.format(number, &facts).ok_or(Errno::NOENT)?;
        let id = format.id;
        let mut parts = Vec::new();
        for instance in self.numbers().collect::<Vec<_>>() {
            if self.attachments.session(instance).is_some() {
                parts.extend(desired::with_config(self, instance, number, format, |session, config| {
                    session.emitted_block(number, config).map_err(|error| session::log_to_errno(&error))
                })?);
            }
        }
        for instance in self.numbers().collect::<Vec<_>>() {
            parts.extend(self.following(instance, number, outer)?);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        attach::emission(&event, id, &parts).map_err(|error| session::log_to_errno(&error))
    }

    /// Lets programs that emit a synthetic event know that it is on elsewhere, or otherwise, than before.
    pub(in crate::engine) fn relink(&mut self, event: EventId) {
        if self.is_synthetic(event) {
            *self.synthetic.generations.entry(event).or_default() += 1;
            hist_programs::rebuild_emitters(self);
        }
    }

    /// Counts how often a synthetic event was on otherwise than before: an emission is right as long as this stays.
    pub fn generation(&self, event: EventId) -> u64 {
        self.synthetic.generations.get(&event).copied().unwrap_or_default()
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
