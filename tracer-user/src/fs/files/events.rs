//! Files below `events`: they enable events, set their filters and triggers, and describe them.

use rustix::io::Errno;

use super::entry::{At, ClientEngine, Entry, ReadKind, Result, lines};
use crate::{
    api::wire::with_values,
    engine::{
        Engine, InstanceCommand, RecordCommand,
        histograms::{HistCommands, HistScope},
        instances::{Selector, words},
    },
    event::SystemId,
    kernel::Error,
};

/// `events/enable`: whether all events are enabled.
pub(super) const ALL_ENABLE: Entry =
    Entry::write("enable", ReadKind::Text(|engine, at| show_enabled(engine, at, None)), |engine, data| {
        enable(engine, None, data)
    });

/// `events/SYSTEM/enable`: whether all events of a system are enabled.
pub(super) const SYSTEM_ENABLE: Entry = Entry::write(
    "enable",
    ReadKind::Text(|engine, at| show_enabled(engine, at, Some(at.system()?))),
    |engine, data| enable(engine, Some(engine.at.system()?), data),
);

/// `events/SYSTEM/filter`: sets the filter of all events of a system that have its fields.
pub(super) const SYSTEM_FILTER: Entry = Entry::write(
    "filter",
    ReadKind::Once(|_, _| Ok(SYSTEM_FILTER_TEXT.as_bytes().to_vec())),
    |engine, data| {
        engine.take(data, InstanceCommand::SystemFilter { system: engine.at.system()?, text: data })
    },
);

/// The constant text of a system's filter. A write always succeeds; errors are shown in the files of the events.
const SYSTEM_FILTER_TEXT: &str = "### global filter ###\n\
    # Use this to set filters for multiple events.\n\
    # Only events with the given fields will be affected.\n\
    # If no events are modified, an error message will be displayed here\n";

/// `events/SYSTEM/EVENT/btf_ids`: the number of the kernel's BTF object, and its types of the arguments and of the record
/// (7.3 and later).
pub(super) const BTF_IDS: Entry = Entry::read(
    "btf_ids",
    ReadKind::Kernel(|text| match text {
        Ok(text) => Ok(text.ok_or(Errno::NODEV)?.into_bytes()),
        // ENOENT: the event's module has no BTF.
        Err(Error::Io { source, .. }) => Err(Errno::from_io_error(&source).unwrap_or(Errno::IO)),
        Err(_) => Err(Errno::IO),
    }),
)
.in_kernel(|facts| facts.later_files().has_btf_ids);

/// `events/SYSTEM/EVENT/enable`: whether an event is enabled.
pub(super) const ENABLE: Entry = Entry::write(
    "enable",
    ReadKind::Text(|engine, at| Ok(at.status(engine)?.enable_text(at.event()?).to_vec())),
    |engine, data| {
        let on = words::flag(data)?;
        engine.take(data, InstanceCommand::Event { event: engine.at.event()?, on })
    },
);

/// `events/SYSTEM/EVENT/filter`: the filter of an event.
pub(super) const FILTER: Entry = Entry::write(
    "filter",
    ReadKind::Once(|engine, at| Ok(at.state(engine)?.filter_text(at.event()?).to_vec())),
    |engine, data| engine.take(data, InstanceCommand::Filter { event: engine.at.event()?, text: data }),
);

/// `events/SYSTEM/EVENT/format`: the fields and the print format of an event.
pub(super) const FORMAT: Entry = Entry::read(
    "format",
    ReadKind::Seq(|engine, at| {
        let text = engine.registry.events().format_text(at.event()?, &engine.facts);
        Ok(text.ok_or(Errno::NODEV)?.as_bytes().to_vec())
    }),
);

/// `events/SYSTEM/EVENT/hist`: the histograms of an event. poll(2) waits for hits (6.14 and later).
pub(super) const HIST: Entry = Entry::read(
    "hist",
    ReadKind::Hist(|engine, at| Ok(HistCommands::of(engine, at.instance).text_of(at.event()?)?)),
);

/// `events/SYSTEM/EVENT/id`: the number of an event in its records.
pub(super) const ID: Entry = Entry::read(
    "id",
    ReadKind::Text(|engine, at| {
        let id = engine.registry.events().id(at.event()?, &engine.facts).ok_or(Errno::NODEV)?;
        Ok(lines([id]))
    }),
);

/// `events/SYSTEM/EVENT/inject`: a write makes a record of the event, as in kernels with `CONFIG_TRACE_EVENT_INJECT`.
pub(super) const INJECT: Entry =
    Entry::write("inject", ReadKind::Once(|_, _| Err(Errno::PERM)), |engine, data| {
        engine.take(data, RecordCommand::Inject { event: engine.at.event()?, text: data })
    })
    .mode(0o200);

/// `events/SYSTEM/EVENT/trigger`: what a hit does in addition to the record. Emptying the file removes only
/// histograms.
pub(super) const TRIGGER: Entry = Entry::write(
    "trigger",
    ReadKind::Seq(|engine, at| Ok(HistScope::of(engine, at.instance).trigger_text(at.event()?)?)),
    |engine, data| {
        if data.is_empty() {
            return Ok(0);
        }
        engine.take(data, InstanceCommand::Trigger { event: engine.at.event()?, text: data })
    },
)
.truncates(|at| Ok(InstanceCommand::ClearHistograms(at.event()?).into()));

/// `events/synthetic/EVENT/synth_event_trace`, which tracefs does not have: a write of values traces the event in
/// this instance, as the kernel's function of that name does ([`crate::api::trace`]).
pub(super) const SYNTH_EVENT_TRACE: Entry =
    Entry::write("synth_event_trace", ReadKind::Once(|_, _| Err(Errno::PERM)), |engine, data| {
        let event = engine.at.event()?;
        let done = with_values(data, |values| engine.take(data, RecordCommand::Emit { event, values }));
        done.ok_or(Errno::INVAL)?
    })
    .mode(0o200);

/// Shows whether the events of a system are enabled, or all events if `system` is `None`: all (`1`), none (`0`), some
/// (`X`), or `?` if there are no events.
fn show_enabled(engine: &Engine, at: At, system: Option<SystemId>) -> Result<Vec<u8>> {
    let (state, events) = (at.state(engine)?, engine.registry.events());
    let (mut on, mut off) = (false, false);
    for event in events.ordinary() {
        if events.get(event).is_some_and(|known| system.is_none_or(|system| system == known.system)) {
            let enabled = state.is_enabled(event);
            (on, off) = (on || enabled, off || !enabled);
        }
    }
    let text = match (on, off) {
        (true, true) => b"X\n",
        (true, false) => b"1\n",
        (false, true) => b"0\n",
        (false, false) => b"?\n",
    };
    Ok(text.to_vec())
}

/// Enables or disables the events of a system, or all events if `system` is `None`.
fn enable(engine: &mut ClientEngine<'_>, system: Option<SystemId>, data: &[u8]) -> Result<usize> {
    let value = words::number(data)?;
    engine.execute(InstanceCommand::Expand)?;
    if value > 1 {
        return Err(Errno::INVAL);
    }
    let events = engine.view().registry.events().clone();
    let system = system.map(|system| events.system(system).ok_or(Errno::NODEV)).transpose()?;
    let which = Selector::system(system.map(|system| system.name.as_str()));
    engine.take(data, InstanceCommand::Events { which, on: value == 1 })
}
