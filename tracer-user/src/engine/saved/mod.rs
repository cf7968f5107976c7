//! What of the instances outlives the daemon: everything that somebody set, nothing that was recorded.
//!
//! Each part is kept as the text that sets it, so that restoring is the same as writing it again: names instead of
//! numbers, which may differ at the next start, and what cannot be had any more is told and left out.

mod boot;
mod check;

pub use boot::Boot;
pub use check::{BYTES_MAX as SAVED_MAX, SavedError};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::{
    buffer::PageSize,
    engine::histograms::commands as hist_commands,
    engine::{
        Command, Engine, List,
        instances::{Status, instance::Instance, select::Selector},
        registry::{catalogue::Events, program_events::program_files},
    },
    event::{EventId, InstanceId},
    kernel::opened::Identity,
    lang::{
        define::{File, files},
        facts::{FileRequest, Files, Found},
        hist,
    },
};

/// All instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Saved {
    /// Lines of `dynamic_events`.
    pub definitions: Vec<String>,
    /// Which file each of those was about; none for a line about no file.
    pub definition_files: Vec<Option<Identity>>,
    /// Lines of `program_events`.
    pub programs: Vec<String>,
    /// Which file each of those led to.
    pub program_files: Vec<Option<Identity>>,
    /// How many names of threads are kept.
    pub names: usize,
    /// The instances, the top first.
    pub instances: Vec<SavedInstance>,
    /// Histograms, in the order in which they were made, as later ones refer to variables of earlier ones.
    pub hists: Vec<SavedHist>,
}

/// A histogram trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedHist {
    /// Its instance, empty for the top.
    pub instance: String,
    /// The event's system.
    pub system: String,
    /// The event.
    pub event: String,
    /// What was written behind `hist:`.
    pub command: String,
    /// Whether it does not count.
    pub paused: bool,
}

/// One instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedInstance {
    /// Its name, empty for the top.
    pub name: String,
    /// Options, as words of `trace_options`.
    pub options: Vec<String>,
    /// The trace clock.
    pub clock: String,
    /// Whether recording is on.
    pub on: bool,
    /// CPUs that are recorded.
    pub cpus: Vec<bool>,
    /// `buffer_percent`
    pub percent: u32,
    /// Bytes of a page of the buffers.
    pub page: usize,
    /// Bytes of each CPU's buffer; none before the buffers were used.
    pub sizes: Vec<usize>,
    /// `set_event_pid`
    pub traced: Vec<u32>,
    /// `set_event_notrace_pid`
    pub untraced: Vec<u32>,
    /// Filters: system, event, text.
    pub filters: Vec<(String, String, String)>,
    /// Events that are on: system and name.
    pub events: Vec<(String, String)>,
    /// Triggers: system, event, lines of the `trigger` file.
    pub triggers: Vec<(String, String, Vec<String>)>,
    /// Words for events of modules that are not loaded, the last first.
    pub awaited: Vec<String>,
}

impl SavedInstance {
    fn of(state: &Instance, status: &Status<'_>, events: &Events) -> Self {
        let name = |event: EventId| {
            let known = events.get(event)?;
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
        // What triggers have turned off hangs on its hook for their sake.
        let on = |event: &EventId| !status.is_soft_off(*event);
        Self {
            name: state.name.clone(),
            options: state.options.all_words().lines().map(str::to_owned).collect(),
            clock: state.clock.name().to_owned(),
            on: status.is_on(),
            cpus: state.cpus.clone(),
            percent: state.percent,
            page: state.page().bytes(),
            sizes: if state.is_expanded() {
                state.buffer.select(None).map(|(_, buffer)| buffer.size()).collect()
            } else {
                Vec::new()
            },
            traced: state.pids(List::Traced).collect(),
            untraced: state.pids(List::Untraced).collect(),
            filters,
            events: state.enabled.iter().filter(|event| on(event)).filter_map(|event| name(*event)).collect(),
            triggers,
            awaited: state.awaited().collect(),
        }
    }
}

/// What was found, if it is the file that it was.
fn same(found: Found, was: Option<Identity>) -> Result<Found, Errno> {
    if was.is_none_or(|was| was == found.file.identity()) { Ok(found) } else { Err(Errno::STALE) }
}

impl Engine {
    /// What is to outlive us.
    pub fn saved(&self) -> Saved {
        let instances =
            self.numbers().filter_map(|instance| Some((self.get(instance)?, self.status(instance)?)));
        let text = |line: &[u8]| String::from_utf8_lossy(line).trim_end_matches('\n').to_owned();
        let (definitions, definition_files) =
            self.saved_definitions().into_iter().map(|(line, file)| (text(&line), file)).unzip();
        let (programs, program_files) =
            self.registry.programs().saved().map(|(path, file)| (text(path), Some(file))).unzip();
        Saved {
            definitions,
            definition_files,
            programs,
            program_files,
            names: self.tasks.kept(),
            instances: instances
                .map(|(state, status)| SavedInstance::of(state, &status, self.registry.events()))
                .collect(),
            hists: self.saved_hists(),
        }
    }

