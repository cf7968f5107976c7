//! The events there are, by number: a tree of files and the state of instances refer to them so.
//!
//! Names are read at the start, everything else when it is asked for first: most events are never looked at.

use std::{
    collections::HashMap,
    sync::{OnceLock, RwLock},
};

use crate::{
    control::facts::Facts,
    event::{Catalogue, Format},
    kernel::Error,
    render::Printer,
};

/// The system of the events that are no trace events: they are recorded by themselves and cannot be turned on.
pub const SPECIAL: &str = "ftrace";

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Number of its system.
    pub system: u32,
    /// Name.
    pub name: String,
    text: OnceLock<Option<String>>,
    format: OnceLock<Option<Format>>,
    printer: OnceLock<Option<Printer>>,
}

/// A system of events.
#[derive(Debug)]
pub struct System {
    /// Name.
    pub name: String,
    /// Numbers of its events.
    pub events: Vec<u32>,
}

/// All events.
#[derive(Debug)]
pub struct Events {
    all: Vec<Event>,
    systems: Vec<System>,
    names: HashMap<(u32, String), u32>,
    system_names: HashMap<String, u32>,
    /// Numbers by event id, of those whose format was read.
    ids: RwLock<HashMap<u16, u32>>,
}

impl Events {
    /// Reads the names.
    ///
    /// # Errors
    /// When the kernel's list cannot be read.
    pub fn read(facts: &Facts) -> Result<Self, Error> {
        let mut names: Vec<(String, String)> = Catalogue::parse(&facts.tracefs.available_events()?)
            .iter()
            .map(|(system, name)| (system.to_owned(), name.to_owned()))
            .collect();
        let special = facts.tracefs.path("events").join(SPECIAL);
        let mut more: Vec<String> = std::fs::read_dir(special)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| !matches!(name.as_str(), "enable" | "filter"))
            .collect();
        more.sort();
        names.extend(more.into_iter().map(|name| (SPECIAL.to_owned(), name)));
        Ok(Self::of(names))
    }

    /// The events of these names.
    pub fn of(names: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut known = Self {
            all: Vec::new(),
            systems: Vec::new(),
            names: HashMap::new(),
            system_names: HashMap::new(),
            ids: RwLock::default(),
        };
        for (system, name) in names {
            let number = *known.system_names.entry(system.clone()).or_insert_with(|| {
                known.systems.push(System { name: system, events: Vec::new() });
                known.systems.len() as u32 - 1
            });
            let event = known.all.len() as u32;
            known.systems[number as usize].events.push(event);
            known.names.insert((number, name.clone()), event);
            known.all.push(Event {
                system: number,
                name,
                text: OnceLock::new(),
                format: OnceLock::new(),
                printer: OnceLock::new(),
            });
        }
        known
    }

    /// An event.
    pub fn get(&self, event: u32) -> Option<&Event> {
        self.all.get(event as usize)
    }

    /// A system.
    pub fn system(&self, system: u32) -> Option<&System> {
        self.systems.get(system as usize)
    }

    /// All systems.
    pub fn systems(&self) -> &[System] {
        &self.systems
    }

    /// The number of a system.
    pub fn find_system(&self, name: &str) -> Option<u32> {
        self.system_names.get(name).copied()
    }

    /// The number of an event.
    pub fn find(&self, system: u32, name: &str) -> Option<u32> {
        self.names.get(&(system, name.to_owned())).copied()
    }

    /// Whether a system's events cannot be turned on.
    pub fn is_special(&self, system: u32) -> bool {
        self.system(system).is_some_and(|system| system.name == SPECIAL)
    }

    /// Numbers of all events that can be turned on, in the kernel's order.
    pub fn ordinary(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.all).filter(|(_, event)| !self.is_special(event.system)).map(|(number, _)| number)
    }

    /// `system:name`.
    pub fn full_name(&self, event: u32) -> String {
        match self.get(event) {
            Some(event) => format!("{}:{}", self.systems[event.system as usize].name, event.name),
            None => String::new(),
        }
    }

    /// The text of an event's format file.
    pub fn format_text(&self, event: u32, facts: &Facts) -> Option<&str> {
        let known = self.get(event)?;
        let read = || {
            let system = &self.systems[known.system as usize].name;
            facts.tracefs.format(system, &known.name).ok().flatten()
        };
        known.text.get_or_init(read).as_deref()
    }

    /// An event's format.
    pub fn format(&self, event: u32, facts: &Facts) -> Option<&Format> {
        let known = self.get(event)?;
        let format = known.format.get_or_init(|| {
            let system = &self.systems[known.system as usize].name;
            Format::parse(system, self.format_text(event, facts)?).ok()
        });
        let format = format.as_ref()?;
        let mut ids = self.ids.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        ids.entry(format.id).or_insert(event);
        Some(format)
    }

    /// What prints an event's records.
    pub fn printer(&self, event: u32, facts: &Facts) -> Option<&Printer> {
        let known = self.get(event)?;
        let compile = || Some(Printer::compile(self.format(event, facts)?, facts));
        known.printer.get_or_init(compile).as_ref()
    }

    /// The event of an id, if its format was read before, as that of every event is that was ever turned on.
    pub fn by_id(&self, id: u16) -> Option<u32> {
        self.ids.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_by_name_and_number() {
        let names =
            [("sched", "sched_switch"), ("irq", "softirq_entry"), ("sched", "x"), ("ftrace", "print")];
        let events = Events::of(names.map(|(system, name)| (system.to_owned(), name.to_owned())));
        let sched = events.find_system("sched").unwrap();
        assert_eq!(events.system(sched).unwrap().events, [0, 2]);
        assert_eq!(events.find(sched, "x"), Some(2));
        assert_eq!(events.find(sched, "softirq_entry"), None);
        assert_eq!(events.full_name(1), "irq:softirq_entry");
        assert_eq!(events.ordinary().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
