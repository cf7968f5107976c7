//! Where the records of an event come from.

use crate::{
    engine::{
        Engine,
        facts::Facts,
        hooks::{self, AttachPlan},
        probes,
        registry::EventRegistry,
        user::user_events::UserEvents,
    },
    event::{EventId, Format, dynamic::Target},
    lang::define::{Defined, Probe},
    plan::source::ProgramContext,
};

/// The source of the records of an event without a tracepoint.
pub(super) enum Source {
    /// Programs that emit it.
    Emission,
    /// The target event of an event probe.
    Event(EventId),
    /// Its own hooks.
    Hooks(Vec<Defined>),
    /// The place of a program's event.
    Place(AttachPlan),
    /// Clients that write records.
    Writers,
}

/// The definitions of all events, to find where their records come from.
#[derive(Clone, Copy)]
pub(crate) struct RecordSources<'a> {
    registry: &'a EventRegistry,
    user: &'a UserEvents,
    facts: &'a Facts,
}

impl<'a> RecordSources<'a> {
    /// The definitions of an engine.
    pub(crate) fn of(engine: &'a Engine) -> Self {
        Self { registry: &engine.registry, user: &engine.user, facts: &engine.facts }
    }

    /// The source of an event's records; `None` for the kernel's own events.
    pub(super) fn source(self, event: EventId) -> Option<Source> {
        if self.registry.synthetic().contains(event) {
            return Some(Source::Emission);
        }
        if self.user.has(event) {
            return Some(Source::Writers);
        }
        let chosen = |format: &Format| self.registry.programs().chosen(event, format);
        if let Some(place) = self.registry.events().known_format(event).and_then(chosen) {
            return Some(Source::Place(place));
        }
        let probes = self.registry.dynamic().probes_of(event)?;
        if let Some((target, _)) = probes.first().and_then(|first| self.eprobe_target(&first.probe)) {
            return Some(Source::Event(target));
        }
        Some(Source::Hooks(probes))
    }

    /// Whether an event only ever happens with interrupts off. An event probe happens where its target does.
    pub(super) fn irqs_off(self, event: EventId) -> bool {
        match self.source(event) {
            Some(Source::Hooks(probes)) => probes.iter().all(|defined| hooks::probe_irqs_off(&defined.probe)),
            Some(Source::Event(target)) => self.irqs_off(target),
            Some(Source::Emission | Source::Writers | Source::Place(_)) | None => false,
        }
    }

    /// Whether the dependents of an event get its records from relays.
    pub(super) fn is_relayed(self, event: EventId) -> bool {
        matches!(self.source(event), Some(Source::Hooks(_) | Source::Event(_) | Source::Place(_)))
    }

    /// The target event of an event probe, if the kernel does not know it, and the sources of values in its records.
    pub(super) fn eprobe_target(self, probe: &Probe) -> Option<(EventId, ProgramContext)> {
        let Target::Event { system, name, filter } = &probe.event.target else { return None };
        let events = self.registry.events();
        let event = events.find(events.find_system(system)?, name)?;
        let format = events.known_format(event).filter(|_| events.is_made(event))?;
        let context = probes::on_record(probe, filter.as_deref(), format, self.facts);
        context
            .map_err(|why| tracing::warn!("{}: {why}", probe.event.name))
            .ok()
            .map(|context| (event, context))
    }

    /// The event probes on an event that the kernel does not know.
    pub(super) fn probes_on(self, event: EventId) -> Vec<(EventId, ProgramContext)> {
        let name = self.registry.events().full_name(event);
        let Some((system, name)) = name.split_once(':') else { return Vec::new() };
        let all = self.registry.dynamic().eprobes_on(system, name);
        all.into_iter().filter_map(|(event, probe)| Some((event, self.eprobe_target(&probe)?.1))).collect()
    }

    /// The sources of values of an event with these probes, if its records do not come from hooks of its own.
    pub(crate) fn record_context(self, event: EventId, probes: &[Defined]) -> Option<ProgramContext> {
        if self.user.has(event) || self.registry.synthetic().contains(event) {
            return Some(ProgramContext::Inject);
        }
        self.eprobe_target(&probes.first()?.probe).map(|(_, context)| context)
    }
}
