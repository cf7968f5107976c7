//! Several histograms on the command line, with what lies between them: variables, synthetic events and dynamic ones. They
//! live in a mirror of this process that nobody mounts, and go with it.

use std::sync::Arc;

use rustix::io::Errno;

use super::{
    HistError,
    hint::{self, Known},
    looked_up, prepare, shown,
};
use crate::{
    attach::Counted,
    engine::{Engine, facts::Facts, histograms::HistFault},
    event::{EventId, InstanceId},
    lang::{
        define::File,
        facts::Files,
        hist::{Refusal, TriggerId},
    },
    render::hist::json,
};

/// What is to be counted.
#[derive(Clone, Debug, Default)]
pub struct HistRequest {
    /// Definitions of synthetic events, lines of `synthetic_events`.
    pub synthetic: Vec<String>,
    /// Definitions of dynamic events, lines of `dynamic_events`.
    pub dynamic: Vec<String>,
    /// Events, each with the command of a histogram, in this order: variables are there before they are looked up.
    pub histograms: Vec<(String, String)>,
}

/// Histograms that count.
#[derive(Debug)]
pub struct Histograms {
    mirror: Engine,
    given: Vec<TriggerId>,
}

impl Histograms {
    /// Defines the events and starts the histograms.
    ///
    /// # Errors
    /// When a definition or a command is wrong, or the kernel refuses something: nothing counts then.
    pub fn start(wanted: &HistRequest, facts: Arc<Facts>) -> Result<Self, HistError> {
        let mut mirror = Engine::new(facts)?;
        for line in &wanted.synthetic {
            let done = match line.strip_prefix("s:") {
                Some(_) => mirror.define(File::Dynamic, line.as_bytes(), &Files::at_once()),
                None => mirror.define_synthetic(line.as_bytes()),
            };
            done.map_err(|errno| not_defined(&mirror, line, errno))?;
        }
        for line in &wanted.dynamic {
            mirror
                .define(File::Dynamic, line.as_bytes(), &Files::at_once())
                .map_err(|errno| not_defined(&mirror, line, errno))?;
        }
        let mut given = Vec::new();
        for (name, command) in &wanted.histograms {
            let event = find(&mirror, name)?;
            let text = command.trim();
            let text = text.strip_prefix("hist:").unwrap_or(text).trim_start();
            match mirror.add_hist(InstanceId::TOP, event, text.as_bytes()) {
                Ok(id) => given.push(id),
                Err(HistFault::Refused(refusal)) => return Err(refused(&mirror, event, refusal, text)),
                Err(HistFault::System(errno)) => {
                    return Err(HistError::NotCounted(
                        mirror.registry.events().full_name(event),
                        said(errno),
                    ));
                }
            }
        }
        Ok(Self { mirror, given })
    }

    /// The histograms that are of interest: not those that only keep variables for others or make the synthetic events that
    /// others count, unless `all` are.
    fn of_interest(&self, all: bool) -> impl Iterator<Item = TriggerId> + '_ {
        self.given.iter().copied().filter(move |id| all || !self.mirror.hist_serves(InstanceId::TOP, *id))
    }

    /// Learns what only a process with privileges can, for [`Histograms::text`] without them.
    pub fn prepare(&self) {
        for id in &self.given {
            if let Some(trigger) = self.mirror.hist_trigger(InstanceId::TOP, *id) {
                prepare(&trigger.hist, &self.mirror.facts);
            }
        }
    }

    /// The tables as the events' `hist` files show them, each behind a line that names its event.
    ///
    /// # Errors
    /// When the kernel refuses to show one.
    pub fn text(&mut self, all: bool) -> Result<Vec<u8>, HistError> {
        // Snapshots that were asked for are taken, and rings stay empty.
        self.mirror.collect(InstanceId::TOP);
        let mut text = Vec::new();
        for id in self.of_interest(all) {
            let Some(trigger) = self.mirror.hist_trigger(InstanceId::TOP, id) else { continue };
            if !text.is_empty() {
                text.push(b'\n');
            }
            text.extend(format!("# event: {}\n", trigger.event.full_name()).bytes());
            text.extend(shown(trigger, self.counted(id)?, 0, &self.mirror.facts));
        }
        Ok(text)
    }

    /// The tables as JSON objects, one a line.
    ///
    /// # Errors
    /// As [`Histograms::text`].
    pub fn json(&mut self, all: bool) -> Result<Vec<u8>, HistError> {
        self.mirror.collect(InstanceId::TOP);
        let mut text = String::new();
        for id in self.of_interest(all) {
            let Some(trigger) = self.mirror.hist_trigger(InstanceId::TOP, id) else { continue };
            let (table, env) = looked_up(trigger, self.counted(id)?, &self.mirror.facts);
            text.extend([json::object(trigger, &table, &env).to_string(), "\n".to_owned()]);
        }
        Ok(text.into_bytes())
    }

    fn counted(&self, id: TriggerId) -> Result<Counted, HistError> {
        let failed = |errno: Errno| HistError::NotCounted("reading the table".to_owned(), said(errno));
        self.mirror.hist_counted(InstanceId::TOP, id).map_err(failed)
    }
}

