//! The table of an instance's attached programs, by event and role.

use std::collections::HashMap;

use super::{
    event_config::{EventConfig, EventSettings},
    part::Part,
};
use crate::{
    attach::{AttachPoint, Attached},
    engine::{
        attachments::plan::{AttachedState, Mode, ProbeState},
        hooks::AttachPlan,
        registry::profile::BySerial,
    },
    event::{EventId, Slot},
    lang::hist::TriggerId,
};

/// The work that programs do for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProgramRole {
    /// Process the hits at the hook of one of the kernel's events, or of a program's event.
    Hook,
    /// Process the hits of the probes of a dynamic event.
    Probe,
    /// Processes the records of an event without a hook (synthetic events, user events, event probes on such events).
    Emitted,
    /// Processes records that are written to `inject`. It is made on first use.
    Inject,
    /// Runs the triggers of `trace_marker`.
    Marker,
    /// Pass the records of an event to its dependents.
    Relay,
    /// Counts the hits of an event in a histogram, or its records from user space if the event has no hook.
    Histogram(TriggerId),
    /// Counts the records from user space of an event with a hook in a histogram. It is made on first use.
    HistogramInject(TriggerId),
}

/// The roles of the programs that make an event attached. An event has at most one of them.
const EVENT_ROLES: [ProgramRole; 3] = [ProgramRole::Hook, ProgramRole::Probe, ProgramRole::Emitted];

/// An attached program, and the plan by which it was attached.
#[derive(Debug)]
pub(crate) struct AttachedPart {
    pub(crate) attached: Attached,
    pub(crate) plan: AttachPlan,
}

impl AttachedPart {
    pub(crate) fn new(attached: Attached, plan: AttachPlan) -> Self {
        Self { attached, plan }
    }
}

/// The program of one probe of an event.
#[derive(Debug)]
pub(crate) struct ProbePart {
    /// The serial number of the probe's definition; 0 for an event without probes.
    pub(crate) serial: u64,
    pub(crate) program: ProbeProgram,
}

/// Whether a probe is attached.
#[derive(Debug)]
pub(crate) enum ProbeProgram {
    Attached(Box<AttachedPart>),
    /// It waits for its module.
    Waits,
    /// It was refused. It is tried again when other probes of the event change.
    Refused,
}

impl From<AttachedPart> for ProbeProgram {
    fn from(part: AttachedPart) -> Self {
        Self::Attached(Box::new(part))
    }
}

impl ProbePart {
    fn part(&self) -> Option<&AttachedPart> {
        match &self.program {
            ProbeProgram::Attached(part) => Some(part),
            ProbeProgram::Waits | ProbeProgram::Refused => None,
        }
    }

    fn state(&self) -> ProbeState {
        match self.program {
            ProbeProgram::Attached(_) => ProbeState::Attached,
            ProbeProgram::Waits => ProbeState::Waits,
            ProbeProgram::Refused => ProbeState::Refused,
        }
    }
}

/// The programs of one event in one role: one, or one for each probe. There is none if no record of the event fits.
#[derive(Debug, Default)]
pub(crate) struct AttachedParts {
    pub(crate) probes: Vec<ProbePart>,
    /// What the programs do. `None` if they differ, because a change failed, and for roles that do not compare it.
    pub(crate) settings: Option<EventSettings>,
    /// For relays and histograms, the parts that receive the records. `None` if they differ, because a change failed,
    /// and for other roles.
    pub(crate) receivers: Option<Vec<Part>>,
    /// Whether the event is soft-disabled while no program has a slot.
    off: bool,
}

impl From<AttachedPart> for AttachedParts {
    fn from(part: AttachedPart) -> Self {
        Self { probes: vec![ProbePart { serial: 0, program: part.into() }], ..Self::default() }
    }
}

impl AttachedParts {
    pub(crate) fn new(probes: Vec<ProbePart>, config: &EventConfig<'_>) -> Self {
        Self { probes, settings: Some(config.settings.clone()), off: config.begins_off, receivers: None }
    }

    /// The program of an event without probes.
    pub(crate) fn single(part: AttachedPart, config: &EventConfig<'_>) -> Self {
        Self::new(Self::from(part).probes, config)
    }

