//! The bits that address spaces registered to be updated, and the address spaces.

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

/// The address of the byte that contains a bit of a word, and the number of the bit in that byte.
pub(super) fn place(address: u64, bit: u8) -> (u64, u8) {
    let at = if cfg!(target_endian = "little") { bit / 8 } else { 7 - bit / 8 };
    (address.wrapping_add(u64::from(at)), 1 << (bit % 8))
}

/// A registered bit: the event whose state it shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Enabler {
    pub(super) event: EventId,
    /// A key that orders the writes for it in one address space.
    pub(super) key: u64,
    /// The payer that registered it.
    pub(super) payer: u32,
}

/// The registered bits of one or more address spaces that have the same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct EnablerList {
    /// By address and bit.
    pub(super) enablers: BTreeMap<(u64, u8), Enabler>,
    /// Event, address, bit.
    pub(super) by_event: BTreeSet<(EventId, u64, u8)>,
    pub(super) spaces: BTreeSet<u64>,
}

impl EnablerList {
    pub(super) fn has_event(&self, event: EventId) -> bool {
        self.places(event).next().is_some()
    }

    pub(super) fn places(&self, event: EventId) -> impl Iterator<Item = (u64, u8)> {
        let of_event = self.by_event.range((event, 0, 0)..=(event, u64::MAX, u8::MAX));
        of_event.map(|(_, address, bit)| (*address, *bit))
    }

    /// The events, each once.
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
    pub(super) payer: u32,
    pub(super) process: u32,
    /// `None` before its memory is opened.
    pub(super) lane: Option<u64>,
    pub(super) identity: Arc<[u8]>,
    /// Processes that share it, usually one.
    pub(super) tasks: BTreeMap<u32, Charge>,
    /// The number of its list of bits.
    pub(super) list: u64,
    /// The charges for its bits, one per payer.
    pub(super) charges: Vec<Charge>,
}

impl Space {
    pub(super) fn count(&mut self, charge: Charge) {
        match self.charges.iter_mut().find(|known| known.payer() == charge.payer()) {
            Some(known) => known.absorb(charge),
            None => self.charges.push(charge),
        }
    }

    pub(super) fn release_charge(&mut self, payer: u32) {
        // The charges of a child all belong to one payer.
        let own = self.charges.iter().position(|charge| charge.payer() == payer && charge.amount() > 0);
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
