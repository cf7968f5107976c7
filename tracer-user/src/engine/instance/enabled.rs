//! The events that an instance has on, with a count of changes, so that nobody has to look through them to see that none changed.
//! Its functions are those of the set.

use std::collections::BTreeSet;

/// Numbers of events.
#[derive(Debug, Default)]
pub(super) struct Enabled {
    events: BTreeSet<u32>,
    changes: u64,
}

impl Enabled {
    /// Adds an event; whether it was not there.
    pub(super) fn insert(&mut self, event: u32) -> bool {
        let new = self.events.insert(event);
        self.changes += u64::from(new);
        new
    }

    /// Takes an event out; whether it was there.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn remove(&mut self, event: &u32) -> bool {
        let gone = self.events.remove(event);
        self.changes += u64::from(gone);
        gone
    }

    /// Whether an event is there.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn contains(&self, event: &u32) -> bool {
        self.events.contains(event)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &u32> {
        self.events.iter()
    }

    /// Counts up whenever an event came or went.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_something_counts() {
        let mut all = Enabled::default();
        assert!(all.insert(3) && !all.insert(3) && !all.remove(&4));
        assert_eq!((all.changes(), all.contains(&3)), (1, true));
        assert!(all.insert(1) && all.iter().eq(&[1, 3]) && all.remove(&3));
        assert_eq!((all.changes(), all.contains(&3)), (3, false));
    }
}
