//! `events/SYSTEM/enable` and `events/enable`: all events of a system, or all there are.

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, Mirror, Selector, words},
    event::SystemId,
    fs::entry::{At, Entry, Result, Shows, all},
};

fn show(mirror: &mut Mirror, at: At, system: Option<SystemId>) -> Result<Vec<u8>> {
    let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
    let (mut on, mut off) = (false, false);
    for event in mirror.events.ordinary() {
        let belongs = mirror.events.get(event).is_some_and(|known| system.is_none_or(|s| s == known.system));
        if belongs {
            let enabled = state.is_enabled(event);
            (on, off) = (on || enabled, off || !enabled);
        }
    }
    Ok(match (on, off) {
        (true, true) => b"X\n".to_vec(),
        (true, false) => b"1\n".to_vec(),
        (false, true) => b"0\n".to_vec(),
        (false, false) => b"?\n".to_vec(),
    })
}

fn set(mirror: &mut Mirror, at: At, system: Option<SystemId>, data: &[u8]) -> Result<usize> {
    let value = words::number(data)?;
    mirror.apply(at.instance, &Command::Expand)?;
    if value > 1 {
        return Err(Errno::INVAL);
    }
    let events = mirror.events.clone();
    let name = match system {
        Some(system) => Some(events.system(system).ok_or(Errno::NODEV)?.name.as_str()),
        None => None,
    };
    let which = Selector::system(name);
    all(data, mirror.apply(at.instance, &Command::Events { which, on: value == 1 }))
}

pub(super) const ALL: Entry =
    Entry::write("enable", Shows::Text(|mirror, at| show(mirror, at, None)), |mirror, at, data| {
        set(mirror, at, None, data)
    });

pub(super) const FILE: Entry = Entry::write(
    "enable",
    Shows::Text(|mirror, at| show(mirror, at, Some(at.system()?))),
    |mirror, at, data| set(mirror, at, Some(at.system()?), data),
);
