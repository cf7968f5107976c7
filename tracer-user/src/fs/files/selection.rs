//! Files that select events and threads: `available_events`, `set_event`, `set_event_pid` and
//! `set_event_notrace_pid`.

use rustix::io::Errno;

use super::entry::{At, ClientEngine, Entry, ReadKind, Result, Update, lines};
use crate::{
    engine::{
        Engine, InstanceCommand, List,
        facts::Facts,
        histograms::HistScope,
        instances::{Selector, words},
    },
    event::EventId,
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

/// `show_event_filters`: the filters of all events that have one.
pub(super) const SHOW_EVENT_FILTERS: Entry = Entry::read(
    "show_event_filters",
    ReadKind::Seq(|engine, at| {
        let state = at.state(engine)?;
        let line = |event: EventId| {
            let filtering = state.filters.get(&event)?;
            Some([event_column(engine, event).as_slice(), &filtering.shown].concat())
        };
        Ok(engine.registry.events().ordinary().filter_map(line).flatten().collect())
    }),
)
.in_kernel(lists_filters);

/// `show_event_triggers`: the triggers of all events that have some.
pub(super) const SHOW_EVENT_TRIGGERS: Entry = Entry::read(
    "show_event_triggers",
    ReadKind::Seq(|engine, at| {
        let mut text = Vec::new();
        for event in engine.registry.events().ordinary() {
            let triggers = HistScope::of(engine, at.instance).trigger_text(event)?;
            let lines =
                triggers.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
            text.extend(lines.flat_map(|line| [event_column(engine, event).as_slice(), line].concat()));
        }
        Ok(text)
    }),
)
.in_kernel(lists_filters);

/// Whether the kernel has these two files.
fn lists_filters(facts: &Facts) -> bool {
    facts.has_newest_language() || facts.later_files().lists_filters
}

/// An event's name, with blanks up to the next column (`get_call_len()`, kernel/trace/trace_events.c).
fn event_column(engine: &Engine, event: EventId) -> Vec<u8> {
    const COLUMN: usize = 32;
    let name = engine.registry.events().full_name(event);
    let blanks = COLUMN.saturating_sub(name.len()).max(1);
    (name + &" ".repeat(blanks)).into_bytes()
}

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
