//! The events there are, by number: a tree of files and the state of instances refer to them so.
//!
//! Names are read at the start, everything else when it is asked for first: most events are never looked at. Events
//! come and go while others are used ([`Events::add`], [`Events::remove`]). A number is not given again before all others were,
//! so that an open file of an event that is gone does not come to mean another; a system that comes back has its old one.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use rustix::io::Errno;
use tracer_abi::control;

use crate::{
    engine::facts::Facts,
    event::{Catalogue, EventId, Format, SystemId},
    kernel::Error,
    render::Printer,
};

/// The system of the events that are no trace events: they are recorded by themselves and cannot be turned on.
pub(in crate::engine) const SPECIAL: &str = "ftrace";
/// The events of it whose records are the kernel's stack and a thread's own.
pub(in crate::engine) const STACKS: [&str; 2] = ["kernel_stack", "user_stack"];

/// Ids of events that the kernel does not know. The kernel counts its own from 1 on and has some thousands.
const MADE_IDS: Range<u16> = 0x8000..control::FIRST;
/// How many there are.
pub const IDS: usize = (MADE_IDS.end - MADE_IDS.start) as usize;

/// Events that can be numbered: what fits into the number of a file.
const NUMBERS: usize = 1 << 20;
/// Threads that read the formats of many events.
const READERS: usize = 2;

/// An event that the kernel does not know: all that it would tell of one of its own.
#[derive(Debug)]
pub struct Made {
    /// Its format, with an id of [`Events::free_id`].
    pub format: Format,
    /// The text of its `format` file.
    pub text: String,
    /// What prints its records.
    pub printer: Printer,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Number of its system.
    pub system: SystemId,
    /// Name.
    pub name: String,
    text: OnceLock<Option<String>>,
    format: OnceLock<Option<Format>>,
    printer: OnceLock<Printer>,
}

impl Event {
    fn new(system: SystemId, name: String) -> Self {
        Self { system, name, text: OnceLock::new(), format: OnceLock::new(), printer: OnceLock::new() }
    }
}

/// A system of events.
#[derive(Clone, Debug)]
pub struct System {
    /// Name.
    pub name: String,
    /// Numbers of its events.
    pub events: Vec<EventId>,
}

/// All events.
#[derive(Clone, Debug)]
pub struct Events {
    /// By number; none where one is gone.
    all: Vec<Option<Arc<Event>>>,
    /// Numbers of those that are gone, in that order, and the ids that they had.
    gone: VecDeque<(EventId, Option<u16>)>,
    /// The first event and the first system that were not there at the start.
    first: (EventId, SystemId),
    /// By number; those without events are not there.
    systems: Vec<System>,
    names: HashMap<(SystemId, String), EventId>,
    system_names: HashMap<String, SystemId>,
    ids: Arc<RwLock<Ids>>,
}

/// Ids of events.
#[derive(Debug)]
struct Ids {
    /// By id, those whose format was read.
    events: HashMap<u16, EventId>,
    /// None of [`MADE_IDS`] before this one is free.
    lowest: u16,
}

