//! Registers the program's events with a tracer.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{Event, sys, user_events};

/// Mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The transport that traces the registered events. In addition, any tracer may place probes at the events at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The kernel's user_events.
    UserEvents,
    /// A mirror of tracefs knows the events and places probes at their sites.
    Probes,
    /// A mirror's user_events.
    MirrorUserEvents,
}

/// The result of a registration.
#[derive(Debug)]
pub struct Registered {
    /// The transport.
    pub transport: Transport,
    /// Number of registered events.
    pub events: usize,
    /// Events that were not registered, as `system:name`, with the error.
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

/// Registers the program's events with a tracer on this machine. The order is: the kernel's user_events where available
/// (6.4 and later); a mirror of tracefs that places probes at the events; that mirror's user_events.
///
/// The call is optional: probes find the events through the notes in the program. The call makes the events appear in
/// tracefs automatically. Under user_events they belong to the system `user_events`. Their text is then the kernel's
/// own, `field=value`, since user_events takes no format.
///
/// # Errors
/// `NotFound` if there is no tracer; otherwise the error of opening or writing its file.
pub fn register() -> io::Result<Registered> {
    register_at(&TRACEFS.map(Path::new))
}

/// [`register`] with tracefs, or a mirror of it, in one of these places.
///
/// # Errors
/// As for [`register`].
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

/// [`register`] with one transport, with tracefs or a mirror of it at `place`.
///
/// # Errors
/// `NotFound` if the place does not have that transport; otherwise the error of opening or writing its file.
pub fn register_by(transport: Transport, place: &Path) -> io::Result<Registered> {
    match transport {
        Transport::Probes => by_program(&place.join("program_events")),
        Transport::UserEvents | Transport::MirrorUserEvents => {
            by_user_events(&place.join("user_events_data"), transport)
        }
    }
}

/// Whether the kernel's own tracefs is mounted at a place.
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

/// The file of the program or library that contains these events.
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

/// The events of this program, or of the library that this crate is linked into.
pub fn events() -> impl Iterator<Item = &'static Event> {
    sys::events()
}
