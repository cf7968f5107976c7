//! Histograms: what `tracer hist` does, for Rust programs.
//!
//! [`Histograms::builder`] names events, each with a histogram as in a `trigger` file (Documentation/trace/histogram.rst),
//! and definitions of synthetic and dynamic events. eBPF programs count the hits in the kernel.
//! [`Histograms::text`] returns the tables as the kernel's `hist` files show them.
//!
//! ```no_run
//! use tracer_user::api::Histograms;
//!
//! let mut histograms = Histograms::builder()
//!     .histogram("raw_syscalls:sys_enter", "keys=id.syscall:sort=hitcount.descending")
//!     .start()?;
//! std::thread::sleep(std::time::Duration::from_secs(5));
//! print!("{}", String::from_utf8_lossy(&histograms.text(false)?));
//! # Ok::<(), tracer_user::api::HistError>(())
//! ```

mod error;
mod hint;

use std::{fmt, sync::Arc};

use self::{error::Cause, hint::Known};
use crate::{
    attach::HistContents,
    engine::{
        Command, CommandError, Engine, Request,
        attachments::{AttachOptions, session::table::ProgramRole},
        facts::Facts,
        histograms::{
            HistCommands,
            text::{looked_up, prepare, shown},
        },
    },
    event::{EventId, InstanceId},
    lang::{
        define::File,
        facts::Files,
        hist::{Refusal, Trigger, TriggerId},
    },
    render::hist::json,
};

pub use self::error::{HistError, HistErrorKind};

/// Describes histograms. Nothing is defined or attached before [`HistogramsBuilder::start`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing before `start`"]
pub struct HistogramsBuilder {
    synthetic: Vec<String>,
    probes: Vec<String>,
    /// Events, each with its histogram.
    histograms: Vec<(String, String)>,
    options: AttachOptions,
}

impl HistogramsBuilder {
    /// Defines a synthetic event by a line of `synthetic_events`, as in `latency u64 ns; pid_t pid`, or by a line of
    /// `dynamic_events` that begins with `s:`.
    pub fn synthetic(mut self, definition: impl Into<String>) -> Self {
        self.synthetic.push(definition.into());
        self
    }

    /// Defines a dynamic event by a line of `dynamic_events`, as in `f:reads vfs_read count`. Probes are defined after
    /// all synthetic events.
    pub fn probe(mut self, definition: impl Into<String>) -> Self {
        self.probes.push(definition.into());
        self
    }

    /// Counts the hits of an event: `system:name`, or a name that only one event has. The text of the histogram is that
    /// of a `trigger` file, with or without `hist:`, as in `keys=prev_comm if prev_state == 0`. A histogram that defines
    /// a variable must come before those that use it.
    pub fn histogram(mut self, event: impl Into<String>, histogram: impl Into<String>) -> Self {
        self.histograms.push((event.into(), histogram.into()));
        self
    }

    /// Whether hits of this process count too. The default is no.
    pub fn own(mut self, on: bool) -> Self {
        self.options.own = on;
        self
    }

    /// Attaches to perf tracepoints only. Raw tracepoints, which cost less, are not used.
    pub fn perf_tracepoints_only(mut self, on: bool) -> Self {
        self.options.perf_tracepoints_only = on;
        self
    }

    /// Defines the events and starts to count.
    ///
    /// # Errors
    /// The first definition or histogram that is wrong, or that the kernel refuses. Then nothing counts.
    pub fn start(self) -> Result<Histograms, HistError> {
        self.start_on(Arc::new(Facts::running()?))
    }

    /// As [`HistogramsBuilder::start`], for tests that start many with the same facts.
    ///
    /// # Errors
    /// As [`HistogramsBuilder::start`].
    #[cfg(feature = "internals")]
    pub fn start_with(self, facts: Arc<Facts>) -> Result<Histograms, HistError> {
        self.start_on(facts)
    }

    fn start_on(self, facts: Arc<Facts>) -> Result<Histograms, HistError> {
        let Self { synthetic, probes, histograms, options } = self;
        // No record is shown, so the names of threads are not followed.
        let mut engine = Engine::with_options(facts, AttachOptions { without_names: true, ..options })?;
        let files = Files::at_once();
        let synthetic_lines = synthetic.iter().map(|line| (line, line.starts_with("s:")));
        for (line, is_dynamic) in synthetic_lines.chain(probes.iter().map(|line| (line, true))) {
            let text = line.as_bytes();
            let command = if is_dynamic {
                Command::Define { file: File::Dynamic, text, files: &files }
            } else {
                Command::DefineSynthetic(text)
            };
            let request = Request::own(InstanceId::TOP, command);
            engine.execute(&request).map_err(|error| Cause::NotDefined(line.clone(), error))?;
        }
        let mut given = Vec::new();
        for (name, histogram) in &histograms {
            let event = find(&engine, name)?;
            let text = histogram.trim();
            let text = text.strip_prefix("hist:").unwrap_or(text).trim_start();
            match HistCommands::of(&mut engine, InstanceId::TOP).add_hist(event, text.as_bytes()) {
                Ok(id) => given.push(id),
                Err(error) => return Err(refused(&engine, event, error, text)),
            }
        }
        let titled = given.len() > 1 || !synthetic.is_empty() || !probes.is_empty();
        Ok(Histograms { engine, given, titled })
    }
}