impl Default for Ids {
    fn default() -> Self {
        Self { events: HashMap::new(), lowest: MADE_IDS.start }
    }
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
            gone: VecDeque::new(),
            first: (EventId::new(0), SystemId::new(0)),
            systems: Vec::new(),
            names: HashMap::new(),
            system_names: HashMap::new(),
            ids: Arc::default(),
        };
        for (system, name) in names {
            let system = known.system_named(&system);
            known.join(Event::new(system, name));
        }
        known.first = (known.next_event(), known.next_system());
        known
    }

    /// The id of the next event.
    fn next_event(&self) -> EventId {
        EventId::new(self.all.len() as u32)
    }

    /// The id of the next system.
    fn next_system(&self) -> SystemId {
        SystemId::new(self.systems.len() as u32)
    }

    /// A system by its name, which becomes one if there is none.
    fn system_named(&mut self, name: &str) -> SystemId {
        if let Some(system) = self.system_names.get(name) {
            return *system;
        }
        let system = self.next_system();
        self.systems.push(System { name: name.to_owned(), events: Vec::new() });
        self.system_names.insert(name.to_owned(), system);
        system
    }

    fn join(&mut self, event: Event) -> EventId {
        let again = if self.all.len() < NUMBERS { None } else { self.gone.pop_front() };
        let id = again.map_or(self.next_event(), |(gone, _)| gone);
        if let Some(system) = self.systems.get_mut(event.system.index()) {
            system.events.push(id);
        }
        self.names.insert((event.system, event.name.clone()), id);
        match self.all.get_mut(id.index()) {
            Some(place) => *place = Some(Arc::new(event)),
            None => self.all.push(Some(Arc::new(event))),
        }
        id
    }

    /// Adds an event, and says its number.
    ///
    /// # Errors
    /// `EEXIST` for a name that is taken, `ENOSPC` when numbers are used up.
    pub fn add(&mut self, made: Made) -> Result<EventId, Errno> {
        let Made { format, text, printer } = made;
        let mut event = self.newcomer(&format.system, &format.name)?;
        let id = format.id;
        event.text = OnceLock::from(Some(text));
        event.format = OnceLock::from(Some(format));
        event.printer = OnceLock::from(printer);
        let event = self.join(event);
        self.ids.write().unwrap_or_else(PoisonError::into_inner).events.insert(id, event);
        Ok(event)
    }

    /// Adds an event that the kernel has by now, as modules bring some, and says its number.
    ///
    /// # Errors
    /// As [`Events::add`].
    pub fn add_known(&mut self, system: &str, name: &str) -> Result<EventId, Errno> {
        let event = self.newcomer(system, name)?;
        Ok(self.join(event))
    }

    fn newcomer(&mut self, system: &str, name: &str) -> Result<Event, Errno> {
        if self.all.len() == NUMBERS && self.gone.is_empty() {
            return Err(Errno::NOSPC);
        }
        let system = self.system_named(system);
        if self.find(system, name).is_some() {
            return Err(Errno::EXIST);
        }
        Ok(Event::new(system, name.to_owned()))
    }

    /// Takes an event away.
    pub fn remove(&mut self, event: EventId) {
        let Some(gone) = self.all.get_mut(event.index()).and_then(Option::take) else { return };
        let id = gone.format.get().and_then(Option::as_ref).map(|format| format.id);
        self.gone.push_back((event, id));
        if let Some(System { events: all, .. }) = self.systems.get_mut(gone.system.index()) {
            // In order, as long as numbers do not come again.
            let place =
                all.binary_search(&event).ok().or_else(|| all.iter().position(|other| *other == event));
            if let Some(place) = place {
                all.remove(place);
            }
        }
        self.names.remove(&(gone.system, gone.name.clone()));
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = id
            && ids.events.get(&id) == Some(&event)
        {
            ids.events.remove(&id);
            if MADE_IDS.contains(&id) {
                ids.lowest = ids.lowest.min(id);
            }
        }
    }

    /// The id of an event, also of one that is gone.
    pub fn id(&self, event: EventId, facts: &Facts) -> Option<u16> {
        let gone = || self.gone.iter().find(|(gone, _)| *gone == event)?.1;
        self.format(event, facts).map(|format| format.id).or_else(gone)
    }

    /// An id for one more event, the lowest that is free; none when all are used.
    pub fn free_id(&self) -> Option<u16> {
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        let free = (ids.lowest..MADE_IDS.end).find(|id| !ids.events.contains_key(id));
        ids.lowest = free.unwrap_or(MADE_IDS.end);
        free
    }

    /// An event.
    pub fn get(&self, event: EventId) -> Option<&Event> {
        self.all.get(event.index())?.as_deref()
    }

    /// Whether a definition made an event, not the kernel.
    pub fn is_made(&self, event: EventId) -> bool {
        self.known_format(event).is_some_and(|format| MADE_IDS.contains(&format.id))
    }

    /// An event's format if it need not be read: it was read before, or the event is not the kernel's.
    pub fn known_format(&self, event: EventId) -> Option<&Format> {
        self.get(event)?.format.get()?.as_ref()
    }

    /// Whether an event was there at the start: such an event stays.
    pub fn is_lasting(&self, event: EventId) -> bool {
        event < self.first.0
    }

    /// Whether a system was there at the start.
    pub fn is_lasting_system(&self, system: SystemId) -> bool {
        system < self.first.1
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

    /// Whether a system's events cannot be turned on.
    pub fn is_special(&self, system: SystemId) -> bool {
        self.system(system).is_some_and(|system| system.name == SPECIAL)
    }

    /// Numbers of all events that can be turned on, in the kernel's order: the youngest first, then those of the start
    /// as they were listed.
    pub fn ordinary(&self) -> impl Iterator<Item = EventId> {
        let (first, end) = (self.first.0.get(), self.next_event().get());
        let all = (first..end).rev().chain(0..first).map(EventId::new);
        all.filter(|event| self.get(*event).is_some_and(|event| !self.is_special(event.system)))
    }

    /// A system's name, also where its last event is gone.
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

    fn read_text<'a>(&self, known: &'a Event, facts: &Facts) -> Result<&'a str, Errno> {
        if known.text.get().is_none() {
            let text = facts.tracefs.format(self.name_of(known.system), &known.name);
            // An error is not kept: the next attempt may succeed.
            let _ = known.text.set(text.map_err(|error| match error {
                Error::Io { source, .. } if Errno::from_io_error(&source) == Some(Errno::TIMEDOUT) => {
                    Errno::TIMEDOUT
                }
                _ => Errno::NODEV,
            })?);
        }
        known.text.get().and_then(Option::as_deref).ok_or(Errno::NODEV)
    }

    /// An event's format.
    pub fn format(&self, event: EventId, facts: &Facts) -> Option<&Format> {
        self.try_format(event, facts).ok()
    }

    /// An event's format, or why there is none.
    ///
    /// # Errors
    /// `ENODEV`; `ETIMEDOUT` while an operation on a uprobe keeps the kernel's format files from being read
    /// ([`event_mutex`](crate::sys::perf::event_mutex)).
    pub fn try_format(&self, event: EventId, facts: &Facts) -> Result<&Format, Errno> {
        let known = self.get(event).ok_or(Errno::NODEV)?;
        if let Some(format) = known.format.get() {
            return format.as_ref().ok_or(Errno::NODEV);
        }
        let text = self.read_text(known, facts)?;
        let format = known.format.get_or_init(|| Format::parse(self.name_of(known.system), text).ok());
        let format = format.as_ref().ok_or(Errno::NODEV)?;
        // The kernel gives the id of an event that is gone to another one.
        self.ids.write().unwrap_or_else(PoisonError::into_inner).events.insert(format.id, event);
        Ok(format)
    }

    /// Reads the formats of many events, by more than one thread.
    pub(in crate::engine) fn read_formats(&self, events: &[EventId], facts: &Facts) {
        let share = events.len().div_ceil(READERS).max(1);
        std::thread::scope(|scope| {
            for part in events.chunks(share) {
                scope.spawn(|| part.iter().filter(|event| self.format(**event, facts).is_some()).count());
            }
        });
    }

    /// What prints an event's records.
    pub fn printer(&self, event: EventId, facts: &Facts) -> Option<&Printer> {
        let (known, format) = (self.get(event)?, self.format(event, facts)?);
        Some(known.printer.get_or_init(|| Printer::compile(format, facts)))
    }

    /// The event of an id, if its format was read before, as that of every event is that was ever turned on.
    pub fn by_id(&self, id: u16) -> Option<EventId> {
        self.ids.read().unwrap_or_else(PoisonError::into_inner).events.get(&id).copied()
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
        let [switch, softirq, x] = [0, 1, 2].map(EventId::new);
        assert_eq!(events.system(sched).unwrap().events, [switch, x]);
        assert_eq!(events.find(sched, "x"), Some(x));
        assert_eq!(events.find(sched, "softirq_entry"), None);
        assert_eq!(events.full_name(softirq), "irq:softirq_entry");
        assert_eq!(events.ordinary().collect::<Vec<_>>(), [switch, softirq, x]);
    }

    fn made(system: &str, name: &str, id: u16) -> Made {
        let text = format!("name: {name}\nID: {id}\nformat:\n\nprint fmt: \"\"\n");
        let format = Format::parse(system, &text).unwrap();
        Made { printer: Printer::compile(&format, &()), format, text }
    }

    #[test]
    fn events_come_and_go() {
        let mut events = Events::of([("sched".to_owned(), "x".to_owned())]);
        let x = EventId::new(0);
        assert_eq!(events.free_id(), Some(0x8000));
        let first = events.add(made("mine", "a", 0x8000)).unwrap();
        let second = events.add(made("sched", "b", 0x8001)).unwrap();
        assert_eq!(events.add(made("mine", "a", 0x8002)), Err(Errno::EXIST));
        assert_eq!(events.ordinary().collect::<Vec<_>>(), [second, first, x]);
        assert_eq!((events.by_id(0x8001), events.free_id()), (Some(second), Some(0x8002)));
        let mine = events.find_system("mine").unwrap();
        assert!(events.is_lasting(x) && !events.is_lasting(second) && !events.is_lasting_system(mine));
        // Others may still look at how it was.
        let before = events.clone();
        events.remove(first);
        assert_eq!((events.find_system("mine"), events.system(mine).is_none()), (None, true));
        assert_eq!((events.get(first).is_none(), events.free_id()), (true, Some(0x8000)));
        assert_eq!(before.full_name(first), "mine:a");
        let again = events.add(made("mine", "a", 0x8000)).unwrap();
        assert!(again > second);
        assert_eq!(events.find_system("mine"), Some(mine));
        assert_eq!(events.systems().count(), 2);
    }

    #[test]
    fn numbers_come_again_when_all_were_given() {
        let mut events = Events::of([("sched".to_owned(), "x".to_owned())]);
        let first = events.add(made("mine", "a", 0x8000)).unwrap();
        events.remove(first);
        let second = EventId::new(2);
        assert_eq!((first, events.add(made("mine", "a", 0x8000))), (EventId::new(1), Ok(second)));
        events.remove(second);
        // As after a million of them.
        events.all.resize(NUMBERS, None);
        assert_eq!(events.add(made("mine", "a", 0x8000)), Ok(first));
        assert_eq!(events.add(made("mine", "b", 0x8001)), Ok(second));
        assert_eq!(events.full_name(second), "mine:b");
    }
}
