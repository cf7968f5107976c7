//! Resolves what to record: `sys:event[ if FILTER]` and globs over the known events, definitions of probes, and
//! programs with their own events.

use std::{os::unix::ffi::OsStrExt, path::PathBuf, sync::Arc};

use super::{SelectError, StartError};
use crate::{
    engine::{
        Engine,
        attachments::{AttachOptions, RecordingOptions, reconcile::Reconciler, sessions::Attachments},
        core,
        facts::Facts,
        hooks::AttachPlan,
        instances::instance::Filtering,
        registry::table::{DefinitionOwner, EventChanges},
    },
    event::{Catalogue, EventId, Format, InstanceId},
    kernel::Tracefs,
    lang::{
        define::{File, Line, Planned, Probe},
        facts::Files,
    },
    plan::{
        filter::{Filter, Pattern, Test, Text},
        resolve,
    },
};

/// Bytes of a CPU's ring if hooks are only tried.
const TRIAL_RING_BYTES: u32 = 1 << 18;

/// Names of the events to record.
#[derive(Clone, Debug, Default)]
pub struct RecordRequest {
    /// Events of the kernel or of programs. If one is named again, the later filter replaces the earlier one.
    pub events: Vec<String>,
    /// Definitions of probes.
    pub probes: Vec<String>,
    /// Programs with their own events. If no event is named, all events of the programs are recorded.
    pub programs: Vec<PathBuf>,
    /// The name of the threads to record.
    pub comm: Option<String>,
}

/// The events of a recording with their filters, in an engine that has attached nothing yet.
#[derive(Debug)]
pub struct Selection {
    pub(super) engine: Engine,
    /// In the order in which their counts are shown.
    pub(super) events: Vec<EventId>,
}

/// An event that was selected.
#[derive(Debug)]
pub struct SelectedEvent<'a> {
    /// The event.
    pub format: &'a Format,
    /// The filter.
    pub filter: Option<&'a Filter>,
    /// The text of the filter, without the condition on the thread's name.
    pub filter_text: Option<&'a [u8]>,
    /// Its probes; empty if no definition made it.
    pub probes: Vec<Probe>,
    /// Whether the event is one of the kernel's, which [`Selection::try_hooks`] plans.
    pub of_kernel: bool,
}

impl Selection {
    /// Resolves all names.
    ///
    /// # Errors
    /// The first error, in this order: programs, events, definitions.
    pub fn new(request: &RecordRequest, facts: Arc<Facts>) -> Result<Self, SelectError> {
        let mut selection = Self { engine: core::for_recording(facts), events: Vec::new() };
        let mut known: Vec<EventId> = Vec::new();
        for path in &request.programs {
            let facts = selection.engine.facts.clone();
            known.extend(selection.engine.registry.add_program(path.as_os_str().as_bytes(), &facts)?);
        }
        let all = ["*".to_owned()];
        let texts = if request.events.is_empty() && !known.is_empty() { &all } else { &request.events[..] };
        let mut of_programs = Vec::new();
        for text in texts {
            let (pattern, filter) = split_event(text);
            if filter.is_some_and(str::is_empty) {
                return Err(SelectError::EmptyFilter(text.clone()));
            }
            let found = selection.of_programs(pattern, filter, &known)?;
            if found.is_empty() {
                selection.add_of_kernel(pattern, filter)?;
            }
            of_programs.extend(found);
        }
        for text in &request.probes {
            let event = selection.define(text)?;
            selection.add([event]);
        }
        selection.add(of_programs);
        if let Some(comm) = &request.comm {
            selection.keep_comm(comm);
        }
        Ok(selection)
    }

    /// Adds events to the recording, each once.
    fn add(&mut self, events: impl IntoIterator<Item = EventId>) {
        for event in events {
            if !self.events.contains(&event) {
                self.events.push(event);
            }
        }
    }

    /// The events of programs that a pattern names. Sets their filters.
    fn of_programs(
        &mut self,
        pattern: &str,
        filter: Option<&str>,
        known: &[EventId],
    ) -> Result<Vec<EventId>, SelectError> {
        let names: Vec<String> =
            known.iter().map(|event| self.engine.registry.events().full_name(*event)).collect();
        let catalogue = Catalogue::parse(&names.join("\n"));
        let named = catalogue.matching(pattern);
        let is_named = |name: &String| named.iter().any(|pair| name.split_once(':') == Some(*pair));
        let found = known.iter().zip(&names).filter(|(_, name)| is_named(name));
        let events: Vec<EventId> = found.map(|(event, _)| *event).collect();
        events.iter().try_for_each(|event| self.set_filter(*event, filter))?;
        Ok(events)
    }

