//! The ids of events that the kernel does not know, with the printers of their records.
//!
//! Records begin with the id of their event, so an id and its printer belong together until the last record is gone.
//! The id of a deleted event stays taken until [`DefinedIds::release`]. An id that had records is given to another
//! event only after all other ids were used: a program that runs for long may have made a last record.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    event::{DEFINED_IDS, EventId},
    render::Printer,
};

#[derive(Clone, Debug)]
struct TakenId {
    /// The event's number; `None` once the event is deleted.
    event: Option<EventId>,
    printer: Arc<Printer>,
}

#[derive(Clone, Debug)]
pub(super) struct DefinedIds {
    taken: HashMap<u16, TakenId>,
    /// The first id that was never taken.
    next: u16,
    /// Released ids without records.
    unused: BTreeSet<u16>,
    /// Released ids that had records, in the order of their release.
    used: VecDeque<u16>,
}

impl Default for DefinedIds {
    fn default() -> Self {
        Self {
            taken: HashMap::new(),
            next: DEFINED_IDS.start,
            unused: BTreeSet::new(),
            used: VecDeque::new(),
        }
    }
}

impl DefinedIds {
    /// The id for a new event: the lowest one that had no records, or the one that was released first. `None` if all
    /// are taken.
    pub(super) fn free(&self) -> Option<u16> {
        let fresh = Some(self.next).filter(|id| DEFINED_IDS.contains(id));
        self.unused.first().copied().or(fresh).or_else(|| self.used.front().copied())
    }

    pub(super) fn take(&mut self, id: u16, event: EventId, printer: &Arc<Printer>) {
        if id >= self.next {
            self.unused.extend(self.next..id);
            self.next = id.saturating_add(1);
        } else if !self.unused.remove(&id) {
            self.used.retain(|used| *used != id);
        }
        self.taken.insert(id, TakenId { event: Some(event), printer: Arc::clone(printer) });
    }

    /// Notes that the event of an id is deleted. Returns whether the event had the id.
    pub(super) fn retire(&mut self, id: u16, event: EventId) -> bool {
        let own = self.taken.get_mut(&id).filter(|taken| taken.event == Some(event));
        own.is_some_and(|taken| taken.event.take().is_some())
    }

    /// Releases the id of a deleted event, which may have had records.
    pub(super) fn release(&mut self, id: u16, had_records: bool) {
        if self.taken.get(&id).is_none_or(|taken| taken.event.is_some()) {
            return;
        }
        self.taken.remove(&id);
        if had_records {
            self.used.push_back(id);
        } else {
            self.unused.insert(id);
        }
    }

    /// The event with an id, unless it is deleted.
    pub(super) fn event(&self, id: u16) -> Option<EventId> {
        self.taken.get(&id)?.event
    }

    /// The printer of the records with an id. The event may be deleted.
    pub(super) fn printer(&self, id: u16) -> Option<&Arc<Printer>> {
        Some(&self.taken.get(&id)?.printer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::registry::catalogue;

    const FIRST: u16 = DEFINED_IDS.start;

    fn printer(id: u16) -> Arc<Printer> {
        Arc::new(catalogue::made("mine", "x", id).printer)
    }

    fn take(ids: &mut DefinedIds, number: u32) -> u16 {
        let id = ids.free().unwrap();
        ids.take(id, EventId::new(number), &printer(id));
        id
    }

    #[test]
    fn the_id_of_a_deleted_event_stays_taken_until_it_is_released() {
        let mut ids = DefinedIds::default();
        assert_eq!((take(&mut ids, 1), take(&mut ids, 2)), (FIRST, FIRST + 1));
        assert!(!ids.retire(FIRST, EventId::new(2)) && ids.retire(FIRST, EventId::new(1)));
        assert!(!ids.retire(FIRST, EventId::new(1)));
        assert_eq!((ids.event(FIRST), ids.event(FIRST + 1)), (None, Some(EventId::new(2))));
        assert_eq!(ids.printer(FIRST).map(|printer| printer.format().id), Some(FIRST));
        assert_eq!(ids.free(), Some(FIRST + 2));
        ids.release(FIRST, false);
        assert!(ids.printer(FIRST).is_none());
        assert_eq!(ids.free(), Some(FIRST));
        // The id of a live event is not released.
        ids.release(FIRST + 1, false);
        assert_eq!(ids.event(FIRST + 1), Some(EventId::new(2)));
    }

    #[test]
    fn ids_that_had_records_are_used_last() {
        let mut ids = DefinedIds::default();
        for id in [FIRST + 2, FIRST, FIRST + 1] {
            ids.take(id, EventId::new(u32::from(id)), &printer(id));
        }
        for (id, had_records) in [(FIRST + 1, true), (FIRST, true), (FIRST + 2, false)] {
            assert!(ids.retire(id, EventId::new(u32::from(id))));
            ids.release(id, had_records);
        }
        let mut all: Vec<u16> = (0..DEFINED_IDS.len() as u32).map(|number| take(&mut ids, number)).collect();
        assert_eq!(ids.free(), None);
        assert_eq!((all[0], all[1]), (FIRST + 2, FIRST + 3));
        assert_eq!(all[all.len() - 2..], [FIRST + 1, FIRST]);
        all.sort_unstable();
        assert!(all.into_iter().eq(DEFINED_IDS));
    }
}
