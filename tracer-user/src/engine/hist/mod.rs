//! A histogram of one event on the command line: the command is read as a `trigger` file would, the cheapest hook that
//! has all of its values is chosen, and the table is shown as the event's `hist` file would. Several, and what needs more than
//! one event, are [`several`]'s.

mod hint;
pub mod several;

use std::sync::Arc;

use self::hint::Known;
use super::{facts::Facts, hooks::AttachPlan, recorder};
use crate::{
    attach::{self, AttachError, AttachPoint, Attached, Calls, Cause, Counted, Counts, HistAround, ids},
    code::lower::hist as lower,
    event::{Catalogue, Format, synthetic},
    lang::{
        filter::FilterError,
        hist::{Change, Dialect, Flags, Hist, Refusal, Set, Trigger, World},
    },
    plan::{
        filter::Filter,
        hist::{Layout, References},
        resolve,
        source::ProgramContext,
    },
    render::{
        RenderEnv, Symbol,
        hist::{HistEnv, Table, json, show},
    },
};

/// Why there is no histogram.
#[derive(Debug, thiserror::Error)]
pub enum HistError {
    /// There is no such event.
    #[error("no event {0}{1}")]
    NoEvent(String, String),
    /// The command is wrong.
    #[error("histogram of {event}: {refusal}{hint}")]
    Refused {
        /// `system:name`.
        event: String,
        /// What is wrong.
        refusal: Refusal,
        /// What may have been meant, a line; or nothing.
        hint: String,
    },
    /// The definition of an event is wrong.
    #[error("{0}: {1}")]
    NotDefined(String, String),
    /// The kernel does not let it be counted.
    #[error("histogram of {0}: {1}")]
    NotCounted(String, String),
    /// It asks for something that is not done yet.
    #[error("not counted in the kernel yet: {0}")]
    NotYet(&'static str),
    /// The kernel refused something.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// tracefs could not be read.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Error),
}

/// What is counted where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The perf tracepoint even where a raw tracepoint would do.
    pub tracepoint: bool,
    /// Hits of this process too.
    pub own: bool,
}

/// A histogram that counts.
#[derive(Debug)]
pub struct Histogram {
    trigger: Trigger,
    counts: Counts,
    _attached: Attached,
    /// Where it hangs.
    pub hook: AttachPlan,
}

impl Histogram {
    /// Starts to count `event` (`system:name`) by a command: what stands behind `hist:`, or all of it.
    ///
    /// # Errors
    /// When the command is wrong or the kernel refuses something.
    pub fn start(event: &str, command: &str, options: Options, facts: &Facts) -> Result<Self, HistError> {
        let world = Running { facts };
        let (system, name) = event.split_once(':').or_else(|| event.split_once('/')).unwrap_or(("", event));
        let format = world.event(system, name).ok_or_else(|| no_event(event, facts))?;
        let command = command.trim();
        let command = command.strip_prefix("hist:").unwrap_or(command).trim_start();
        let mut set = Set::default();
        let taken = set.apply(&format, Some(command.as_bytes()), false, &world).map_err(|refusal| {
            let known = Known { format: Some(&format), variables: Vec::new(), synthetic: Vec::new() };
            let hint = known.hint(&refusal, command);
            HistError::Refused { event: format.full_name(), refusal, hint }
        })?;
        let Change::Added(id, _) = taken.change else {
            return Err(HistError::NotYet("changing what is there"));
        };
        let trigger = set.trigger(id).cloned().ok_or(HistError::NotYet("helpers of other events"))?;
        if trigger.hist.synthetic_events().next().is_some() {
            return Err(HistError::NotYet("synthetic events without a mirror"));
        }
        if trigger.hist.takes_snapshots() {
            return Err(HistError::NotYet("snapshots without a mirror"));
        }
        if let Some(what) = lower::unsupported(&trigger.hist) {
            return Err(HistError::NotYet(what));
        }
        let filter = match &trigger.filter {
            // It was checked with the command.
            Some(text) => {
                Some(resolve::filter(text, &format, facts).map_err(|_| HistError::NotYet("its filter"))?)
            }
            None => None,
        };
        let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
        let mut chosen = Self::hook(&format, options.tracepoint, facts)?;
        let counts = Counts::of(&trigger.hist)?;
        let references = References::of(&trigger.hist, &set).ok_or(HistError::NotYet("its references"))?;
        let registers = facts.registers().filter(|_| chosen.via.is_call());
        let calls = registers.map(|registers| Calls::new(registers, recorder::cast(facts)));
        let start = |hook: &AttachPlan, filter: Option<&Filter>| {
            let (hist, but_process) = (&*trigger.hist, (!options.own).then_some(own.process));
            let hook_kind = &hook.hook;
            let request = lower::Request {
                hist,
                references: &references,
                filter,
                hook: hook_kind,
                kind: format.id,
                but_process,
                but_compat: calls
                    .as_ref()
                    .filter(|_| hook.via.is_call())
                    .map(|calls| calls.registers().compat),
                entry: lower::Entry::ProgramContext,
                within: None,
                emits: &[],
            };
            let around = HistAround { calls: calls.as_ref(), ..HistAround::default() };
            attach::attach_hist(&request, &hook.via, &counts, &around, None)
        };
        let attached = match start(&chosen, filter.as_ref()) {
            Err(error)
                if chosen.hook != ProgramContext::Tracepoint && matches!(error.cause(), Cause::Lower(_)) =>
            {
                chosen = AttachPlan::tracepoint(&format, error.to_string());
                start(&chosen, filter.as_ref())?
            }
            other => other?,
        };
        Ok(Self { trigger, counts, _attached: attached, hook: chosen })
    }

