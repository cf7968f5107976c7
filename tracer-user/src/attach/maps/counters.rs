//! The counters of a session: a row for each slot, with a column for each CPU.

use std::os::fd::{AsFd, BorrowedFd};

use tracer_abi::Counters;

use crate::{
    event::Slot,
    sys::bpf::map::{Map, MappedArray},
};

/// The counters of a session's events.
#[derive(Debug)]
pub struct CounterTable {
    map: Map,
    words: MappedArray,
    /// Whether all rows are one value, which programs access by its address.
    one_value: bool,
    cpus: u32,
}

impl CounterTable {
    pub(super) fn new(map: Map, words: MappedArray, one_value: bool, cpus: u32) -> Self {
        Self { map, words, one_value, cpus }
    }

    /// The counts of an event on a CPU.
    pub fn of(&self, slot: Slot, cpu: u32) -> Counters {
        let column = slot.index() * self.cpus as usize + cpu as usize;
        let word = |at: usize| self.words.load(column * size_of::<Counters>() + at).unwrap_or(0);
        Counters { passed: word(0), filtered: word(8), recorded: word(16), dropped: word(24) }
    }

    /// The counts of an event on all CPUs.
    pub fn total(&self, slot: Slot) -> Counters {
        (0..self.cpus).map(|cpu| self.of(slot, cpu)).fold(Counters::default(), Counters::plus)
    }

    /// Clears an event's row. No program may use the row meanwhile.
    pub(crate) fn clear(&self, slot: Slot) {
        let row = self.cpus as usize * size_of::<Counters>();
        for at in (slot.index() * row..(slot.index() + 1) * row).step_by(4) {
            let _ = self.words.store(at, 0);
        }
    }

    pub(crate) fn is_one_value(&self) -> bool {
        self.one_value
    }
}

impl AsFd for CounterTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
