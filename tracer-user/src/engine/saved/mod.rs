//! The state of the instances that survives the daemon: all settings, but no records.
//!
//! Each part is stored as the text that sets it, so restoring is the same as writing it again. Names replace numbers,
//! which may differ at the next start. What cannot be restored is logged and skipped.

mod boot;
mod check;
mod clients;
mod escaped;
mod listed;
#[cfg(test)]
mod tests;

pub use boot::{Boot, boot};
pub use check::{BYTES_MAX as SAVED_MAX, SavedError};
pub use escaped::Escaped;
pub use listed::ListedChange;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::{
    buffer::PageSize,
    engine::{
        Engine, InstanceCommand, List,
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        histograms::HistCommands,
        instances::{Instances, Status, instance::Instance, select::Selector},
        operations::{changes::Definitions, definitions, lifecycle},
        registry::{catalogue::Events, program_events::program_files},
        user::UserEvents,
    },
    event::{EventId, InstanceId},
    kernel::opened::Identity,
    lang::{
        facts::{FileRequest, Files, Found},
        hist,
    },
};

/// The state of all instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Saved {
    /// Lines of `dynamic_events`.
    pub definitions: Vec<String>,
    /// The file that each definition names; `None` if it names no file.
    pub definition_files: Vec<Option<Identity>>,
    /// Lines of `program_events`.
    pub programs: Vec<String>,
    /// The file of each of these lines.
    pub program_files: Vec<Option<Identity>>,
    /// The lists of events that the daemon was started with.
    pub listed: Vec<String>,
    /// Maximum number of stored names of threads.
    pub names: usize,
    /// The instances, the top instance first.
    pub instances: Vec<SavedInstance>,
    /// Histograms, in the order of their creation, because later ones may refer to variables of earlier ones.
    pub hists: Vec<SavedHist>,
}

/// A histogram trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedHist {
    /// Its instance; empty for the top instance.
    pub instance: String,
    /// System of the event.
    pub system: String,
    /// Name of the event.
    pub event: String,
    /// The text after `hist:`.
    pub command: String,
    /// Whether it is paused.
    pub paused: bool,
}

/// One instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedInstance {
    /// Its name; empty for the top instance.
    pub name: String,
    /// Options, as words of `trace_options`.
    pub options: Vec<String>,
    /// The trace clock.
    pub clock: String,
    /// Whether recording is on.
    pub on: bool,
    /// Which CPUs are recorded.
    pub cpus: Vec<bool>,
    /// `buffer_percent`
    pub percent: u32,
    /// `syscall_user_buf_size`; `None` for a kernel that has no such file.
    pub user_data: Option<u32>,
    /// Size of a page of the buffers in bytes.
    pub page: usize,
    /// Size of each CPU's buffer in bytes; empty before the buffers were used.
    pub sizes: Vec<usize>,
    /// `set_event_pid`
    pub traced: Vec<u32>,
    /// `set_event_notrace_pid`
    pub untraced: Vec<u32>,
    /// Filters: system, event, text.
    pub filters: Vec<(String, String, String)>,
    /// Enabled events: system and name.
    pub events: Vec<(String, String)>,
    /// Triggers: system, event, lines of the `trigger` file.
    pub triggers: Vec<(String, String, Vec<String>)>,
    /// Words for events of modules that are not loaded, the last first.
    pub awaited: Vec<String>,
}

impl SavedInstance {
    fn of(state: &Instance, status: &Status<'_>, engine: &Engine) -> Self {
        let events: &Events = engine.registry.events();
        let name = |event: EventId| {
            let known = events.get(event).filter(|_| lasts(&engine.user, event))?;
            Some((events.system(known.system)?.name.clone(), known.name.clone()))
        };
        let mut filters: Vec<_> = state
            .filters
            .iter()
            .filter(|(_, filtering)| filtering.filter.is_some())
            .filter_map(|(event, filtering)| {
                let (system, name) = name(*event)?;
                Some((system, name, String::from_utf8(filtering.shown.clone()).ok()?.trim_end().to_owned()))
            })
            .collect();
        filters.sort();
        let mut triggers: Vec<_> = state
            .triggers
            .lines(|place| status.trigger_count(place), |event| events.full_name(event))
            .filter_map(|(event, lines)| {
                let (system, name) = name(event)?;
                let lines = lines.into_iter().filter_map(|line| String::from_utf8(line).ok()).collect();
                Some((system, name, lines))
            })
            .collect();
        triggers.sort();
        let buffers = state.is_expanded().then(|| state.buffer.select(None));
        // An event that a trigger has disabled is attached only for triggers.
        let on = |event: &EventId| !status.is_soft_off(*event);
        Self {
            name: state.name.clone(),
            options: state.options.all_words().lines().map(str::to_owned).collect(),
            clock: state.clock.name().to_owned(),
            on: status.is_on(),
            cpus: state.cpus.clone(),
            percent: state.percent,
            user_data: engine.facts.later_files().user_data.map(|_| state.user_data),
            page: state.page().bytes(),
            sizes: buffers.into_iter().flatten().map(|(_, buffer)| buffer.size()).collect(),
            traced: state.pids(List::Traced).collect(),
            untraced: state.pids(List::Untraced).collect(),
            filters,
            events: state.enabled.iter().filter(|event| on(event)).filter_map(|event| name(*event)).collect(),
            triggers,
            awaited: state.awaited().collect(),
        }
    }
}

