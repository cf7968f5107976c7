//! The parts of programs that receive the records of an event without a hook.
//!
//! They are plain data and can be compared: a program whose parts equal the wanted ones needs no change.

use super::event_config::EventSettings;
use crate::{
    code::lower::hist::Entry,
    event::{EventId, InstanceId, Slot},
    lang::hist::TriggerId,
    plan::source::ProgramContext,
};

/// A part of a program, which receives records of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Records an event of which it receives complete records, with the counters of a slot.
    Record {
        instance: InstanceId,
        event: EventId,
        slot: Option<Slot>,
        irqs_off: bool,
        settings: EventSettings,
    },
    /// Counts in a histogram.
    Count(CountPart),
    /// Makes the records of an event probe, and passes them to parts.
    Relay { event: EventId, context: ProgramContext, parts: Vec<Self> },
    /// Emits a synthetic event, and passes its records to parts.
    Emit { event: EventId, parts: Vec<Self> },
    /// More parts than a program may have.
    TooMany,
}

/// The update of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountPart {
    pub(crate) instance: InstanceId,
    pub(crate) trigger: TriggerId,
    pub(crate) entry: Entry,
    /// By action, the emission of its synthetic event.
    pub(crate) emissions: Vec<Option<Part>>,
}
