//! Telling tracers of the program's events.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{Event, sys, user_events};

/// Where tracefs is.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The way by which events are traced from now on, beside the probes that anybody may put at their places at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The kernel's user_events.
    UserEvents,
    /// A tracer's mirror of tracefs knows the events and puts probes at their places.
    Probes,
    /// A mirror's user_events.
    MirrorUserEvents,
}

/// What registering came to.
#[derive(Debug)]
pub struct Registered {
    /// The way.
    pub transport: Transport,
    /// How many events were taken.
    pub events: usize,
    /// Those that were not, by `system:name`, and why.
    pub refused: Vec<(String, io::Error)>,
}

impl fmt::Display for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events by {:?}", self.events, self.transport)?;
        for (event, error) in &self.refused {
            write!(f, "; {event}: {error}")?;
        }
        Ok(())
    }
}

/// Tells what traces on this machine of the program's events: the kernel's user_events where it has them (6.4 and later); else
/// a mirror of tracefs that puts probes at the events' places; else that mirror's user_events.
///
/// Nobody has to call this: probes find the events without it, from the notes in the program. It makes the events appear in
/// tracefs by themselves. Under user_events they belong to the system `user_events`, and their text is the kernel's own,
/// `field=value`, since it takes no format.
///
/// # Errors
/// `NotFound` where nobody wants to know; else what opening or writing said.
pub fn register() -> io::Result<Registered> {
    register_at(&TRACEFS.map(Path::new))
}

/// [`register`] with tracefs, or what stands for it, in one of these places.
///
/// # Errors
/// As there.
pub fn register_at(places: &[&Path]) -> io::Result<Registered> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for place in places {
        match register_in(place) {
            Ok(registered) => return Ok(registered),
            Err(why) if error.kind() == io::ErrorKind::NotFound => error = why,
            Err(_) => {}
        }
    }
    Err(error)
}

fn register_in(place: &Path) -> io::Result<Registered> {
    if is_tracefs(place) {
        return register_by(Transport::UserEvents, place);
    }
    match register_by(Transport::Probes, place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    register_by(Transport::MirrorUserEvents, place)
}

/// [`register`] by one way, with tracefs or a mirror of it at `place`.
///
/// # Errors
/// `NotFound` where the place does not have that way; else what opening or writing said.
pub fn register_by(transport: Transport, place: &Path) -> io::Result<Registered> {
    match transport {
        Transport::Probes => by_program(&place.join("program_events")),
        Transport::UserEvents | Transport::MirrorUserEvents => {
            by_user_events(&place.join("user_events_data"), transport)
        }
    }
}

/// Whether the kernel's own tracefs is mounted there.
fn is_tracefs(place: &Path) -> bool {
    let place = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // The last mount is the one on top.
    let kind = mounts.lines().rev().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        (Path::new(words.next()?) == place).then(|| words.next().unwrap_or_default().to_owned())
    });
    matches!(kind.as_deref(), Some("tracefs" | "debugfs"))
}

fn by_user_events(path: &Path, transport: Transport) -> io::Result<Registered> {
    let data = OpenOptions::new().read(true).write(true).open(path)?;
    let mut registered = Registered { transport, events: 0, refused: Vec::new() };
    for event in sys::events() {
        match data.try_clone().and_then(|data| user_events::register(data, event)) {
            Ok(()) => registered.events += 1,
            Err(error) => registered.refused.push((format!("{}:{}", event.system(), event.name()), error)),
        }
    }
    Ok(registered)
}

fn by_program(path: &Path) -> io::Result<Registered> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(format!("{}\n", own_file()?.display()).as_bytes())?;
    Ok(Registered { transport: Transport::Probes, events: sys::events().count(), refused: Vec::new() })
}

/// The program or library that these events are in.
fn own_file() -> io::Result<PathBuf> {
    let Some(first) = sys::events().next() else { return fs::read_link("/proc/self/exe") };
    let address = core::ptr::from_ref::<Event>(first).addr();
    let maps = fs::read_to_string("/proc/self/maps")?;
    let holds = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]));
        (number(start)?..number(end)?).contains(&address).then_some(path)
    };
    match maps.lines().find_map(holds).flatten() {
        Some(path) => Ok(path),
        None => fs::read_link("/proc/self/exe"),
    }
}

/// The events of this program, or of the library that this is linked into.
pub fn events() -> impl Iterator<Item = &'static Event> {
    sys::events()
}