/// Whether an event can exist again when the settings are restored. Settings of a user event that ends with its
/// programs are not saved: any client can make many such events with long names.
fn lasts(user: &UserEvents, event: EventId) -> bool {
    !user.has(event) || user.is_saved(event)
}

/// Whether an entry only adds the events of one program.
fn is_one_program(path: &str) -> bool {
    path.starts_with('/') && !path.contains('\n')
}

/// Checks that a path still leads to the same file.
fn same(found: Found, was: Option<Identity>) -> Result<Found, Errno> {
    if was.is_none_or(|was| was == found.file.identity()) { Ok(found) } else { Err(Errno::STALE) }
}

/// Logs settings that could not be applied.
pub fn log_failed(failed: Vec<(String, CommandError)>) {
    for (what, error) in failed {
        let errno = error.errno();
        // Clients choose the names of user events.
        tracing::warn!(%errno, "{}", Escaped(&format!("{what}: {error}")));
    }
}

/// The state to save.
pub fn settings(engine: &Engine) -> Saved {
    let instances = engine
        .instances
        .ids()
        .into_iter()
        .filter_map(|instance| Some((engine.instances.get(instance)?, engine.status(instance)?)));
    // A name in a definition may end in newlines, too.
    let text = |line: &[u8]| String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned();
    let (definitions, definition_files) =
        definitions::saved_definitions(engine).into_iter().map(|(line, file)| (text(&line), file)).unzip();
    let (programs, program_files) =
        engine.registry.programs().saved().map(|(path, file)| (text(path), Some(file))).unzip();
    Saved {
        definitions,
        definition_files,
        programs,
        program_files,
        listed: Vec::new(),
        names: engine.tasks.capacity(),
        instances: instances.map(|(state, status)| SavedInstance::of(state, &status, engine)).collect(),
        hists: saved_hists(engine),
    }
}

/// Restores a state. Settings that fail are skipped, and returned with their errors: `ESTALE` if a path leads to
/// another file, or the file has changed. `look` opens a file.
pub fn restore(
    engine: &mut Engine,
    saved: &Saved,
    look: &mut dyn FnMut(&FileRequest) -> Result<Found, Errno>,
) -> Vec<(String, CommandError)> {
    let mut failed = Vec::new();
    // State files of versions without identities have none.
    let of = |all: &[Option<Identity>], at: usize| all.get(at).copied().flatten();
    for (at, line) in saved.definitions.iter().enumerate() {
        let file = of(&saved.definition_files, at);
        let found = |one: &FileRequest| look(one).and_then(|found| same(found, file));
        if let Err(error) = Definitions::of(engine).restore(line.as_bytes(), found) {
            failed.push((format!("dynamic event {line}"), error));
        }
    }
    for (at, path) in saved.programs.iter().enumerate() {
        if !is_one_program(path) {
            failed.push((format!("program {path}"), ErrorKind::Invalid.into()));
            continue;
        }
        let (wanted, file) = (program_files(path.as_bytes()), of(&saved.program_files, at));
        let files = Files::of(wanted, |one| look(one).and_then(|found| same(found, file)));
        if let Err(error) = Definitions::of(engine).define_programs(Some((path.as_bytes(), &files, 0))) {
            failed.push((format!("program {path}"), error));
        }
    }
    if saved.names > 0 {
        Arc::make_mut(&mut engine.tasks).set_capacity(saved.names);
    }
    for one in &saved.instances {
        match instance_named(&engine.facts, &mut engine.instances, &one.name) {
            Ok(instance) => restore_one(engine, instance, one, &mut failed),
            Err(error) => failed.push((format!("instance {}", one.name), error)),
        }
    }
    for one in &saved.hists {
        if let Err(error) = restore_hist(engine, one) {
            failed.push((format!("histogram {} of {}:{}", one.command, one.system, one.event), error));
        }
    }
    failed
}

/// The instance of a name, or the top instance if it is empty. Makes the instance if there is none.
fn instance_named(facts: &Facts, instances: &mut Instances, name: &str) -> Result<InstanceId, CommandError> {
    match (name, instances.find(name)) {
        ("", _) => Ok(InstanceId::TOP),
        (_, Some(instance)) => Ok(instance),
        (name, None) => lifecycle::make(facts, instances, name),
    }
}

fn event_named(events: &Events, system: &str, name: &str) -> Result<EventId, ErrorKind> {
    let event = events.find_system(system).and_then(|system| events.find(system, name));
    event.ok_or(ErrorKind::NotFound)
}

