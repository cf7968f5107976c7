//! The triggers of an event, resolved: the action of each, its count and its filter.
//!
//! The list is in the kernel's order, in which the triggers act. The words that they change are named by their place in
//! [`tracer_abi::Switches`].

use std::fmt;

use super::filter::Filter;
use crate::event::Slot;

/// A trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The action at a hit.
    pub action: Action,
    /// Maximum number of times that the trigger acts; None if unlimited.
    pub count: Option<Count>,
    /// Condition that a hit must meet; None accepts all hits.
    pub filter: Option<Filter>,
}

/// The action of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Enables recording.
    TraceOn,
    /// Disables recording after the event is recorded.
    TraceOff,
    /// Requests a snapshot.
    Snapshot,
    /// Requests a record of the kernel's stack after the event is recorded.
    StackTrace,
    /// Enables or disables the event at a slot.
    Event {
        /// The slot, below [`tracer_abi::SOFT_SLOTS`].
        slot: Slot,
        /// Whether to enable it.
        enable: bool,
    },
    /// Resumes or pauses histograms.
    Hists {
        /// Their places in [`tracer_abi::Switches::paused`].
        places: Vec<u16>,
        /// Whether to resume them.
        enable: bool,
    },
}

/// A trigger's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Place in [`tracer_abi::Switches::counts`].
    pub place: u16,
    /// Whether it can be used up. A count that the kernel's sign makes negative only decreases.
    pub limited: bool,
}

impl Action {
    /// Whether it acts only after the event is recorded (`EVENT_CMD_FL_POST_TRIGGER`).
    pub fn is_post(&self) -> bool {
        matches!(self, Self::TraceOff | Self::StackTrace)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TraceOn => f.write_str("traceon"),
            Self::TraceOff => f.write_str("traceoff"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::StackTrace => f.write_str("stacktrace"),
            Self::Event { slot, enable } => {
                write!(f, "{}able event at slot {slot}", if *enable { "en" } else { "dis" })
            }
            Self::Hists { places, enable } => {
                write!(f, "{}able histograms {places:?}", if *enable { "en" } else { "dis" })
            }
        }
    }
}

/// Whether the triggers need the record and therefore run late (`update_cond_flag()`).
pub fn sees_record(triggers: &[Trigger]) -> bool {
    triggers.iter().any(|trigger| trigger.filter.is_some() || trigger.action.is_post())
}

/// Whether a trigger enables recording.
pub fn turns_on(triggers: &[Trigger]) -> bool {
    triggers.iter().any(|trigger| trigger.action == Action::TraceOn)
}

/// Whether the stack is recorded before a trigger disables recording.
pub fn stack_first(triggers: &[Trigger]) -> bool {
    let place = |action: Action| triggers.iter().position(|trigger| trigger.action == action);
    matches!((place(Action::StackTrace), place(Action::TraceOff)), (Some(stack), Some(off)) if stack < off)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(actions: &[&Action]) -> Vec<Trigger> {
        actions
            .iter()
            .map(|action| Trigger { action: (*action).clone(), count: None, filter: None })
            .collect()
    }

    #[test]
    fn a_list_of_triggers_sets_the_templates_parameters() {
        let [on, off, stack] = [Action::TraceOn, Action::TraceOff, Action::StackTrace];
        assert!(!sees_record(&list(&[&on, &Action::Snapshot])) && sees_record(&list(&[&on, &stack])));
        let mut filtered = list(&[&on]);
        filtered[0].filter = Some(Filter::Const(true));
        assert!(sees_record(&filtered) && turns_on(&filtered) && !turns_on(&list(&[&off])));
        assert!(stack_first(&list(&[&stack, &off])));
        assert!(!stack_first(&list(&[&off, &stack])) && !stack_first(&list(&[&stack])));
    }
}
