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
    order: Order,
    /// Slots that were used before and are free again. With [`Order::LongestUnused`], numbered as they were freed.
    free: BTreeSet<(u64, Slot)>,
    /// Slots that were freed so far.
    freed: u64,
    capacity: u32,
}

/// Which unused slot is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Lowest,
    Highest,
    /// The lowest that was never used, then the one that is free for the longest time.
    LongestUnused,
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
        Self::of(capacity, Order::Lowest)
    }

    /// No slot is in use yet. The highest slots are taken first.
    pub(super) fn from_the_top(capacity: u32) -> Self {
        Self::of(capacity, Order::Highest)
    }

    /// No slot is in use yet. A slot is used again as late as possible, because a program may still run that knows it.
    pub(super) fn longest_unused(capacity: u32) -> Self {
        Self::of(capacity, Order::LongestUnused)
    }

    fn of(capacity: u32, order: Order) -> Self {
        let state = State { next: 0, end: capacity, order, free: BTreeSet::new(), freed: 0, capacity };
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
        let free = match state.order {
            Order::LongestUnused if state.next < state.end => None,
            Order::Lowest | Order::LongestUnused => state.free.pop_first(),
            Order::Highest => state.free.pop_last(),
        };
        let slot = match free {
            Some((_, slot)) => slot,
            None if state.next == state.end => return None,
            None if state.order == Order::Highest => {
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
        let mut state = self.slots.lock();
        state.freed += 1;
        let number = if state.order == Order::LongestUnused { state.freed } else { 0 };
        state.free.insert((number, self.slot));
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
    fn the_slot_that_is_unused_for_longest_is_taken() {
        let slots = Slots::longest_unused(3);
        let [first, second] = [(); 2].map(|()| slots.take().unwrap());
        drop(second);
        let third = slots.take().unwrap();
        assert_eq!(third.slot().get(), 2);
        drop(first);
        assert_eq!(slots.take().unwrap().slot().get(), 1);
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
