//! The enabled events of an instance: a set with a count of its changes. An equal count means that the set is
//! unchanged.

use std::collections::BTreeSet;

use crate::event::EventId;

/// A set of events, with a count of its changes.
#[derive(Debug, Default)]
pub(crate) struct Enabled {
    events: BTreeSet<EventId>,
    changes: u64,
}

impl Enabled {
    /// Adds an event. Returns whether it is new.
    pub(crate) fn insert(&mut self, event: EventId) -> bool {
        let new = self.events.insert(event);
        self.changes += u64::from(new);
        new
    }

    /// Removes an event. Returns whether it was in the set.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn remove(&mut self, event: &EventId) -> bool {
        let gone = self.events.remove(event);
        self.changes += u64::from(gone);
        gone
    }

    /// Whether an event is in the set.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn contains(&self, event: &EventId) -> bool {
        self.events.contains(event)
    }

    /// All events, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &EventId> {
        self.events.iter()
    }

    /// Number of changes: how often an event was added or removed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_something_counts() {
        let mut all = Enabled::default();
        let [one, three, four] = [1, 3, 4].map(EventId::new);
        assert!(all.insert(three) && !all.insert(three) && !all.remove(&four));
        assert_eq!((all.changes(), all.contains(&three)), (1, true));
        assert!(all.insert(one) && all.iter().eq(&[one, three]) && all.remove(&three));
        assert_eq!((all.changes(), all.contains(&three)), (3, false));
    }
}