    /// Adds the kernel's events that a pattern names, with their filters.
    fn add_of_kernel(&mut self, pattern: &str, filter: Option<&str>) -> Result<(), SelectError> {
        for (system, name) in names(pattern, &self.engine.facts.tracefs)? {
            let events = self.engine.registry.events();
            let known = events.find_system(&system).and_then(|system| events.find(system, &name));
            let event = match known.filter(|event| !events.is_made(*event)) {
                Some(event) => event,
                None => self
                    .engine
                    .registry
                    .table_mut()
                    .events_mut()
                    .add_known(&system, &name)
                    .map_err(|_| SelectError::TooMany)?,
            };
            self.set_filter(event, filter)?;
            self.add([event]);
        }
        Ok(())
    }

    /// Sets the filter of an event, or clears it.
    fn set_filter(&mut self, event: EventId, text: Option<&str>) -> Result<(), SelectError> {
        let (events, facts) = (self.engine.registry.events().clone(), self.engine.facts.clone());
        let Some(format) = events.format(event, &facts) else {
            return Err(unreadable(&events.full_name(event), &facts));
        };
        let filter = text
            .map(|text| resolve::filter(text.as_bytes(), format, &*facts))
            .transpose()
            .map_err(|error| SelectError::Filter { event: format.full_name(), error: Box::new(error) })?;
        self.put_filter(event, filter, text.unwrap_or_default().into());
        Ok(())
    }

    fn put_filter(&mut self, event: EventId, filter: Option<Filter>, shown: Vec<u8>) {
        let Some(state) = self.engine.instances.get_mut(InstanceId::TOP) else { return };
        match filter {
            Some(filter) => state.filters.insert(event, Filtering { shown, filter: Some(filter) }),
            None => state.filters.remove(&event),
        };
    }

    fn filter(&self, event: EventId) -> Option<&Filtering> {
        self.engine.instances.get(InstanceId::TOP)?.filters.get(&event)
    }

    /// Records only hits of threads with this name.
    fn keep_comm(&mut self, comm: &str) {
        for event in self.events.clone() {
            let known = self.filter(event).cloned();
            let (shown, filter) = known.map(|known| (known.shown, known.filter)).unwrap_or_default();
            self.put_filter(event, Some(and_comm(filter, comm)), shown);
        }
    }

    /// Defines the event of a probe. Several probes of one event have one filter, the last.
    fn define(&mut self, text: &str) -> Result<EventId, SelectError> {
        let (definition, filter) = split_definition(text);
        let (line, files) = (Line::split(definition.as_bytes()), Files::at_once());
        let planner = self.engine.registry.planner(&self.engine.facts);
        let planned = planner.plan(&line, File::Dynamic, &files).map_err(|refusal| {
            let hint = planner.hint(&line, &refusal, &files);
            SelectError::Refused { refusal: Box::new(refusal), hint }
        })?;
        drop(planner);
        let Planned::Add { probe, .. } = &planned else {
            return Err(SelectError::NothingDefined(text.to_owned()));
        };
        let probe = probe.clone();
        let Engine { registry, quotas, .. } = &mut self.engine;
        // There are no clients whose quota could be exceeded.
        let owner = DefinitionOwner { quotas, payer: 0 };
        let changes = &mut EventChanges::default();
        let applied = registry.apply_probes(Ok(planned), (File::Dynamic, &line), owner, changes);
        let event = applied.ok().and_then(|()| registry.dynamic().number(&probe));
        let event = event.ok_or(SelectError::TooMany)?;
        if filter.is_some() {
            self.set_filter(event, filter)?;
        }
        Ok(event)
    }

    /// The facts of the kernel.
    pub fn facts(&self) -> &Facts {
        &self.engine.facts
    }

    /// The events.
    pub fn events(&self) -> impl Iterator<Item = SelectedEvent<'_>> {
        let registry = &self.engine.registry;
        self.events.iter().filter_map(|event| {
            let defined = registry.dynamic().probes_of(*event).unwrap_or_default();
            let filter = self.filter(*event);
            Some(SelectedEvent {
                format: registry.events().format(*event, &self.engine.facts)?,
                filter: filter.and_then(|filter| filter.filter.as_ref()),
                filter_text: filter.map(|filter| &filter.shown[..]).filter(|text| !text.is_empty()),
                probes: defined.into_iter().map(|defined| defined.probe).collect(),
                of_kernel: !registry.events().is_made(*event),
            })
        })
    }

    /// The plan by which each event of the kernel would be attached. Each hook is tried as in a recording.
    ///
    /// # Errors
    /// The kernel refuses to make maps.
    pub fn try_hooks(&mut self, perf_tracepoints_only: bool) -> Result<Vec<AttachPlan>, StartError> {
        let known = self.engine.registry.events();
        let events: Vec<EventId> =
            self.events.iter().copied().filter(|event| !known.is_made(*event)).collect();
        if events.is_empty() {
            return Ok(Vec::new());
        }
        // Two programs try each hook.
        let slots = 2 * events.len() as u32;
        let sizes = RecordingOptions { ring_bytes: TRIAL_RING_BYTES, slots, listed_only: false };
        self.engine.attachments = Attachments::new(AttachOptions {
            perf_tracepoints_only,
            without_names: true,
            recording: Some(sizes),
            ..AttachOptions::default()
        });
        self.engine.make_session(InstanceId::TOP)?;
        Reconciler::of(&mut self.engine, InstanceId::TOP).choose_hooks(&events);
        let hooks = self.engine.attachments.hooks();
        let of_kernel = self.events().filter(|event| event.of_kernel);
        Ok(of_kernel.map(|event| hooks.of(event.format)).collect())
    }
}

