//! The slots of a session: which rows of its counters are in use.
//!
//! A [`SlotLease`] is shared by all that refers to a slot: the attached event, and the links that background threads close. The slot
//! is free again when the last of them is dropped, and nothing else frees slots.

use std::sync::{Arc, Mutex, PoisonError};

use crate::event::Slot;

/// The slots of a session.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The lowest slot that was never used.
    next: u32,
    /// Slots that were used before and are free again.
    free: Vec<Slot>,
    capacity: u32,
}

/// A slot in use. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct SlotLease {
    slot: Slot,
    slots: Slots,
}

impl Slots {
    /// No slot is in use yet.
    pub(super) fn new(capacity: u32) -> Self {
        Self(Arc::new(Mutex::new(State { next: 0, free: Vec::new(), capacity })))
    }

    /// Takes an unused slot, or `None` if all are in use.
    pub(super) fn take(&self) -> Option<Arc<SlotLease>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.next < state.capacity => {
                state.next += 1;
                Slot::new(state.next - 1)
            }
            None => return None,
        };
        Some(Arc::new(SlotLease { slot, slots: self.clone() }))
    }
}

impl SlotLease {
    /// The slot.
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.slots.0.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.slot);
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
}
