//! All events by number: files and the state of instances refer to events by numbers.
//!
//! Names are read at the start, everything else on first use, because most events are never used. Events can be added
//! and removed at any time ([`Events::add`], [`Events::retire`]). A number is reused only after all others were used,
//! and each use of a number has a serial number of its own ([`Event::serial`]), so that an open file and the changed
//! attributes of a removed event do not refer to another event. A system that reappears keeps its number. Records refer
//! to events by ids ([`defined_ids`](super::defined_ids)).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use rustix::io::Errno;

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        registry::defined_ids::DefinedIds,
    },
    event::{Catalogue, DEFINED_IDS, EventId, Format, SystemId},
    kernel::Error,
    render::Printer,
};

/// The system of events that are not trace events: the kernel records them itself, and they cannot be enabled.
pub(crate) const SPECIAL: &str = "ftrace";
/// The events of this system that record kernel stacks and user stacks.
pub(crate) const STACKS: [&str; 2] = ["kernel_stack", "user_stack"];

/// Number of ids for events that the kernel does not know.
pub const IDS: usize = (DEFINED_IDS.end - DEFINED_IDS.start) as usize;

/// Maximum number of events: the range that fits into the number of a file.
const NUMBERS: usize = 1 << 20;
/// Number of threads that read the formats of many events.
const READERS: usize = 2;

/// An event that the kernel does not know, with everything that the kernel would provide for its own events.
#[derive(Debug)]
pub struct DefinedEvent {
    /// Its format, with an id of [`Events::free_id`].
    pub format: Format,
    /// The text of its `format` file.
    pub text: String,
    /// The printer of its records.
    pub printer: Printer,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Number of its system.
    pub system: SystemId,
    /// Name.
    pub name: String,
    /// The number of this use of the event's number. It grows with each event that is added.
    pub serial: u64,
    text: OnceLock<Option<String>>,
    format: OnceLock<Option<Format>>,
    printer: OnceLock<Arc<Printer>>,
}

impl Event {
    fn new(system: SystemId, name: String) -> Self {
        let (text, format, printer) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { system, name, serial: 0, text, format, printer }
    }
}

/// A system of events.
#[derive(Clone, Debug)]
pub struct System {
    /// Name.
    pub name: String,
    /// Numbers of its events.
    pub events: Vec<EventId>,
    /// The serial number of the event with which it appeared last.
    pub serial: u64,
}

/// All events.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// The serial number of the last event that was added.
    last: u64,
    /// By number; `None` for removed events.
    all: Vec<Option<Arc<Event>>>,
    /// Numbers of removed events, in order of removal, and their ids.
    gone: VecDeque<(EventId, Option<u16>)>,
    /// Number of events and of systems at the start.
    first: (usize, usize),
    /// By number. A system without events is not listed.
    systems: Vec<System>,
    names: HashMap<(SystemId, String), EventId>,
    system_names: HashMap<String, SystemId>,
    /// Ids of the kernel's events whose format was read.
    ids: Arc<RwLock<HashMap<u16, EventId>>>,
    defined: DefinedIds,
}

