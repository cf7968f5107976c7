//! What address spaces asked for, and an address space that did.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{
        client_memory::{Bit, Op},
        quota::Charge,
    },
    event::EventId,
};

/// The byte of a word in which a bit is, and the bit in that.
pub(super) fn place(address: u64, bit: u8) -> (u64, u8) {
    let at = if cfg!(target_endian = "little") { bit / 8 } else { 7 - bit / 8 };
    (address.wrapping_add(u64::from(at)), 1 << (bit % 8))
}

/// Who wants to know of which event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Enabler {
    pub(super) event: EventId,
    /// A number by which writes for it into one address space follow each other.
    pub(super) key: u64,
    /// Whose it is.
    pub(super) uid: u32,
}

/// What some address spaces asked for, all of them the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// By address and bit.
    pub(super) enablers: BTreeMap<(u64, u8), Enabler>,
    /// Event, address, bit.
    pub(super) by_event: BTreeSet<(EventId, u64, u8)>,
    pub(super) spaces: BTreeSet<u64>,
}

impl Asked {
    pub(super) fn has_event(&self, event: EventId) -> bool {
        self.places(event).next().is_some()
    }

    pub(super) fn places(&self, event: EventId) -> impl Iterator<Item = (u64, u8)> {
        let of_event = self.by_event.range((event, 0, 0)..=(event, u64::MAX, u8::MAX));
        of_event.map(|(_, address, bit)| (*address, *bit))
    }

    /// Its events, each once.
    pub(super) fn events(&self) -> impl Iterator<Item = EventId> {
        let mut last = None;
        self.by_event
            .iter()
            .filter_map(move |(event, ..)| (last.replace(*event) != Some(*event)).then_some(*event))
    }

    pub(super) fn op(&self, space: u64, (address, bit): (u64, u8), on: bool) -> Option<Op> {
        let key = self.enablers.get(&(address, bit))?.key;
        Some(op(space, key, address, bit, on))
    }
}

#[derive(Debug)]
pub(super) struct Space {
    pub(super) uid: u32,
    pub(super) process: u32,
    /// None before its memory is opened.
    pub(super) lane: Option<u64>,
    pub(super) identity: Arc<[u8]>,
    /// Processes that have it, mostly one.
    pub(super) tasks: BTreeMap<u32, Charge>,
    /// What it asked for.
    pub(super) asked: u64,
    /// For that, one charge of each uid.
    pub(super) charges: Vec<Charge>,
}

impl Space {
    pub(super) fn count(&mut self, charge: Charge) {
        match self.charges.iter_mut().find(|known| known.uid() == charge.uid()) {
            Some(known) => known.absorb(charge),
            None => self.charges.push(charge),
        }
    }

    pub(super) fn count_no_more(&mut self, uid: u32) {
        // A child's are all of one uid.
        let own = self.charges.iter().position(|charge| charge.uid() == uid && charge.amount() > 0);
        let any = || self.charges.iter().position(|charge| charge.amount() > 0);
        if let Some(charge) = own.or_else(any).and_then(|place| self.charges.get_mut(place)) {
            charge.give_one_back();
        }
    }
}

pub(super) fn op(space: u64, key: u64, address: u64, bit: u8, on: bool) -> Op {
    let (at, mask) = place(address, bit);
    Op { space, key, bit: Some(Bit { at, mask, on }), words: Vec::new() }
}
