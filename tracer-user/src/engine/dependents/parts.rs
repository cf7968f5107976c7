//! Derives the parts of programs that receive the records of an event without a tracepoint, and builds their code.
//!
//! Parts are derived from wanted state and from the slots of attached events. They say all that their code depends on.

use super::sources::RecordSources;
use crate::{
    attach::{self, Block, Relayed},
    code::lower::hist::Entry,
    engine::{
        Engine,
        attachments::{
            desired,
            session::{
                event_config::EventConfig,
                part::{CountPart, Part},
                table::ProgramRole,
            },
        },
        command::error::{CommandError, ErrorKind},
    },
    event::{EventId, InstanceId, dynamic::latin1},
    lang::hist::{
        Trigger,
        action::{Action, ActionKind},
    },
};

/// Derives parts.
pub(super) struct Derivation<'a> {
    engine: &'a Engine,
    /// The events whose records contain the records of which parts are derived.
    outer: Vec<EventId>,
}

impl<'a> Derivation<'a> {
    pub(super) fn of(engine: &'a Engine) -> Self {
        Self { engine, outer: Vec::new() }
    }

    /// Parts within the records of an event.
    pub(super) fn within(engine: &'a Engine, event: EventId) -> Self {
        Self { engine, outer: vec![event] }
    }

    /// The dependents of an event in an instance.
    pub(super) fn dependents(&mut self, instance: InstanceId, event: EventId) -> Vec<Part> {
        if self.outer.contains(&event) {
            return Vec::new();
        }
        self.outer.push(event);
        let mut parts = self.counts(instance, event, Entry::Record);
        let sources = RecordSources::of(self.engine);
        let irqs_off = sources.irqs_off(event);
        for (probe, context) in sources.probes_on(event) {
            parts.extend(self.record(instance, probe, irqs_off));
            let further = self.dependents(instance, probe);
            if !further.is_empty() {
                parts.push(Part::Relay { event: probe, context, parts: further });
            }
        }
        self.outer.pop();
        parts
    }

    /// The updates of an event's histograms in an instance.
    pub(super) fn counts(&mut self, instance: InstanceId, event: EventId, entry: Entry) -> Vec<Part> {
        let triggers = self.engine.histograms.counting(instance, event);
        triggers.map(|trigger| Part::Count(self.count(instance, trigger, entry))).collect()
    }

    /// The update of a histogram.
    pub(super) fn count(&mut self, instance: InstanceId, trigger: &Trigger, entry: Entry) -> CountPart {
        let emission = |action: &Action| {
            let event = self.engine.registry.synthetic().number(&latin1(action.synthetic_name()))?;
            let is_emitted = action.kind == ActionKind::Trace && !self.outer.contains(&event);
            is_emitted.then(|| self.emission(event)).flatten()
        };
        let emissions = trigger.hist.actions.iter().map(emission).collect();
        CountPart { instance, trigger: trigger.id, entry, emissions }
    }

    /// The emission of a synthetic event. `None` if nothing receives its records.
    pub(super) fn emission(&mut self, event: EventId) -> Option<Part> {
        let instances = self.engine.instances.ids();
        let records = instances.iter().filter_map(|instance| self.record(*instance, event, false));
        let mut parts: Vec<Part> = records.collect();
        parts.extend(instances.iter().flat_map(|instance| self.dependents(*instance, event)));
        (!parts.is_empty()).then_some(Part::Emit { event, parts })
    }

    /// Records an event without a hook. `None` if it is not enabled in this instance.
    fn record(&self, instance: InstanceId, event: EventId, irqs_off: bool) -> Option<Part> {
        let session = self.engine.attachments.session(instance)?;
        let slot = session.table.first(event, ProgramRole::Emitted)?.attached.slot();
        let settings = desired::settings(self.engine, instance, event).ok()?;
        Some(Part::Record { instance, event, slot, irqs_off, settings })
    }
}

impl Part {
    /// Its code. `None` for an emission whose records do not fit.
    pub(super) fn build(&self, engine: &Engine) -> Result<Option<Block>, CommandError> {
        let format = |event| engine.registry.events().try_format(event, &engine.facts);
        match self {
            Self::Record { instance, event, irqs_off, settings, .. } => {
                let config = EventConfig { format: format(*event)?, settings, begins_off: false };
                let session = engine.attachments.session(*instance).ok_or(ErrorKind::Gone)?;
                Ok(session.emitted_block(*event, &config, *irqs_off)?)
            }
            Self::Count(count) => count.block(engine).map(Some),
            Self::Relay { event, context, parts } => {
                let relay = Relayed {
                    format: format(*event)?,
                    context,
                    nests: false,
                    is_part: true,
                    but_process: None,
                    is_injected: false,
                };
                let parts = Self::build_all(parts, engine)?;
                Ok(Some(attach::relayed(&relay, engine.facts.cpus(), &parts)?))
            }
            Self::Emit { event, parts } => {
                let format = format(*event)?;
                let event = engine.registry.synthetic().find(&format.name).ok_or(ErrorKind::NotFound)?;
                Ok(attach::emission(&event, format.id, &Self::build_all(parts, engine)?)?)
            }
        }
    }

    /// The code of parts.
    pub(super) fn build_all(parts: &[Self], engine: &Engine) -> Result<Vec<Block>, CommandError> {
        parts.iter().filter_map(|part| part.build(engine).transpose()).collect()
    }
}