    /// Sets everything again. What does not succeed is left out, and given back: what it was, and the error; `ESTALE` where a path
    /// leads to another file than it did, or that file holds something else. `look` looks at a file.
    pub fn restore(
        &mut self,
        saved: &Saved,
        look: &mut dyn FnMut(&FileRequest) -> Result<Found, Errno>,
    ) -> Vec<(String, Errno)> {
        let mut failed = Vec::new();
        // A file that was kept before there were identities has none of them.
        let of = |all: &[Option<Identity>], at: usize| all.get(at).copied().flatten();
        for (at, line) in saved.definitions.iter().enumerate() {
            let (wanted, file) = (files(File::Dynamic, line.as_bytes()), of(&saved.definition_files, at));
            let files = Files::of(wanted, |one| look(one).and_then(|found| same(found, file)));
            if let Err(error) = self.define(File::Dynamic, line.as_bytes(), &files) {
                failed.push((format!("dynamic event {line}"), error));
            }
        }
        for (at, path) in saved.programs.iter().enumerate() {
            let (wanted, file) = (program_files(path.as_bytes()), of(&saved.program_files, at));
            let files = Files::of(wanted, |one| look(one).and_then(|found| same(found, file)));
            if let Err(error) = self.define_programs(Some((path.as_bytes(), &files))) {
                failed.push((format!("program {path}"), error));
            }
        }
        if saved.names > 0 {
            self.tasks.keep(saved.names);
        }
        for one in &saved.instances {
            let instance = match (one.name.as_str(), self.find(&one.name)) {
                ("", _) => InstanceId::TOP,
                (_, Some(instance)) => instance,
                (name, None) => match self.make(name) {
                    Ok(instance) => instance,
                    Err(error) => {
                        failed.push((format!("instance {name}"), error));
                        continue;
                    }
                },
            };
            self.restore_one(instance, one, &mut failed);
        }
        for one in &saved.hists {
            if let Err(error) = self.restore_hist(one) {
                failed.push((format!("histogram {} of {}:{}", one.command, one.system, one.event), error));
            }
        }
        failed
    }