    /// A raw tracepoint where that is as good; system calls' events have a place behind its dispatcher.
    fn hook(format: &Format, tracepoint: bool, facts: &Facts) -> Result<AttachPlan, HistError> {
        let mut chosen = recorder::try_hooks(&[format], tracepoint, facts)?.pop();
        if let Some(AttachPlan { via, .. }) = &mut chosen
            && let AttachPoint::SysEnterAlone(number) = *via
        {
            *via = AttachPoint::SysEnter(number);
        }
        Ok(match chosen {
            Some(chosen)
                if matches!(chosen.via, AttachPoint::Tracepoint(_) | AttachPoint::RawTracepoint(_)) =>
            {
                chosen
            }
            Some(chosen) if chosen.via.is_call() => chosen,
            _ => AttachPlan::tracepoint(format, "histograms hang on tracepoints"),
        })
    }

    /// Learns what only a process with privileges can, for [`Histogram::text`] without them.
    pub fn prepare(&self, facts: &Facts) {
        prepare(&self.trigger.hist, facts);
    }

    /// The text of the event's `hist` file.
    ///
    /// # Errors
    /// When the kernel refuses to show the table.
    pub fn text(&self, facts: &Facts) -> Result<Vec<u8>, HistError> {
        Ok(shown(&self.trigger, self.counts.read()?, 0, facts))
    }

    /// The same as JSON, in a line.
    ///
    /// # Errors
    /// As [`Histogram::text`].
    pub fn json(&self, facts: &Facts) -> Result<Vec<u8>, HistError> {
        let (table, env) = looked_up(&self.trigger, self.counts.read()?, facts);
        Ok(format!("{}\n", json::object(&self.trigger, &table, &env)).into_bytes())
    }
}

/// Names of events that may have been meant.
fn no_event(event: &str, facts: &Facts) -> HistError {
    let list = facts.tracefs.available_events().unwrap_or_default();
    let names: Vec<String> =
        Catalogue::parse(&list).iter().map(|(system, name)| format!("{system}:{name}")).collect();
    hint::no_event(event, names.into_iter())
}

/// A histogram as the event's `hist` file shows it; `number` is how many of the same event came before it.
pub(super) fn shown(trigger: &Trigger, counted: Counted, number: usize, facts: &Facts) -> Vec<u8> {
    let (table, env) = looked_up(trigger, counted, facts);
    let mut out = Vec::new();
    show(&mut out, trigger, &table, number, &env);
    out
}

/// A table, and what its rows' names are looked up in.
fn looked_up<'a>(trigger: &Trigger, counted: Counted, facts: &'a Facts) -> (Table, Env<'a>) {
    let hist = &trigger.hist;
    let hits = counted.rows.iter().map(|(_, entry)| Layout::sum(entry, 0)).sum();
    let table = Table { rows: counted.rows, hits, drops: counted.drops, snapshot: counted.snapshot };
    let names_calls = names_calls(hist);
    (table, Env { facts, names_calls })
}

/// What the running kernel has that histograms are about.
struct Running<'a> {
    facts: &'a Facts,
}

impl World for Running<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::newest()
    }

    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>> {
        let text = self.facts.tracefs.format(system, name).ok()??;
        Format::parse(system, &text).ok().map(Arc::new)
    }

    fn synthetic(&self, _name: &str) -> Option<Arc<synthetic::Event>> {
        None
    }

    fn has_clock(&self, name: &[u8]) -> bool {
        matches!(name, b"global" | b"local" | b"mono")
    }

    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError> {
        resolve::filter(text, event, self.facts).map(|_| ())
    }
}

/// Names for rows.
struct Env<'a> {
    facts: &'a Facts,
    names_calls: bool,
}

impl RenderEnv for Env<'_> {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.facts.symbols()?.lookup(address)
    }
}

impl HistEnv for Env<'_> {
    fn syscall(&self, number: u64) -> Option<String> {
        if !self.names_calls {
            return None;
        }
        self.facts.call_names().get(&number).cloned()
    }
}

/// Learns what rows of this histogram will be shown with, as far as it takes privileges.
pub(super) fn prepare(hist: &Hist, facts: &Facts) {
    if names_calls(hist) {
        let _ = facts.call_names();
    }
}

/// Whether keys show system calls by their names.
fn names_calls(hist: &Hist) -> bool {
    hist.keys().iter().any(|key| key.flags.has(Flags::SYSCALL))
}