fn said(errno: Errno) -> String {
    match errno {
        Errno::OPNOTSUPP => "not counted in the kernel yet".to_owned(),
        Errno::EXIST => "there is the same one already".to_owned(),
        other => other.to_string(),
    }
}

/// The number of an event: `SYSTEM:EVENT`, or a name that only one has.
fn find(mirror: &Engine, event: &str) -> Result<EventId, HistError> {
    let events = mirror.registry.events();
    if let Some((system, name)) = event.split_once(':').or_else(|| event.split_once('/')) {
        let found = events.find_system(system).and_then(|system| events.find(system, name));
        return found.ok_or_else(|| no_event(mirror, event));
    }
    let named: Vec<EventId> = events.systems().filter_map(|(system, _)| events.find(system, event)).collect();
    match named[..] {
        [only] => Ok(only),
        [] => Err(no_event(mirror, event)),
        _ => {
            let names: Vec<String> = named.iter().map(|event| events.full_name(*event)).collect();
            Err(HistError::NoEvent(
                event.to_owned(),
                format!("; several have this name: {}", names.join(", ")),
            ))
        }
    }
}

fn no_event(mirror: &Engine, event: &str) -> HistError {
    let events = mirror.registry.events();
    let names = events.systems().flat_map(|(_, system)| &system.events).map(|event| events.full_name(*event));
    hint::no_event(event, names)
}

/// A definition that was refused, with what the log says of it.
fn not_defined(mirror: &Engine, line: &str, errno: Errno) -> HistError {
    let entry = mirror.get(InstanceId::TOP).and_then(|state| state.errors.last());
    let entry = entry.map(|entry| String::from_utf8_lossy(entry).into_owned());
    let what = entry.as_deref().and_then(from_log).unwrap_or_else(|| errno.to_string());
    HistError::NotDefined(line.to_owned(), what)
}

/// `WHERE: error: WORDING`, the command and a caret, as our command line shows them.
fn from_log(entry: &str) -> Option<String> {
    let (_, rest) = entry.split_once("error: ")?;
    let mut lines = rest.lines();
    let (wording, command, caret) = (lines.next()?, lines.next()?, lines.next()?);
    let shift = "  Command: ".len();
    Some(format!("{wording}\n  {}\n  {}", command.get(shift..)?, caret.get(shift..)?))
}

fn refused(mirror: &Engine, event: EventId, refusal: Refusal, command: &str) -> HistError {
    let format = mirror.registry.events().format(event, &mirror.facts);
    let known = Known {
        format,
        variables: mirror.hist_variables(InstanceId::TOP),
        synthetic: mirror.registry.synthetic().listing(),
    };
    let hint = known.hint(&refusal, command);
    HistError::Refused { event: mirror.registry.events().full_name(event), refusal, hint }
}