/// The events of the kernel that a pattern names. A plain `sys:event` is looked up without listing all events.
fn names(pattern: &str, tracefs: &Tracefs) -> Result<Vec<(String, String)>, SelectError> {
    if let Some((system, name)) = pattern.split_once(':') {
        let plain = |part: &str| !part.is_empty() && !part.contains(['*', '?', '[', '/', '\\', '.']);
        if plain(system) && plain(name) && tracefs.format(system, name)?.is_some() {
            return Ok(vec![(system.to_owned(), name.to_owned())]);
        }
    }
    let catalogue = Catalogue::parse(&tracefs.available_events()?);
    let found = catalogue.matching(pattern);
    if found.is_empty() {
        return Err(no_event(pattern, &catalogue));
    }
    Ok(found.into_iter().map(|(system, name)| (system.to_owned(), name.to_owned())).collect())
}

fn no_event(pattern: &str, catalogue: &Catalogue) -> SelectError {
    let wanted = pattern.rsplit(':').next().unwrap_or(pattern);
    let nearest = resolve::nearest(wanted, catalogue.iter().map(|(_, name)| name.to_owned()));
    let meant = nearest.and_then(|nearest| catalogue.iter().find(|(_, name)| **name == nearest));
    let suggestion = meant.map(|(system, name)| format!("{system}:{name}"));
    SelectError::NoEvent { pattern: pattern.to_owned(), suggestion }
}

/// The error of an event whose format cannot be used.
fn unreadable(event: &str, facts: &Facts) -> SelectError {
    let (system, name) = event.split_once(':').unwrap_or_default();
    let read = || -> Result<Format, SelectError> {
        let text = facts.tracefs.format(system, name)?;
        Ok(Format::parse(system, &text.unwrap_or_default())?)
    };
    // Without an error, the format has become readable since.
    read().err().unwrap_or_else(|| SelectError::NoEvent { pattern: event.to_owned(), suggestion: None })
}

/// Splits `sys:event if FILTER`.
fn split_event(text: &str) -> (&str, Option<&str>) {
    let text = text.trim();
    // Any other text counts as a name, which no event has.
    let Some((event, rest)) = text.split_once(char::is_whitespace) else { return (text, None) };
    match rest.trim_start().strip_prefix("if") {
        Some(filter) if filter.is_empty() || filter.starts_with(char::is_whitespace) => {
            (event, Some(filter.trim()))
        }
        _ => (text, None),
    }
}

/// Splits the filter off a definition: the text after the first word `if`. In an event probe, this text belongs to
/// the definition.
fn split_definition(text: &str) -> (&str, Option<&str>) {
    let is_event_probe = text.trim_start().starts_with('e');
    let mut at = 0;
    for word in text.split_inclusive(char::is_whitespace) {
        if word.trim_end() == "if"
            && at > 0
            && !is_event_probe
            && let Some((definition, rest)) = text.split_at_checked(at)
        {
            return (definition, rest.strip_prefix(word).map(str::trim));
        }
        at += word.len();
    }
    (text, None)
}

/// Adds the condition that the current task has this name (at most 15 bytes count, as in the kernel).
fn and_comm(filter: Option<Filter>, comm: &str) -> Filter {
    let name = comm.as_bytes();
    let test = Filter::Test(Test::Text {
        text: Text::Comm,
        pattern: Pattern::Full(name.get(..15).unwrap_or(name).to_vec()),
        not: false,
    });
    match filter {
        None => test,
        Some(filter) => Filter::And(vec![test, filter]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_name_and_perhaps_a_filter() {
        assert_eq!(split_event(" sched:sched_switch "), ("sched:sched_switch", None));
        assert_eq!(split_event("a:b if x == 1 && y"), ("a:b", Some("x == 1 && y")));
        assert_eq!(split_event("a:b if"), ("a:b", Some("")));
        assert_eq!(split_event("a:b iffy"), ("a:b iffy", None));
    }

    #[test]
    fn filters_are_split_off() {
        for (text, definition, filter) in [
            ("f vfs_read if count > 1", "f vfs_read ", Some("count > 1")),
            ("p:x f a=1", "p:x f a=1", None),
            ("t sched_switch  if  a == \"if b\"", "t sched_switch  ", Some("a == \"if b\"")),
            ("e:x sched.sched_switch if a", "e:x sched.sched_switch if a", None),
            ("f iffy notif=x", "f iffy notif=x", None),
        ] {
            assert_eq!(split_definition(text), (definition, filter), "{text}");
        }
    }
}
