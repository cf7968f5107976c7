//! Histograms of the command line: a private engine, which is not mounted, defines the events and counts. Commands
//! are parsed as in `trigger` files, and tables are shown as in `hist` files.

mod error;
mod hint;

use std::sync::Arc;

use self::hint::Known;
use super::{
    Command, CommandError, Engine, ErrorKind, Request,
    attachments::AttachOptions,
    facts::Facts,
    histograms::text::{looked_up, prepare, shown},
};
use crate::{
    attach::{AttachPoint, HistContents},
    engine::histograms::queries,
    event::{EventId, InstanceId},
    lang::{
        define::File,
        facts::Files,
        hist::{Refusal, TriggerId},
    },
    render::hist::json,
};

pub use self::error::HistError;

/// A request to count hits.
#[derive(Clone, Debug, Default)]
pub struct HistRequest {
    /// Definitions of synthetic events, lines of `synthetic_events`.
    pub synthetic: Vec<String>,
    /// Definitions of dynamic events, lines of `dynamic_events`.
    pub dynamic: Vec<String>,
    /// Events, each with a histogram command, in order: a variable must be defined before it is used.
    pub histograms: Vec<(String, String)>,
}

/// Running histograms.
#[derive(Debug)]
pub struct Histograms {
    engine: Engine,
    given: Vec<TriggerId>,
    /// Whether each table follows a line with its event.
    titled: bool,
}

impl Histograms {
    /// Defines the events and starts the histograms.
    ///
    /// # Errors
    /// A definition or a command is invalid, or the kernel refuses something. Then nothing counts.
    pub fn start(wanted: &HistRequest, options: AttachOptions, facts: Arc<Facts>) -> Result<Self, HistError> {
        let mut engine = Engine::with_options(facts, AttachOptions { without_names: true, ..options })?;
        let files = Files::at_once();
        for line in &wanted.synthetic {
            let text = line.as_bytes();
            let define = match line.strip_prefix("s:") {
                Some(_) => Command::Define { file: File::Dynamic, text, files: &files },
                None => Command::DefineSynthetic(text),
            };
            engine
                .execute(&Request::own(InstanceId::TOP, define))
                .map_err(|error| HistError::NotDefined(line.to_owned(), error))?;
        }
        for line in &wanted.dynamic {
            let text = line.as_bytes();
            let define = Command::Define { file: File::Dynamic, text, files: &files };
            engine
                .execute(&Request::own(InstanceId::TOP, define))
                .map_err(|error| HistError::NotDefined(line.to_owned(), error))?;
        }
        let mut given = Vec::new();
        for (name, command) in &wanted.histograms {
            let event = find(&engine, name)?;
            let text = command.trim();
            let text = text.strip_prefix("hist:").unwrap_or(text).trim_start();
            match queries::add_hist(&mut engine, InstanceId::TOP, event, text.as_bytes()) {
                Ok(id) => given.push(id),
                Err(error) => return Err(refused(&engine, event, &error, text)),
            }
        }
        let titled = given.len() > 1 || !wanted.synthetic.is_empty() || !wanted.dynamic.is_empty();
        Ok(Self { engine, given, titled })
    }

