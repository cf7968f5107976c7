//! The events that an instance has on, with a count of changes, so that nobody has to look through them to see that none changed.
//! Its functions are those of the set.

use std::collections::BTreeSet;

use crate::event::EventId;

/// Numbers of events.
#[derive(Debug, Default)]
pub(in crate::engine) struct Enabled {
    events: BTreeSet<EventId>,
    changes: u64,
}

impl Enabled {
    /// Adds an event; whether it was not there.
    pub(in crate::engine) fn insert(&mut self, event: EventId) -> bool {
        let new = self.events.insert(event);
        self.changes += u64::from(new);
        new
    }

    /// Takes an event out; whether it was there.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(in crate::engine) fn remove(&mut self, event: &EventId) -> bool {
        let gone = self.events.remove(event);
        self.changes += u64::from(gone);
        gone
    }

    /// Whether an event is there.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(in crate::engine) fn contains(&self, event: &EventId) -> bool {
        self.events.contains(event)
    }

    /// All of them, in order.
    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = &EventId> {
        self.events.iter()
    }

    /// Counts up whenever an event came or went.
    pub(in crate::engine) fn changes(&self) -> u64 {
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