/// Running histograms. They count until they are dropped.
#[derive(Debug)]
#[must_use = "histograms end when they are dropped"]
pub struct Histograms {
    engine: Engine,
    given: Vec<TriggerId>,
    /// Whether each table follows a line with its event.
    titled: bool,
}

impl Histograms {
    /// Begins to describe histograms.
    pub fn builder() -> HistogramsBuilder {
        HistogramsBuilder::default()
    }

    /// The histograms to show. Without `all`, histograms that only serve others, by variables or synthetic events,
    /// are left out.
    fn of_interest(&self, all: bool) -> impl Iterator<Item = (TriggerId, &Trigger)> {
        let histograms = &self.engine.histograms;
        let given = self.given.iter().filter(move |id| all || !histograms.serves(**id));
        given.filter_map(|id| Some((*id, histograms.trigger(*id)?)))
    }

    /// Reads the facts that need privileges. A process that drops its privileges while histograms count calls this
    /// before, so that tables have all names.
    pub fn prepare(&self) {
        for id in &self.given {
            if let Some(trigger) = self.engine.histograms.trigger(*id) {
                prepare(&trigger.hist, &self.engine.facts);
            }
        }
    }

    /// The event of each histogram, and the hook of its program, for logs; `None` if the event has no hook.
    pub fn hooks(&self) -> impl Iterator<Item = (String, Option<impl fmt::Debug>)> {
        self.given.iter().filter_map(|id| {
            let name = self.engine.histograms.trigger(*id)?.event.full_name();
            let event = self.engine.histograms.table(InstanceId::TOP, *id)?.event;
            let session = self.engine.attachments.session(InstanceId::TOP)?;
            let part = session.table.first(event, ProgramRole::Histogram(*id));
            Some((name, part.map(|part| part.attached.point())))
        })
    }

    /// The tables in the format of `hist` files. If there are several, or events were defined, each follows a line
    /// that names its event. Without `all`, histograms are left out that only serve others, by variables or synthetic
    /// events.
    ///
    /// # Errors
    /// The kernel refuses to show a table.
    pub fn text(&mut self, all: bool) -> Result<Vec<u8>, HistError> {
        // Takes requested snapshots, and empties the rings.
        self.engine.collect(InstanceId::TOP);
        let mut text = Vec::new();
        for (id, trigger) in self.of_interest(all) {
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
        for (id, trigger) in self.of_interest(all) {
            let (table, env) = looked_up(trigger, self.contents(id)?, &self.engine.facts);
            text.extend([json::object(trigger, &table, &env).to_string(), "\n".to_owned()]);
        }
        Ok(text.into_bytes())
    }

    /// Hits for which the kernel ran no program, before any filter and of all histograms together. It runs none at a
    /// perf tracepoint while another program runs on that CPU, and from 7.0 on none for a thread that preempts the
    /// program.
    pub fn missed(&self) -> u64 {
        self.engine.status(InstanceId::TOP).map_or(0, |status| status.missed())
    }

    fn contents(&self, id: TriggerId) -> Result<HistContents, HistError> {
        let contents = self.engine.histograms.contents(InstanceId::TOP, id);
        contents.map_err(|error| Cause::NotCounted("reading the table".to_owned(), error).into())
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
            let hint = format!("; several have this name: {}", names.join(", "));
            Err(Cause::NoEvent(event.to_owned(), hint).into())
        }
    }
}

fn no_event(engine: &Engine, event: &str) -> HistError {
    let events = engine.registry.events();
    let names = events.systems().flat_map(|(_, system)| &system.events).map(|event| events.full_name(*event));
    hint::no_event(event, names)
}

fn refused(engine: &Engine, event: EventId, error: CommandError, text: &str) -> HistError {
    let name = engine.registry.events().full_name(event);
    let Some(refusal) = error.cause::<Refusal>().cloned() else {
        return Cause::NotCounted(name, error).into();
    };
    let known = Known {
        format: engine.registry.events().format(event, &engine.facts),
        variables: engine.histograms.variables(InstanceId::TOP),
        synthetic: engine.registry.synthetic().listing(),
    };
    let hint = known.hint(&refusal, text);
    Cause::Refused { event: name, refusal, hint }.into()
}
