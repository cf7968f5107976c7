//! Files that select events and threads: `available_events`, `set_event`, `set_event_pid` and
//! `set_event_notrace_pid`.

use rustix::io::Errno;

use super::entry::{At, ClientEngine, Entry, ReadKind, Result, Update, lines};
use crate::engine::{
    Engine, InstanceCommand, List,
    instances::{Selector, words},
};

/// `available_events`: all events that can be enabled.
pub(super) const AVAILABLE_EVENTS: Entry = Entry::read(
    "available_events",
    ReadKind::Seq(|engine, _| {
        let events = engine.registry.events();
        Ok(lines(events.ordinary().map(|event| events.full_name(event))))
    }),
)
.top();

/// `set_event`: the enabled events. Each write enables or disables the events that one word selects; emptying the
/// file disables all.
pub(super) const SET_EVENT: Entry = Entry::write(
    "set_event",
    ReadKind::Seq(|engine, at| {
        let (state, events) = (at.state(engine)?, engine.registry.events());
        let on = events.ordinary().filter(|event| state.is_enabled(*event));
        Ok(lines(on.map(|event| events.full_name(event)).chain(state.awaited())))
    }),
    |engine, data| {
        if data.is_empty() {
            return Ok(0);
        }
        engine.execute(InstanceCommand::Expand)?;
        let (done, word) = words::word(data)?;
        if let Some(word) = word {
            let (on, which) = Selector::read(word).ok_or(Errno::INVAL)?;
            engine.execute(InstanceCommand::Events { which, on })?;
        }
        Ok(done)
    },
)
.truncates(|_| Ok(InstanceCommand::DisableAll.into()));

/// `set_event_pid`: only these threads are recorded.
pub(super) const SET_EVENT_PID: Entry = Entry::write(
    "set_event_pid",
    ReadKind::Seq(|engine, at| show_pids(engine, at, List::Traced)),
    |engine, data| add_pids(engine, List::Traced, data),
)
.updates(Update::Pids)
.truncates(|_| Ok(InstanceCommand::ClearPids(List::Traced).into()));

/// `set_event_notrace_pid`: these threads are not recorded.
pub(super) const SET_EVENT_NOTRACE_PID: Entry = Entry::write(
    "set_event_notrace_pid",
    ReadKind::Seq(|engine, at| show_pids(engine, at, List::Untraced)),
    |engine, data| add_pids(engine, List::Untraced, data),
)
.updates(Update::Pids)
.truncates(|_| Ok(InstanceCommand::ClearPids(List::Untraced).into()));

fn show_pids(engine: &Engine, at: At, list: List) -> Result<Vec<u8>> {
    Ok(lines(at.state(engine)?.pids(list)))
}

fn add_pids(engine: &mut ClientEngine<'_>, list: List, text: &[u8]) -> Result<usize> {
    engine.take(text, InstanceCommand::AddPids { list, text })
}