impl Events {
    /// Reads the names.
    ///
    /// # Errors
    /// The kernel's list cannot be read.
    pub fn read(facts: &Facts) -> Result<Self, Error> {
        let listed = Catalogue::parse(&facts.tracefs.available_events()?);
        let names = listed.iter().map(|(system, name)| (system.to_owned(), name.to_owned()));
        let special = facts.tracefs.path("events").join(SPECIAL);
        let mut more: Vec<String> = std::fs::read_dir(special)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| !matches!(name.as_str(), "enable" | "filter"))
            .collect();
        more.sort();
        Ok(Self::of(names.chain(more.into_iter().map(|name| (SPECIAL.to_owned(), name)))))
    }

    /// Events with these names.
    pub fn of(names: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut known = Self::default();
        for (system, name) in names {
            let system = known.system_named(&system);
            known.join(Event::new(system, name));
        }
        known.first = (known.all.len(), known.systems.len());
        known
    }

    /// Marks all numbers as used, as after a million events.
    #[cfg(test)]
    pub(crate) fn use_up_numbers(&mut self) {
        self.all.resize(NUMBERS, None);
    }

    /// Finds a system by name, or adds it.
    fn system_named(&mut self, name: &str) -> SystemId {
        if let Some(system) = self.system_names.get(name) {
            return *system;
        }
        let system = SystemId::new(self.systems.len() as u32);
        self.systems.push(System { name: name.to_owned(), events: Vec::new(), serial: 0 });
        self.system_names.insert(name.to_owned(), system);
        system
    }

    fn join(&mut self, mut event: Event) -> EventId {
        self.last += 1;
        event.serial = self.last;
        let again = if self.all.len() < NUMBERS { None } else { self.gone.pop_front() };
        let id = again.map_or(EventId::new(self.all.len() as u32), |(gone, _)| gone);
        if let Some(system) = self.systems.get_mut(event.system.index()) {
            if system.events.is_empty() {
                system.serial = self.last;
            }
            system.events.push(id);
        }
        self.names.entry((event.system, event.name.clone())).or_insert(id);
        match self.all.get_mut(id.index()) {
            Some(place) => *place = Some(Arc::new(event)),
            None => self.all.push(Some(Arc::new(event))),
        }
        id
    }

    /// Adds an event and returns its number.
    ///
    /// # Errors
    /// `EEXIST` for an existing name, `ENOSPC` if no number is free.
    pub fn add(&mut self, made: DefinedEvent) -> Result<EventId, CommandError> {
        let event = self.new_event(&made.format.system, &made.format.name)?;
        Ok(self.join_made(event, made))
    }

    /// Adds an event whose name may exist, and returns its number. A search by name finds the other event.
    ///
    /// # Errors
    /// `ENOSPC` if no number is free.
    pub(crate) fn add_alike(&mut self, made: DefinedEvent) -> Result<EventId, CommandError> {
        self.check_free_number()?;
        let event = Event::new(self.system_named(&made.format.system), made.format.name.clone());
        Ok(self.join_made(event, made))
    }

    fn join_made(&mut self, mut event: Event, made: DefinedEvent) -> EventId {
        let DefinedEvent { format, text, printer } = made;
        let id = format.id;
        event.text = OnceLock::from(Some(text));
        event.format = OnceLock::from(Some(format));
        let printer = Arc::new(printer);
        event.printer = OnceLock::from(Arc::clone(&printer));
        let event = self.join(event);
        self.defined.take(id, event, &printer);
        event
    }

    /// Adds an event of the kernel, for example of a module, and returns its number.
    ///
    /// # Errors
    /// As [`Events::add`].
    pub fn add_known(&mut self, system: &str, name: &str) -> Result<EventId, CommandError> {
        let event = self.new_event(system, name)?;
        Ok(self.join(event))
    }

    fn new_event(&mut self, system: &str, name: &str) -> Result<Event, CommandError> {
        self.check_free_number()?;
        let system = self.system_named(system);
        if self.find(system, name).is_some() {
            return Err(ErrorKind::Exists.into());
        }
        Ok(Event::new(system, name.to_owned()))
    }

    /// Whether there is a number for one more event.
    fn check_free_number(&self) -> Result<(), CommandError> {
        if self.all.len() == NUMBERS && self.gone.is_empty() {
            return Err(ErrorKind::NoIds.into());
        }
        Ok(())
    }

    /// Removes an event. Returns its id if the kernel does not know it: the id and the printer stay until
    /// [`Events::release_id`].
    pub fn retire(&mut self, event: EventId) -> Option<u16> {
        let gone = self.all.get_mut(event.index()).and_then(Option::take)?;
        let id = gone.format.get().and_then(Option::as_ref).map(|format| format.id);
        self.gone.push_back((event, id));
        if let Some(System { events: all, .. }) = self.systems.get_mut(gone.system.index()) {
            // Sorted as long as numbers are not reused.
            let place =
                all.binary_search(&event).ok().or_else(|| all.iter().position(|other| *other == event));
            if let Some(place) = place {
                all.remove(place);
            }
        }
        let name = (gone.system, gone.name.clone());
        if self.names.get(&name) == Some(&event) {
            self.names.remove(&name);
        }
        let id = id?;
        if self.defined.retire(id, event) {
            return Some(id);
        }
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if ids.get(&id) == Some(&event) {
            ids.remove(&id);
        }
        None
    }

    /// Releases the id of a removed event, which may have had records.
    pub fn release_id(&mut self, id: u16, had_records: bool) {
        self.defined.release(id, had_records);
    }

    /// The id of an event, which may have been removed.
    pub fn id(&self, event: EventId, facts: &Facts) -> Option<u16> {
        let gone = || self.gone.iter().find(|(gone, _)| *gone == event)?.1;
        self.format(event, facts).map(|format| format.id).or_else(gone)
    }

    /// A free id for an event; `None` if all are in use.
    pub fn free_id(&self) -> Option<u16> {
        self.defined.free()
    }

    /// An event.
    pub fn get(&self, event: EventId) -> Option<&Event> {
        self.all.get(event.index())?.as_deref()
    }

    /// Whether the event comes from a definition, not from the kernel.
    pub fn is_made(&self, event: EventId) -> bool {
        self.known_format(event).is_some_and(|format| DEFINED_IDS.contains(&format.id))
    }

    /// An event's format, if it is available without reading: it was read before, or the event is not the kernel's.
    pub fn known_format(&self, event: EventId) -> Option<&Format> {
        self.get(event)?.format.get()?.as_ref()
    }

    /// Whether an event existed at the start; such an event stays.
    pub fn is_permanent(&self, event: EventId) -> bool {
        // The number of such an event, of a module, may have been reused.
        self.get(event).is_some_and(|known| known.serial <= self.first.0 as u64)
    }

    /// Whether a system existed at the start.
    pub fn is_permanent_system(&self, system: SystemId) -> bool {
        system.index() < self.first.1
    }

    /// A system.
    pub fn system(&self, system: SystemId) -> Option<&System> {
        self.systems.get(system.index()).filter(|system| !system.events.is_empty())
    }

    /// All systems, by number.
    pub fn systems(&self) -> impl Iterator<Item = (SystemId, &System)> {
        let all = (0..).map(SystemId::new).zip(&self.systems);
        all.filter(|(_, system)| !system.events.is_empty())
    }

    /// The number of a system.
    pub fn find_system(&self, name: &str) -> Option<SystemId> {
        self.system_names.get(name).copied().filter(|system| self.system(*system).is_some())
    }

    /// The number of an event.
    pub fn find(&self, system: SystemId, name: &str) -> Option<EventId> {
        self.names.get(&(system, name.to_owned())).copied()
    }

    /// Whether there is an event of a system with this name.
    pub fn has(&self, system: &str, name: &str) -> bool {
        self.find_system(system).is_some_and(|system| self.find(system, name).is_some())
    }

    /// Whether a system's events cannot be enabled.
    pub fn is_special(&self, system: SystemId) -> bool {
        self.system(system).is_some_and(|system| system.name == SPECIAL)
    }

    /// Numbers of all events that can be enabled, in the kernel's order: the newest first, then those of the start in
    /// the order of the kernel's list.
    pub fn ordinary(&self) -> impl Iterator<Item = EventId> {
        let (first, end) = (self.first.0, self.all.len());
        let all = (first..end).rev().chain(0..first).map(|number| EventId::new(number as u32));
        all.filter(|event| self.get(*event).is_some_and(|event| !self.is_special(event.system)))
    }

    /// A system's name, even if its last event was removed.
    fn name_of(&self, system: SystemId) -> &str {
        self.systems.get(system.index()).map_or("", |system| &system.name)
    }

    /// `system:name`.
    pub fn full_name(&self, event: EventId) -> String {
        match self.get(event) {
            Some(event) => format!("{}:{}", self.name_of(event.system), event.name),
            None => String::new(),
        }
    }

    /// The text of an event's format file.
    pub fn format_text(&self, event: EventId, facts: &Facts) -> Option<&str> {
        self.read_text(self.get(event)?, facts).ok()
    }

    fn read_text<'a>(&self, known: &'a Event, facts: &Facts) -> Result<&'a str, CommandError> {
        if known.text.get().is_none() {
            let text = facts.tracefs.format(self.name_of(known.system), &known.name);
            // An error is not stored: the next attempt may succeed.
            let _ = known.text.set(text.map_err(|error| match error {
                Error::Io { source, .. } if Errno::from_io_error(&source) == Some(Errno::TIMEDOUT) => {
                    ErrorKind::TimedOut
                }
                _ => ErrorKind::Gone,
            })?);
        }
        known.text.get().and_then(Option::as_deref).ok_or_else(|| ErrorKind::Gone.into())
    }

    /// An event's format.
    pub fn format(&self, event: EventId, facts: &Facts) -> Option<&Format> {
        self.try_format(event, facts).ok()
    }

    /// An event's format, or the error of reading it.
    ///
    /// # Errors
    /// `ENODEV`; `ETIMEDOUT` while an operation on a uprobe prevents reading the kernel's format files
    /// ([`event_mutex`](crate::sys::perf::event_mutex)).
    pub fn try_format(&self, event: EventId, facts: &Facts) -> Result<&Format, CommandError> {
        let known = self.get(event).ok_or(ErrorKind::Gone)?;
        if let Some(format) = known.format.get() {
            return format.as_ref().ok_or_else(|| ErrorKind::Gone.into());
        }
        let text = self.read_text(known, facts)?;
        let format = known.format.get_or_init(|| Format::parse(self.name_of(known.system), text).ok());
        let format = format.as_ref().ok_or(ErrorKind::Gone)?;
        // The kernel reuses the ids of removed events.
        self.ids.write().unwrap_or_else(PoisonError::into_inner).insert(format.id, event);
        Ok(format)
    }

    /// Reads the formats of many events, in several threads.
    pub(crate) fn read_formats(&self, events: &[EventId], facts: &Facts) {
        let share = events.len().div_ceil(READERS).max(1);
        std::thread::scope(|scope| {
            for part in events.chunks(share) {
                scope.spawn(|| part.iter().filter(|event| self.format(**event, facts).is_some()).count());
            }
        });
    }

    /// The printer of an event's records.
    pub fn printer(&self, event: EventId, facts: &Facts) -> Option<&Arc<Printer>> {
        let (known, format) = (self.get(event)?, self.format(event, facts)?);
        Some(known.printer.get_or_init(|| Arc::new(Printer::compile(format, facts))))
    }

    /// The event with an id, if its format was read before. That is the case for every event that was ever enabled.
    pub fn by_id(&self, id: u16) -> Option<EventId> {
        let known = || self.ids.read().unwrap_or_else(PoisonError::into_inner).get(&id).copied();
        self.defined.event(id).or_else(known)
    }

    /// The printer of the records with an id, for events that the kernel does not know. Such an event may be removed.
    pub fn defined_printer(&self, id: u16) -> Option<&Arc<Printer>> {
        self.defined.printer(id)
    }
}

