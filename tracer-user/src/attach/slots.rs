//! The slots of a session: which rows of its counters are in use.
//!
//! All users of a slot share its [`SlotLease`]: the attached event, and the links that background threads close. The
//! slot is free again when the last of them is dropped, and nothing else frees slots.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::event::Slot;

/// The slots of a session.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Slots that were never used: from here, up to but not including `end`.
    next: u32,
    end: u32,
    /// Whether the highest unused slot is taken first.
    descends: bool,
    /// Slots that were used before and are free again.
    free: BTreeSet<Slot>,
    capacity: u32,
}

/// A slot in use. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct SlotLease {
    slot: Slot,
    slots: Slots,
}

impl Slots {
    /// No slot is in use yet.
    pub(super) fn new(capacity: u32) -> Self {
        Self::of(capacity, false)
    }

    /// No slot is in use yet. The highest slots are taken first.
    pub(super) fn from_the_top(capacity: u32) -> Self {
        Self::of(capacity, true)
    }

    fn of(capacity: u32, descends: bool) -> Self {
        let state = State { next: 0, end: capacity, descends, free: BTreeSet::new(), capacity };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.lock().capacity
    }

    /// Reserves a slot and all above it for another owner of slots, which takes from the top. Returns whether the
    /// slot exists and this owner has used none of them.
    pub(super) fn leave_above(&self, slot: Slot) -> bool {
        let mut state = self.lock();
        state.end = state.end.min(slot.get().max(state.next));
        state.next <= slot.get() && slot.get() < state.capacity
    }

    /// Takes an unused slot, or `None` if all are in use.
    pub(super) fn take(&self) -> Option<Arc<SlotLease>> {
        let mut state = self.lock();
        let free = if state.descends { state.free.pop_last() } else { state.free.pop_first() };
        let slot = match free {
            Some(slot) => slot,
            None if state.next == state.end => return None,
            None if state.descends => {
                state.end -= 1;
                Slot::new(state.end)
            }
            None => {
                state.next += 1;
                Slot::new(state.next - 1)
            }
        };
        drop(state);
        Some(Arc::new(SlotLease { slot, slots: self.clone() }))
    }
}

impl SlotLease {
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.slots.lock().free.insert(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_after_its_last_lease() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!([first.slot(), second.slot()].map(Slot::get), [0, 1]);
        let link = Arc::clone(&first);
        drop(first);
        assert!(slots.take().is_none());
        drop(link);
        assert_eq!(slots.take().unwrap().slot().get(), 0);
    }

    #[test]
    fn two_owners_take_slots_from_both_ends() {
        let (session, points) = (Slots::new(3), Slots::from_the_top(3));
        let (first, point) = (session.take().unwrap(), points.take().unwrap());
        assert_eq!([first.slot(), point.slot()].map(Slot::get), [0, 2]);
        assert!(session.leave_above(point.slot()));
        let _second = session.take().unwrap();
        assert!(session.take().is_none());
        assert!(!session.leave_above(points.take().unwrap().slot()));
    }
}
