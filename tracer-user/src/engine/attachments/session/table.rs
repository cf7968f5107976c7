//! The table of an instance's attached programs, by event and role.

use std::collections::HashMap;

use crate::{
    attach::Attached,
    engine::hooks::AttachPlan,
    event::{EventId, Slot},
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

    fn slot(&self) -> Option<Slot> {
        self.attached.slot()
    }
}

/// The programs of one event in one role: one, or one for each probe. `None` stands for a probe that waits for its
/// module.
#[derive(Debug, Default)]
pub(crate) struct AttachedParts(pub(crate) Vec<Option<AttachedPart>>);

impl From<AttachedPart> for AttachedParts {
    fn from(part: AttachedPart) -> Self {
        Self(vec![Some(part)])
    }
}

impl AttachedParts {
    /// The attached programs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AttachedPart> {
        self.0.iter().flatten()
    }

    /// The attached programs, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut AttachedPart> {
        self.0.iter_mut().flatten()
    }

    /// Hits and misses of each probe since it was attached. Probes that share a link count none, because no file
    /// shows the counts of function events (`f`).
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let count = |part: &AttachedPart| (part.attached.hits(), part.attached.missed());
        self.0.iter().map(|part| part.as_ref().map_or((0, 0), count)).collect()
    }

    /// For each probe, whether it waits for its module.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = bool> {
        self.0.iter().map(Option::is_none)
    }

    /// The programs, without their plans.
    pub(crate) fn into_attached(self) -> impl Iterator<Item = Attached> {
        self.0.into_iter().flatten().map(|part| part.attached)
    }

    /// The slots of the programs.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.iter().filter_map(AttachedPart::slot)
    }
}

/// All attached programs of an instance.
#[derive(Debug, Default)]
pub(crate) struct AttachedTable(HashMap<(EventId, ProgramRole), AttachedParts>);

impl AttachedTable {
    pub(crate) fn get(&self, event: EventId, role: ProgramRole) -> Option<&AttachedParts> {
        self.0.get(&(event, role))
    }

    /// The first program of an event in a role.
    pub(crate) fn first(&self, event: EventId, role: ProgramRole) -> Option<&AttachedPart> {
        self.get(event, role)?.iter().next()
    }

    pub(crate) fn first_mut(&mut self, event: EventId, role: ProgramRole) -> Option<&mut AttachedPart> {
        self.0.get_mut(&(event, role))?.iter_mut().next()
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

    /// The programs that make an event attached.
    pub(crate) fn of_event(&self, event: EventId) -> impl Iterator<Item = &AttachedPart> {
        EVENT_ROLES.into_iter().filter_map(move |role| self.get(event, role)).flat_map(AttachedParts::iter)
    }

    /// The events that are attached.
    pub(crate) fn events(&self) -> impl Iterator<Item = EventId> {
        self.0.keys().filter(|(_, role)| EVENT_ROLES.contains(role)).map(|(event, _)| *event)
    }

    /// All programs in a role.
    pub(crate) fn in_role(&self, role: ProgramRole) -> impl Iterator<Item = &AttachedPart> {
        self.0.iter().filter(move |((_, own), _)| *own == role).flat_map(|(_, parts)| parts.iter())
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