    /// The histograms to show. Without `all`, histograms that only serve others, by variables or synthetic events,
    /// are left out.
    fn of_interest(&self, all: bool) -> impl Iterator<Item = TriggerId> + '_ {
        self.given.iter().copied().filter(move |id| all || !self.engine.histograms.serves(*id))
    }

    /// Reads the facts that need privileges, so that [`Histograms::text`] works without them.
    pub fn prepare(&self) {
        for id in &self.given {
            if let Some(trigger) = self.engine.histograms.trigger(*id) {
                prepare(&trigger.hist, &self.engine.facts);
            }
        }
    }

    /// The event of each histogram, and the hook of its program; `None` if the event has no hook.
    pub fn hooks(&self) -> impl Iterator<Item = (String, Option<&AttachPoint>)> {
        self.given.iter().filter_map(|id| {
            let event = self.engine.histograms.trigger(*id)?.event.full_name();
            Some((event, self.engine.histograms.hook(InstanceId::TOP, *id)))
        })
    }

    /// The tables in the format of `hist` files. If there are several, or events were defined, each follows a line
    /// that names its event.
    ///
    /// # Errors
    /// The kernel refuses to show a table.
    pub fn text(&mut self, all: bool) -> Result<Vec<u8>, HistError> {
        // Takes requested snapshots, and empties the rings.
        self.engine.collect(InstanceId::TOP);
        let mut text = Vec::new();
        for id in self.of_interest(all) {
            let Some(trigger) = self.engine.histograms.trigger(id) else { continue };
            if !text.is_empty() {
                text.push(b'\n');
            }
            if self.titled {
                text.extend(format!("# event: {}\n", trigger.event.full_name()).bytes());
            }
            text.extend(shown(trigger, self.contents(id)?, 0, &self.engine.facts));
        }
        Ok(text)
    }

    /// The tables as JSON objects, one per line.
    ///
    /// # Errors
    /// As [`Histograms::text`].
    pub fn json(&mut self, all: bool) -> Result<Vec<u8>, HistError> {
        self.engine.collect(InstanceId::TOP);
        let mut text = String::new();
        for id in self.of_interest(all) {
            let Some(trigger) = self.engine.histograms.trigger(id) else { continue };
            let (table, env) = looked_up(trigger, self.contents(id)?, &self.engine.facts);
            text.extend([json::object(trigger, &table, &env).to_string(), "\n".to_owned()]);
        }
        Ok(text.into_bytes())
    }

    fn contents(&self, id: TriggerId) -> Result<HistContents, HistError> {
        let contents = self.engine.histograms.contents(InstanceId::TOP, id);
        contents.map_err(|error| HistError::NotCounted("reading the table".to_owned(), said(&error)))
    }
}

fn said(error: &CommandError) -> String {
    match error.kind() {
        ErrorKind::Unsupported => "not counted in the kernel yet".to_owned(),
        ErrorKind::Exists => "the same histogram exists".to_owned(),
        _ => error.to_string(),
    }
}

/// Finds an event by `SYSTEM:EVENT`, or by a unique name.
fn find(engine: &Engine, event: &str) -> Result<EventId, HistError> {
    let events = engine.registry.events();
    if let Some((system, name)) = event.split_once(':').or_else(|| event.split_once('/')) {
        let found = events.find_system(system).and_then(|system| events.find(system, name));
        return found.ok_or_else(|| no_event(engine, event));
    }
    let named: Vec<EventId> = events.systems().filter_map(|(system, _)| events.find(system, event)).collect();
    match named[..] {
        [only] => Ok(only),
        [] => Err(no_event(engine, event)),
        _ => {
            let names: Vec<String> = named.iter().map(|event| events.full_name(*event)).collect();
            Err(HistError::NoEvent(
                event.to_owned(),
                format!("; several have this name: {}", names.join(", ")),
            ))
        }
    }
}

fn no_event(engine: &Engine, event: &str) -> HistError {
    let events = engine.registry.events();
    let names = events.systems().flat_map(|(_, system)| &system.events).map(|event| events.full_name(*event));
    hint::no_event(event, names)
}

fn refused(engine: &Engine, event: EventId, error: &CommandError, command: &str) -> HistError {
    let name = engine.registry.events().full_name(event);
    let Some(refusal) = error.cause::<Refusal>().cloned() else {
        return HistError::NotCounted(name, said(error));
    };
    let format = engine.registry.events().format(event, &engine.facts);
    let known = Known {
        format,
        variables: engine.histograms.variables(InstanceId::TOP),
        synthetic: engine.registry.synthetic().listing(),
    };
    let hint = known.hint(&refusal, command);
    HistError::Refused { event: name, refusal, hint }
}
