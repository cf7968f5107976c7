//! The search for a key in a table ([`TableLayout`]).
//!
//! Programs must end, so a search looks at a limited number of slots. A hit whose search ends there is a drop. The table
//! has twice as many slots as entries, so searches are short.

use super::update::KeyPlace;
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Label, MapRef, Reg, Width},
        lower::emitter::Emitter,
    },
    plan::hist::table::{CLOSED, SEED, SLOTS, TableLayout, USED},
};

/// Number of looks at slots in a search.
const LOOKS: i32 = 128;
/// An odd number whose bits are spread: the fraction of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A table and a key.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) places: Places,
    pub(super) map: MapRef,
    pub(super) table: &'a TableLayout,
    /// At least as long as the table's keys.
    pub(super) key: KeyPlace,
}

/// Places on the stack, which all searches of a program share.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// The slot's word while its entry is being made.
    tag: i16,
    index: i16,
    entry: i16,
}

impl Places {
    pub(super) fn new(emit: &mut Emitter) -> Self {
        Self { tag: emit.alloc(8), index: emit.alloc(8), entry: emit.alloc(8) }
    }
}

impl Search<'_> {
    fn words(&self) -> impl Iterator<Item = i16> + use<> {
        (0..self.table.key_size as i16).step_by(8)
    }

    /// R4 = number of the key's entry. Jumps to `missing` if there is none.
    pub(super) fn find(&self, emit: &mut Emitter, missing: Label) {
        let [found, again] = emit.labels();
        self.walk(emit, found, again, missing, missing);
        emit.bind(found);
    }

    /// R4 = number of the key's entry, which is made if there is none. `fill` writes what a new entry has; it gets the
    /// place of the entry's number on the stack. Jumps to `full` if no entry is left.
    pub(super) fn find_or_make(&self, emit: &mut Emitter, full: Label, fill: impl FnOnce(&mut Emitter, i16)) {
        let [found, again, empty, undo] = emit.labels();
        let entries = self.table.entries.cast_signed();
        self.walk(emit, found, again, empty, full);

        emit.note("new entry");
        emit.bind(empty);
        emit.map_value(Reg::R2, self.map);
        emit.load(Width::D, Reg::R0, Reg::R2, USED as i16);
        emit.jump_if(Cond::Ge, Reg::R0, entries, full);
        self.slot(emit);
        emit.mov(Reg::R0, 0);
        emit.load(Width::D, Reg::R5, Reg::R10, self.places.tag);
        emit.atomic(Width::D, Atomic::CompareExchange, Reg::R2, SLOTS as i16, Reg::R5);
        // Another CPU claimed the slot, perhaps for the same key.
        emit.jump_if(Cond::Ne, Reg::R0, 0, again);
        emit.store(Width::D, Reg::R10, self.places.index, Reg::R1);
        emit.map_value(Reg::R2, self.map);
        emit.mov(Reg::R4, 1);
        emit.atomic(Width::D, Atomic::Add, Reg::R2, USED as i16, Reg::R4);
        emit.jump_if(Cond::Ge, Reg::R4, entries, undo);
        emit.store(Width::D, Reg::R10, self.places.entry, Reg::R4);
        self.key_of(emit);
        emit.copy_words((Reg::R2, 0), (self.key.base, self.key.at), self.table.key_size);
        fill(emit, self.places.entry);
        // The exchange comes after all stores to key and entry.
        emit.load(Width::D, Reg::R1, Reg::R10, self.places.index);
        emit.alu(Alu::And, Reg::R1, self.table.slots().cast_signed() - 1);
        self.slot(emit);
        emit.load(Width::D, Reg::R4, Reg::R10, self.places.entry);
        emit.alu(Alu::And, Reg::R4, entries - 1);
        emit.load(Width::D, Reg::R5, Reg::R10, self.places.tag);
        emit.alu(Alu::Or, Reg::R5, Reg::R4);
        emit.alu(Alu::Add, Reg::R5, 1);
        emit.atomic(Width::D, Atomic::Exchange, Reg::R2, SLOTS as i16, Reg::R5);
        emit.jump(found);

        emit.bind(undo);
        self.slot(emit);
        emit.store(Width::D, Reg::R2, SLOTS as i16, 0);
        emit.jump(full);
        emit.bind(found);
    }

    /// Jumps to `out` while the table is being cleared.
    pub(super) fn leave_if_closed(&self, emit: &mut Emitter, out: Label) {
        emit.map_value(Reg::R2, self.map);
        emit.load(Width::D, Reg::R0, Reg::R2, CLOSED as i16);
        emit.jump_if(Cond::Ne, Reg::R0, 0, out);
    }

    /// `to` = address of the entry with the number in R4. `cpu` is the place of the CPU's number on the stack, if each
    /// CPU has a copy; jumps to `out` if there is no such CPU.
    pub(super) fn entry(&self, emit: &mut Emitter, to: Reg, cpu: Option<(i16, Label)>) {
        emit.mov(Reg::R5, Reg::R4);
        emit.alu(Alu::Mul, Reg::R5, self.table.entry_size as i32);
        if let Some((cpu, out)) = cpu {
            emit.load(Width::D, Reg::R1, Reg::R10, cpu);
            emit.jump_if(Cond::Ge, Reg::R1, self.table.copies.cast_signed(), out);
            emit.alu(Alu::Mul, Reg::R1, self.table.region() as i32);
            emit.alu(Alu::Add, Reg::R5, Reg::R1);
        }
        emit.map_value(to, self.map);
        emit.alu(Alu::Add, to, Reg::R5);
        emit.alu(Alu::Add, to, self.table.values() as i32);
    }

    /// Looks at one slot after the other. At `found`, R4 = the entry's number; at `empty`, R1 = the slot's index, and a
    /// jump to `again` looks at the slot once more. After the last look the program continues at `end`.
    fn walk(&self, emit: &mut Emitter, found: Label, again: Label, empty: Label, end: Label) {
        let look = emit.label();
        self.begin(emit);
        emit.bind(look);
        self.look(emit, empty, found, again);
        emit.alu(Alu::Add, Reg::R1, 1);
        emit.bind(again);
        emit.alu(Alu::Add, Reg::R3, -1);
        emit.jump_if(Cond::Ne, Reg::R3, 0, look);
        emit.jump(end);
    }

    /// R1 = index of the first slot, R3 = number of looks.
    fn begin(&self, emit: &mut Emitter) {
        // No client can choose keys that meet in one slot. And the verifier does not know the hash of a known key, so it
        // checks the search once for all keys.
        emit.map_value(Reg::R1, self.map);
        emit.load(Width::D, Reg::R1, Reg::R1, SEED as i16);
        emit.constant(Reg::R2, MULTIPLIER);
        for word in self.words() {
            emit.load(Width::D, Reg::R0, self.key.base, self.key.at + word);
            emit.alu(Alu::Xor, Reg::R1, Reg::R0);
            emit.alu(Alu::Mul, Reg::R1, Reg::R2);
            emit.mov(Reg::R0, Reg::R1);
            emit.alu(Alu::Rsh, Reg::R0, 32);
            emit.alu(Alu::Xor, Reg::R1, Reg::R0);
        }
        emit.alu(Alu::Or, Reg::R0, 1);
        emit.alu(Alu::Lsh, Reg::R0, 32);
        emit.store(Width::D, Reg::R10, self.places.tag, Reg::R0);
        emit.mov(Reg::R3, LOOKS);
    }

    /// Looks at the slot with the index in R1. If it has the key, R4 = the entry's number, and the program continues at
    /// `found`. It continues at `again` to look at the slot once more, and after this code to look at the next one.
    fn look(&self, emit: &mut Emitter, empty: Label, found: Label, again: Label) {
        let other = emit.label();
        emit.alu(Alu::And, Reg::R1, self.table.slots().cast_signed() - 1);
        self.slot(emit);
        emit.load(Width::D, Reg::R4, Reg::R2, SLOTS as i16);
        emit.jump_if(Cond::Eq, Reg::R4, 0, empty);
        emit.load(Width::D, Reg::R0, Reg::R10, self.places.tag);
        emit.alu(Alu::Xor, Reg::R4, Reg::R0);
        emit.mov(Reg::R0, Reg::R4);
        emit.alu(Alu::Rsh, Reg::R0, 32);
        emit.jump_if(Cond::Ne, Reg::R0, 0, other);
        // The entry is being made.
        emit.jump_if(Cond::Eq, Reg::R4, 0, again);
        emit.alu(Alu::Add, Reg::R4, -1);
        self.key_of(emit);
        // A branch for each word would be a path for each word to the verifier.
        emit.mov(Reg::R5, 0);
        for word in self.words() {
            emit.load(Width::D, Reg::R0, Reg::R2, word);
            emit.load(Width::D, Reg::R9, self.key.base, self.key.at + word);
            emit.alu(Alu::Xor, Reg::R0, Reg::R9);
            emit.alu(Alu::Or, Reg::R5, Reg::R0);
        }
        emit.jump_if(Cond::Eq, Reg::R5, 0, found);
        emit.bind(other);
    }

    /// R2 = address of the slot with the index in R1, less [`SLOTS`].
    fn slot(&self, emit: &mut Emitter) {
        emit.mov(Reg::R5, Reg::R1);
        emit.alu(Alu::Lsh, Reg::R5, 3);
        emit.map_value(Reg::R2, self.map);
        emit.alu(Alu::Add, Reg::R2, Reg::R5);
    }

    /// R2 = address of the key of the entry with the number in R4, which is limited to the numbers of entries.
    fn key_of(&self, emit: &mut Emitter) {
        emit.alu(Alu::And, Reg::R4, self.table.entries.cast_signed() - 1);
        emit.mov(Reg::R5, Reg::R4);
        emit.alu(Alu::Mul, Reg::R5, self.table.key_size as i32);
        emit.map_value(Reg::R2, self.map);
        emit.alu(Alu::Add, Reg::R2, Reg::R5);
        emit.alu(Alu::Add, Reg::R2, self.table.keys() as i32);
    }
}