/// An event without fields.
#[cfg(test)]
pub(crate) fn made(system: &str, name: &str, id: u16) -> DefinedEvent {
    let text = format!("name: {name}\nID: {id}\nformat:\n\nprint fmt: \"\"\n");
    let format = Format::parse(system, &text).unwrap();
    DefinedEvent { printer: Printer::compile(&format, &()), format, text }
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
        let [switch, softirq, x] = [0, 1, 2].map(EventId::new);
        assert_eq!(events.system(sched).unwrap().events, [switch, x]);
        assert_eq!(events.find(sched, "x"), Some(x));
        assert_eq!(events.find(sched, "softirq_entry"), None);
        assert_eq!(events.full_name(softirq), "irq:softirq_entry");
        assert_eq!(events.ordinary().collect::<Vec<_>>(), [switch, softirq, x]);
    }

    /// The event `sched:x`, with the number 0.
    fn one_event() -> (Events, EventId) {
        (Events::of([("sched".to_owned(), "x".to_owned())]), EventId::new(0))
    }

    /// Removes an event without records.
    fn remove(events: &mut Events, event: EventId) {
        if let Some(id) = events.retire(event) {
            events.release_id(id, false);
        }
    }

    #[test]
    fn events_come_and_go() {
        let (mut events, x) = one_event();
        assert_eq!(events.free_id(), Some(0x8000));
        let first = events.add(made("mine", "a", 0x8000)).unwrap();
        let second = events.add(made("sched", "b", 0x8001)).unwrap();
        assert_eq!(events.add(made("mine", "a", 0x8002)), Err(ErrorKind::Exists.into()));
        assert_eq!(events.ordinary().collect::<Vec<_>>(), [second, first, x]);
        assert_eq!((events.by_id(0x8001), events.free_id()), (Some(second), Some(0x8002)));
        let mine = events.find_system("mine").unwrap();
        assert!(events.is_permanent(x) && !events.is_permanent(second) && !events.is_permanent_system(mine));
        // Readers may still use the previous version.
        let before = events.clone();
        remove(&mut events, first);
        assert_eq!((events.find_system("mine"), events.system(mine).is_none()), (None, true));
        assert_eq!((events.get(first).is_none(), events.free_id()), (true, Some(0x8000)));
        assert_eq!(before.full_name(first), "mine:a");
        let again = events.add(made("mine", "a", 0x8000)).unwrap();
        assert!(again > second);
        assert_eq!(events.find_system("mine"), Some(mine));
        assert_eq!(events.systems().count(), 2);
    }

    #[test]
    fn records_of_a_removed_event_are_printed_until_its_id_is_released() {
        let mut events = Events::of([]);
        let first = events.add(made("mine", "a", 0x8000)).unwrap();
        assert_eq!((events.retire(first), events.retire(first)), (Some(0x8000), None));
        assert!(events.get(first).is_none() && events.find_system("mine").is_none());
        assert_eq!((events.by_id(0x8000), events.free_id()), (None, Some(0x8001)));
        // The name is free at once.
        let second = events.add(made("mine", "a", 0x8001)).unwrap();
        let printed = |events: &Events, id| events.defined_printer(id).map(|printer| printer.format().id);
        assert_eq!((printed(&events, 0x8000), printed(&events, 0x8001)), (Some(0x8000), Some(0x8001)));
        // A reader's version keeps it.
        let before = events.clone();
        events.release_id(0x8000, true);
        assert_eq!((printed(&events, 0x8000), printed(&before, 0x8000)), (None, Some(0x8000)));
        assert_eq!((events.by_id(0x8001), events.free_id()), (Some(second), Some(0x8002)));
    }

    #[test]
    fn numbers_are_reused_after_all_were_used() {
        let (mut events, _) = one_event();
        let first = events.add(made("mine", "a", 0x8000)).unwrap();
        remove(&mut events, first);
        let second = EventId::new(2);
        assert_eq!((first, events.add(made("mine", "a", 0x8000))), (EventId::new(1), Ok(second)));
        remove(&mut events, second);
        events.use_up_numbers();
        assert_eq!(events.add(made("mine", "a", 0x8000)), Ok(first));
        assert_eq!(events.add(made("mine", "b", 0x8001)), Ok(second));
        assert_eq!(events.full_name(second), "mine:b");
    }

    #[test]
    fn each_use_of_a_number_has_another_serial_number() {
        let (mut events, x) = one_event();
        let serial = |events: &Events, event| events.get(event).map(|known| known.serial);
        let system = |events: &Events| events.system(events.find_system("sched")?).map(|known| known.serial);
        let before = (serial(&events, x), system(&events));
        assert!(before.0.is_some() && events.is_permanent(x));
        remove(&mut events, x);
        events.use_up_numbers();
        assert_eq!(events.add(made("sched", "x", 0x8000)), Ok(x));
        assert!(serial(&events, x) > before.0 && system(&events) > before.1);
        assert!(!events.is_permanent(x), "it may go");
        let now = system(&events);
        remove(&mut events, x);
        events.add(made("mine", "a", 0x8000)).unwrap();
        assert_eq!(system(&events), None);
        events.gone.push_back((EventId::new(1), None));
        events.add(made("sched", "y", 0x8001)).unwrap();
        assert!(system(&events) > now, "the system appeared again");
    }
}