    /// A program that passes records to these parts.
    pub(crate) fn passing(part: AttachedPart, receivers: Vec<Part>) -> Self {
        Self { receivers: Some(receivers), ..Self::from(part) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &AttachedPart> {
        self.probes.iter().filter_map(ProbePart::part)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut AttachedPart> {
        self.probes.iter_mut().filter_map(|probe| match &mut probe.program {
            ProbeProgram::Attached(part) => Some(&mut **part),
            ProbeProgram::Waits | ProbeProgram::Refused => None,
        })
    }

    /// Hits and misses of each attached probe since it was attached. Probes that share a link count none, because no
    /// file shows the counts of function events (`f`).
    pub(crate) fn counts(&self) -> BySerial {
        let count = |part: &AttachedPart| (part.attached.hits(), part.attached.missed());
        self.probes.iter().filter_map(|probe| Some((probe.serial, count(probe.part()?)))).collect()
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (u64, ProbeState)> {
        self.probes.iter().map(|probe| (probe.serial, probe.state()))
    }

    pub(crate) fn of_serial(&self, serial: u64) -> Option<&AttachedPart> {
        self.probes.iter().find(|probe| probe.serial == serial)?.part()
    }

    pub(crate) fn take_serial(&mut self, serial: u64) -> Option<ProbePart> {
        let at = self.probes.iter().position(|probe| probe.serial == serial)?;
        Some(self.probes.remove(at))
    }

    /// The programs, without their plans.
    pub(crate) fn into_attached(self) -> impl Iterator<Item = Attached> {
        self.probes.into_iter().filter_map(|probe| match probe.program {
            ProbeProgram::Attached(part) => Some(part.attached),
            ProbeProgram::Waits | ProbeProgram::Refused => None,
        })
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.iter().filter_map(|part| part.attached.slot())
    }

    /// The slot through which user space and triggers disable the event: that of the first probe.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.slots().next()
    }

    /// Whether the event is soft-disabled; `is_off` reads the word of a slot.
    pub(crate) fn is_off(&self, is_off: impl FnOnce(Slot) -> bool) -> bool {
        self.slot().map_or(self.off, is_off)
    }

    /// Soft-disables or soft-enables the event, if no program has a slot. Returns the slot otherwise.
    pub(crate) fn set_off(&mut self, off: bool) -> Option<Slot> {
        self.off = off;
        self.slot()
    }
}

#[derive(Debug, Default)]
pub(crate) struct AttachedTable(HashMap<(EventId, ProgramRole), AttachedParts>);

impl AttachedTable {
    pub(crate) fn get(&self, event: EventId, role: ProgramRole) -> Option<&AttachedParts> {
        self.0.get(&(event, role))
    }

    /// The state of an event's programs in a role, which are attached or not; `settings` are those to compare.
    pub(crate) fn state<S>(
        &self,
        event: EventId,
        role: ProgramRole,
        settings: impl FnOnce(&AttachedParts) -> Option<&S>,
    ) -> AttachedState<&S> {
        let known = self.get(event, role);
        AttachedState {
            mode: if known.is_some() { Mode::On } else { Mode::Disabled },
            probes: known.into_iter().flat_map(AttachedParts::states).collect(),
            settings: known.and_then(settings),
        }
    }

    pub(crate) fn first(&self, event: EventId, role: ProgramRole) -> Option<&AttachedPart> {
        self.get(event, role)?.iter().next()
    }

    pub(crate) fn get_mut(&mut self, event: EventId, role: ProgramRole) -> Option<&mut AttachedParts> {
        self.0.get_mut(&(event, role))
    }

    pub(crate) fn has(&self, event: EventId, role: ProgramRole) -> bool {
        self.0.contains_key(&(event, role))
    }

    pub(crate) fn insert(&mut self, event: EventId, role: ProgramRole, parts: impl Into<AttachedParts>) {
        self.0.insert((event, role), parts.into());
    }

    pub(crate) fn take(&mut self, event: EventId, role: ProgramRole) -> Option<AttachedParts> {
        self.0.remove(&(event, role))
    }

    /// Removes the programs that make an event attached.
    pub(crate) fn take_event(&mut self, event: EventId) -> Option<(ProgramRole, AttachedParts)> {
        EVENT_ROLES.into_iter().find_map(|role| Some((role, self.take(event, role)?)))
    }

    /// The role and programs that make an event attached.
    pub(crate) fn event(&self, event: EventId) -> Option<(ProgramRole, &AttachedParts)> {
        EVENT_ROLES.into_iter().find_map(|role| Some((role, self.get(event, role)?)))
    }

    pub(crate) fn event_mut(&mut self, event: EventId) -> Option<(ProgramRole, &mut AttachedParts)> {
        let role = self.event(event)?.0;
        Some((role, self.get_mut(event, role)?))
    }

    /// The programs that make an event attached.
    pub(crate) fn of_event(&self, event: EventId) -> impl Iterator<Item = &AttachedPart> {
        self.event(event).into_iter().flat_map(|(_, parts)| parts.iter())
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.0.keys().filter(|(_, role)| EVENT_ROLES.contains(role)).map(|(event, _)| *event)
    }

    /// The hooks of an attached event, each with the reason why it is no raw tracepoint. Empty for an event that other
    /// programs emit.
    pub(crate) fn hooks(&self, event: EventId) -> impl Iterator<Item = (&AttachPoint, &str)> {
        let plans = self.of_event(event).map(|part| &part.plan);
        let at_hooks = plans.filter(|plan| plan.point != AttachPoint::Inject);
        at_hooks.map(|plan| (&plan.point, plan.reason.as_str()))
    }

    /// All programs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AttachedPart> {
        self.0.values().flat_map(AttachedParts::iter)
    }

    /// The slots of all programs that count hits as those of an event.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let counts = |role: &ProgramRole| EVENT_ROLES.contains(role) || *role == ProgramRole::Inject;
        self.0.iter().filter(move |((_, role), _)| counts(role)).flat_map(|(_, parts)| parts.slots())
    }

    /// Removes and returns all programs at hooks of events.
    pub(crate) fn take_hooks(&mut self) -> Vec<AttachedParts> {
        self.0.extract_if(|(_, role), _| *role == ProgramRole::Hook).map(|(_, parts)| parts).collect()
    }
}