fn restore_one(
    engine: &mut Engine,
    instance: InstanceId,
    saved: &SavedInstance,
    failed: &mut Vec<(String, CommandError)>,
) {
    let whose = if saved.name.is_empty() { String::new() } else { format!(" of {}", saved.name) };
    let mut set = |engine: &mut Engine, what: String, command: Result<InstanceCommand<'_>, ErrorKind>| {
        let done = command.map_err(CommandError::from).and_then(|command| engine.apply(instance, command));
        failed.extend(done.err().map(|error| (what + &whose, error)));
    };
    let known = engine.instances.get(instance).map(|state| state.options.all_words()).unwrap_or_default();
    for word in saved.options.iter().filter(|word| !known.lines().any(|line| line == word.as_str())) {
        let (name, on) = word.strip_prefix("no").map_or((word.as_str(), true), |name| (name, false));
        let option = engine.instances.get(instance).and_then(|state| state.options.find(name));
        let command = option.map(|option| InstanceCommand::Option { option, on });
        set(engine, format!("option {word}"), command.ok_or(ErrorKind::Invalid));
    }
    if !saved.clock.is_empty() {
        set(engine, "trace_clock".to_owned(), Ok(InstanceCommand::Clock(saved.clock.as_bytes())));
    }
    if saved.page > 0 {
        let command = PageSize::exactly(saved.page).map(InstanceCommand::PageSize);
        set(engine, "buffer_subbuf_size_kb".to_owned(), command.ok_or(ErrorKind::Invalid));
    }
    if let Some(bytes) = saved.user_data.filter(|_| engine.facts.later_files().user_data.is_some()) {
        set(engine, "syscall_user_buf_size".to_owned(), Ok(InstanceCommand::UserData(bytes)));
    }
    for (cpu, bytes) in (0..).zip(&saved.sizes) {
        let command = InstanceCommand::BufferSize { cpu: Some(cpu), bytes: *bytes };
        set(engine, format!("buffer size of CPU {cpu}"), Ok(command));
    }
    if engine.instances.get(instance).is_some_and(|state| state.cpus.len() == saved.cpus.len()) {
        set(engine, "tracing_cpumask".to_owned(), Ok(InstanceCommand::Cpus(saved.cpus.clone())));
    }
    if let Some(state) = engine.instances.get_mut(instance) {
        state.percent = saved.percent.min(100);
    }
    for (list, pids) in [(List::Traced, &saved.traced), (List::Untraced, &saved.untraced)] {
        if pids.is_empty() {
            continue;
        }
        let text = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        set(engine, "threads".to_owned(), Ok(InstanceCommand::AddPids { list, text: text.as_bytes() }));
    }
    set(engine, "tracing_on".to_owned(), Ok(InstanceCommand::Tracing(saved.on)));
    for (system, name, text) in &saved.filters {
        let event = event_named(engine.registry.events(), system, name);
        let command = event.map(|event| InstanceCommand::Filter { event, text: text.as_bytes() });
        set(engine, format!("filter of {system}:{name}"), command);
    }
    for word in saved.awaited.iter().rev() {
        if let Some((on, which)) = Selector::read(word.as_bytes()) {
            set(engine, format!("event {word}"), Ok(InstanceCommand::Events { which, on }));
        }
    }
    for (system, name) in &saved.events {
        let which = Selector::named(system, name);
        set(engine, format!("event {system}:{name}"), Ok(InstanceCommand::Events { which, on: true }));
    }
    for (system, name, lines) in &saved.triggers {
        let event = event_named(engine.registry.events(), system, name);
        for line in lines {
            let command = event.map(|event| InstanceCommand::Trigger { event, text: line.as_bytes() });
            set(engine, format!("trigger {line} of {system}:{name}"), command);
        }
    }
}

/// The histograms that clients created, without those that the kernel creates for others.
fn saved_hists(engine: &Engine) -> Vec<SavedHist> {
    let saved = |trigger: &hist::Trigger| {
        let state = engine.instances.get(trigger.instance)?;
        if engine.registry.events().by_id(trigger.event.id).is_some_and(|event| !lasts(&engine.user, event)) {
            return None;
        }
        Some(SavedHist {
            instance: state.name.clone(),
            system: trigger.event.system.clone(),
            event: trigger.event.name.clone(),
            command: String::from_utf8(trigger.command.clone()?).ok()?,
            paused: engine.status(trigger.instance)?.is_paused(trigger.id),
        })
    };
    engine.histograms.set().triggers().filter_map(saved).collect()
}

fn restore_hist(engine: &mut Engine, saved: &SavedHist) -> Result<(), CommandError> {
    let instance = if saved.instance.is_empty() {
        Some(InstanceId::TOP)
    } else {
        engine.instances.find(&saved.instance)
    };
    let instance = instance.ok_or(ErrorKind::NotFound)?;
    let event = event_named(engine.registry.events(), &saved.system, &saved.event)?;
    HistCommands::of(engine, instance).set_hist(event, Some(saved.command.as_bytes()), false)?;
    let commanded = engine.histograms.set().triggers().filter(|trigger| trigger.command.is_some());
    if let Some(id) = commanded.last().map(|trigger| trigger.id) {
        HistCommands::of(engine, instance).pause_hist(id, saved.paused);
    }
    Ok(())
}
