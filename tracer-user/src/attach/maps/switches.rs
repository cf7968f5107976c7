//! The switches of a session in memory that its programs read: tracing, soft-disabled events, triggers and histograms.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
};

use tracer_abi::{HISTS, SOFT_SLOTS, Switches as Words, halted};

use crate::{
    event::Slot,
    sys::bpf::map::{Map, MappedArray},
};

/// The switches of a session. Each is one word, which user space and programs read and write at any time.
#[derive(Debug)]
pub struct Switches {
    map: Map,
    words: MappedArray,
}

/// Byte offset of an event's word. Slots after the last word share words with other slots, and nothing reads these.
fn soft_offset(slot: Slot) -> usize {
    offset_of!(Words, soft) + 4 * (slot.index() % SOFT_SLOTS)
}

fn paused_offset(place: u16) -> usize {
    offset_of!(Words, paused) + 4 * (usize::from(place) % HISTS)
}

fn awaited_offset(place: u16) -> usize {
    offset_of!(Words, awaited) + 4 * (usize::from(place) % HISTS)
}

fn count_offset(place: u16) -> usize {
    offset_of!(Words, counts) + 8 * usize::from(place)
}

impl Switches {
    /// The switches in a map and its memory; tracing is off.
    pub(crate) fn new(map: Map, words: MappedArray) -> Self {
        let switches = Self { map, words };
        switches.set_tracing(false);
        switches
    }

    /// Sets or clears one of the reasons in [`halted`] not to take hits.
    fn halt(&self, reason: u32, halt: bool) {
        let _ = self.words.change(offset_of!(Words, halted), reason, halt);
    }

    /// Turns tracing on or off, at once and on all CPUs.
    pub fn set_tracing(&self, on: bool) {
        self.halt(halted::OFF, !on);
    }

    /// Whether hits are taken, as user space or a trigger set it last.
    pub fn is_tracing(&self) -> bool {
        self.words.load_word(offset_of!(Words, halted)).unwrap_or(0) & halted::OFF == 0
    }

    /// Stops hits independently of [`Switches::set_tracing`], while a reader needs it.
    pub fn pause(&self, paused: bool) {
        self.halt(halted::PAUSED, paused);
    }

    /// Sets which lists of threads are active, bits of [`tracer_abi::lists`]. Only a session created with
    /// [`Options::pid_lists`](crate::attach::Options::pid_lists) has lists.
    pub fn set_lists(&self, active: u8) {
        let _ = self.words.store(offset_of!(Words, lists), u32::from(active));
    }

    /// Sets how many bytes of a system call's user memory a record has at most.
    pub fn set_user_data(&self, bytes: u32) {
        let _ = self.words.store(offset_of!(Words, user_data), bytes);
    }

    /// Whether a trigger or [`Switches::set_soft`] disabled the event at this slot.
    pub fn soft(&self, slot: Slot) -> bool {
        self.words.load_word(soft_offset(slot)).is_some_and(|word| word != 0)
    }

    /// Disables or enables an event whose request sets [`HitActions::soft`](crate::attach::HitActions::soft).
    pub fn set_soft(&self, slot: Slot, off: bool) {
        let _ = self.words.store(soft_offset(slot), u32::from(off));
    }

    /// How often a trigger may still act; `place` as in [`trigger::Count`](crate::plan::trigger::Count).
    pub fn count(&self, place: u16) -> u64 {
        self.words.load(count_offset(place)).unwrap_or(0)
    }

    /// Sets how often a trigger may act.
    pub fn set_count(&self, place: u16, count: u64) {
        let _ = self.words.store_long(count_offset(place), count);
    }

    /// Whether a histogram is paused, as user space or a trigger set it last.
    pub fn hist_paused(&self, place: u16) -> bool {
        self.words.load_word(paused_offset(place)).is_some_and(|word| word != 0)
    }

    /// Pauses or continues a histogram.
    pub fn pause_hist(&self, place: u16, paused: bool) {
        let _ = self.words.store(paused_offset(place), u32::from(paused));
    }

    /// Sets the request for the next hit that a histogram counts ([`tracer_abi::hist`]). Returns whether a hit was
    /// counted since the last call.
    pub fn await_hist(&self, place: u16, request: u32) -> bool {
        self.words.swap(awaited_offset(place), request) == Some(0)
    }

    /// Whether a trigger requested a snapshot while the ring of control records was full, since the last call.
    pub fn lost_snapshot(&self) -> bool {
        self.words.swap(offset_of!(Words, snapshot), 0).is_some_and(|word| word != 0)
    }
}

impl AsFd for Switches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
