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

/// Largest number of parts of a program. A part has some hundred instructions, and the kernel verifies at most a
/// million. Histograms that trace each other's events multiply: without a limit, eight levels of twenty would not end.
const PARTS_MAX: usize = 1024;
/// Largest depth of parts within parts. The kernel accepts eight frames of calls, and each emission takes one.
const DEPTH_MAX: usize = 16;

/// Derives the parts of one program.
pub(super) struct Derivation<'a> {
    engine: &'a Engine,
    /// The events whose records contain the records of which parts are derived.
    outer: Vec<EventId>,
    /// Number of parts so far.
    parts: usize,
}

impl<'a> Derivation<'a> {
    pub(super) fn of(engine: &'a Engine) -> Self {
        Self { engine, outer: Vec::new(), parts: 0 }
    }

    /// Parts within the records of an event.
    pub(super) fn within(engine: &'a Engine, event: EventId) -> Self {
        Self { engine, outer: vec![event], parts: 0 }
    }

    /// The dependents of an event in an instance.
    pub(super) fn dependents(&mut self, instance: InstanceId, event: EventId) -> Vec<Part> {
        if self.outer.contains(&event) {
            return Vec::new();
        }
        if self.is_over() {
            return vec![Part::TooMany];
        }
        self.outer.push(event);
        let mut parts = self.counts(instance, event, Entry::Record);
        let sources = RecordSources::of(self.engine);
        let irqs_off = sources.irqs_off(event);
        for (probe, context) in sources.probes_on(event) {
            let record = self.record(instance, probe, irqs_off);
            self.parts += usize::from(record.is_some());
            parts.extend(record);
            let further = self.dependents(instance, probe);
            if !further.is_empty() {
                self.parts += 1;
                parts.push(Part::Relay { event: probe, context, parts: further });
            }
        }
        self.outer.pop();
        self.limited(parts)
    }

    /// The updates of an event's histograms in an instance.
    pub(super) fn counts(&mut self, instance: InstanceId, event: EventId, entry: Entry) -> Vec<Part> {
        let triggers = self.engine.histograms.counting(instance, event);
        let parts = triggers.map(|trigger| Part::Count(self.count(instance, trigger, entry))).collect();
        self.limited(parts)
    }

    /// The update of a histogram.
    pub(super) fn count(&mut self, instance: InstanceId, trigger: &Trigger, entry: Entry) -> CountPart {
        self.parts += 1;
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
        if self.is_over() {
            return Some(Part::TooMany);
        }
        let instances = self.engine.instances.ids();
        let records = instances.iter().filter_map(|instance| self.record(*instance, event, false));
        let mut parts: Vec<Part> = records.collect();
        self.parts += parts.len();
        parts.extend(instances.iter().flat_map(|instance| self.dependents(*instance, event)));
        (!parts.is_empty()).then(|| Part::Emit { event, parts: self.limited(parts) })
    }

    /// Whether the program is refused.
    fn is_over(&mut self) -> bool {
        if self.outer.len() > DEPTH_MAX {
            self.parts = PARTS_MAX + 1;
        }
        self.parts > PARTS_MAX
    }

    /// The parts of a program that is not refused.
    fn limited(&self, parts: Vec<Part>) -> Vec<Part> {
        if self.parts > PARTS_MAX { vec![Part::TooMany] } else { parts }
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
            Self::TooMany => Err(ErrorKind::NoMemory.into()),
        }
    }

    /// The code of parts.
    pub(super) fn build_all(parts: &[Self], engine: &Engine) -> Result<Vec<Block>, CommandError> {
        parts.iter().filter_map(|part| part.build(engine).transpose()).collect()
    }
}