    fn restore_one(
        &mut self,
        instance: InstanceId,
        saved: &SavedInstance,
        failed: &mut Vec<(String, Errno)>,
    ) {
        let whose = if saved.name.is_empty() { String::new() } else { format!(" of {}", saved.name) };
        let mut keep = |what: String, done: Result<(), Errno>| {
            if let Err(error) = done {
                failed.push((what + &whose, error));
            }
        };
        let known = self.get(instance).map(|state| state.options.all_words()).unwrap_or_default();
        for word in saved.options.iter().filter(|word| !known.lines().any(|line| line == word.as_str())) {
            let (name, on) = word.strip_prefix("no").map_or((word.as_str(), true), |name| (name, false));
            let option = self.get(instance).and_then(|state| state.options.find(name));
            let done = option
                .map_or(Err(Errno::INVAL), |option| self.apply(instance, &Command::Option { option, on }));
            keep(format!("option {word}"), done);
        }
        if !saved.clock.is_empty() {
            keep("trace_clock".to_owned(), self.apply(instance, &Command::Clock(saved.clock.as_bytes())));
        }
        if saved.page > 0 {
            let page = PageSize::exactly(saved.page).ok_or(Errno::INVAL);
            let done = page.and_then(|page| self.apply(instance, &Command::PageSize(page)));
            keep("buffer_subbuf_size_kb".to_owned(), done);
        }
        for (cpu, bytes) in (0..).zip(&saved.sizes) {
            let command = Command::BufferSize { cpu: Some(cpu), bytes: *bytes };
            keep(format!("buffer size of CPU {cpu}"), self.apply(instance, &command));
        }
        if self.get(instance).is_some_and(|state| state.cpus.len() == saved.cpus.len()) {
            keep("tracing_cpumask".to_owned(), self.apply(instance, &Command::Cpus(saved.cpus.clone())));
        }
        if let Some(state) = self.get_mut(instance) {
            state.percent = saved.percent.min(100);
        }
        for (list, pids) in [(List::Traced, &saved.traced), (List::Untraced, &saved.untraced)] {
            if pids.is_empty() {
                continue;
            }
            let text = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            let done = self.apply(instance, &Command::AddPids { list, text: text.as_bytes() });
            keep("threads".to_owned(), done);
        }
        keep("tracing_on".to_owned(), self.apply(instance, &Command::Tracing(saved.on)));
        let events = self.registry.events().clone();
        for (system, name, text) in &saved.filters {
            let event = events.find_system(system).and_then(|system| events.find(system, name));
            let done = match event {
                Some(event) => self.apply(instance, &Command::Filter { event, text: text.as_bytes() }),
                None => Err(Errno::NOENT),
            };
            keep(format!("filter of {system}:{name}"), done);
        }
        for word in saved.awaited.iter().rev() {
            if let Some((on, which)) = Selector::read(word.as_bytes()) {
                keep(format!("event {word}"), self.apply(instance, &Command::Events { which, on }));
            }
        }
        for (system, name) in &saved.events {
            let which = Selector::named(system, name);
            keep(
                format!("event {system}:{name}"),
                self.apply(instance, &Command::Events { which, on: true }),
            );
        }
        for (system, name, lines) in &saved.triggers {
            let event = events.find_system(system).and_then(|system| events.find(system, name));
            for line in lines {
                let done = match event {
                    Some(event) => self.apply(instance, &Command::Trigger { event, text: line.as_bytes() }),
                    None => Err(Errno::NOENT),
                };
                keep(format!("trigger {line} of {system}:{name}"), done);
            }
        }
    }

    /// The histograms that somebody made; those that come with others come with them again.
    fn saved_hists(&self) -> Vec<SavedHist> {
        let saved = |trigger: &hist::Trigger| {
            let state = self.get(trigger.instance)?;
            Some(SavedHist {
                instance: state.name.clone(),
                system: trigger.event.system.clone(),
                event: trigger.event.name.clone(),
                command: String::from_utf8(trigger.command.clone()?).ok()?,
                paused: self.status(trigger.instance)?.is_paused(trigger.id),
            })
        };
        self.histograms.set().triggers().filter_map(saved).collect()
    }

    fn restore_hist(&mut self, saved: &SavedHist) -> Result<(), Errno> {
        let instance =
            if saved.instance.is_empty() { Some(InstanceId::TOP) } else { self.find(&saved.instance) };
        let instance = instance.ok_or(Errno::NOENT)?;
        let event = self.registry.events().find_system(&saved.system);
        let event =
            event.and_then(|system| self.registry.events().find(system, &saved.event)).ok_or(Errno::NOENT)?;
        hist_commands::set_hist(self, instance, event, Some(saved.command.as_bytes()), false)?;
        let commanded = self.histograms.set().triggers().filter(|trigger| trigger.command.is_some());
        if let Some(id) = commanded.last().map(|trigger| trigger.id) {
            hist_commands::pause_hist(self, instance, id, saved.paused);
        }
        Ok(())
    }
}
