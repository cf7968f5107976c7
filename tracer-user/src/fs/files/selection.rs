//! Files that select events and threads: `available_events`, `set_event`, `set_event_pid` and `set_event_notrace_pid`.

use rustix::io::Errno;

use super::entry::{At, Entry, Result, Shows, all, lines};
use crate::engine::{
    Command, Engine, List,
    instances::{Selector, words},
};

/// `available_events`: all events that can be enabled.
pub(super) const AVAILABLE_EVENTS: Entry = Entry::read(
    "available_events",
    Shows::Seq(|mirror, _| {
        Ok(mirror
            .registry()
            .events()
            .ordinary()
            .map(|event| mirror.registry().events().full_name(event) + "\n")
            .collect::<String>()
            .into())
    }),
)
.top();

/// `set_event`: the enabled events. Each write enables or disables the events that one word selects; emptying the file
/// disables all.
pub(super) const SET_EVENT: Entry = Entry::write(
    "set_event",
    Shows::Seq(|mirror, at| {
        let state = at.state(mirror)?;
        let on = mirror.registry().events().ordinary().filter(|event| state.is_enabled(*event));
        let on = on.map(|event| mirror.registry().events().full_name(event));
        Ok(on.chain(state.awaited()).map(|name| name + "\n").collect::<String>().into())
    }),
    |mirror, at, data| {
        if data.is_empty() {
            return Ok(0);
        }
        mirror.apply(at.instance, &Command::Expand)?;
        let (done, word) = words::word(data)?;
        if let Some(word) = word {
            let (on, which) = Selector::read(word).ok_or(Errno::INVAL)?;
            mirror.apply(at.instance, &Command::Events { which, on })?;
        }
        Ok(done)
    },
)
.truncates(|mirror, at| {
    mirror.apply(at.instance, &Command::Events { which: Selector::system(None), on: false })?;
    mirror.get_mut(at.instance).ok_or(Errno::NODEV)?.await_none();
    Ok(())
});

/// `set_event_pid`: only these threads are recorded.
pub(super) const SET_EVENT_PID: Entry = Entry::write(
    "set_event_pid",
    Shows::Seq(|mirror, at| show_pids(mirror, at, List::Traced)),
    |mirror, at, data| add_pids(mirror, at, List::Traced, data),
)
.truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearPids(List::Traced)));

/// `set_event_notrace_pid`: these threads are not recorded.
pub(super) const SET_EVENT_NOTRACE_PID: Entry = Entry::write(
    "set_event_notrace_pid",
    Shows::Seq(|mirror, at| show_pids(mirror, at, List::Untraced)),
    |mirror, at, data| add_pids(mirror, at, List::Untraced, data),
)
.truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearPids(List::Untraced)));

fn show_pids(mirror: &mut Engine, at: At, list: List) -> Result<Vec<u8>> {
    mirror.refresh_pids(at.instance);
    Ok(lines(at.state(mirror)?.pids(list)))
}

/// Adds the threads of a write to a list.
fn add_pids(mirror: &mut Engine, at: At, list: List, text: &[u8]) -> Result<usize> {
    all(text, mirror.apply(at.instance, &Command::AddPids { list, text }))
}
