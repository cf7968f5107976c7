//! The entry of a key: finds or creates it, and adds to its sums.
//!
//! An entry of one CPU is created from zeroes on the stack, with the task's name. An entry that all CPUs share is
//! created from an empty value, and the hit that created it then writes the name.

use super::{KeyPlace, Known, LowerError};
use crate::code::{
    asm::{Alu, Atomic, Cond, Helper, MapRef, Reg, Width},
    lower::Lower,
};
use crate::plan::source::ProgramContext;

/// `BPF_NOEXIST`
const NO_EXIST: i32 = 1;

impl Lower<'_> {
    /// Finds or creates the entry and adds to its sums. R9 = the entry, if CPUs share it.
    pub(super) fn update(&mut self, known: &Known<'_>, key: KeyPlace) -> Result<(), LowerError> {
        let mut addends = Vec::new();
        for value in &known.hist.fields[1..known.layout.sums] {
            self.asm.note(format!("value {}", String::from_utf8_lossy(&value.shown_name())));
            self.number_of(value, known)?;
            let slot = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, slot, Reg::R0);
            addends.push(slot);
        }
        if known.layout.is_shared() {
            self.shared_entry(known, key);
            self.add_for_all(known, &addends);
        } else {
            self.own_entry(known, key);
            self.add(known, &addends);
        }
        Ok(())
    }

    /// R0 = this CPU's entry.
    fn own_entry(&mut self, known: &Known<'_>, key: KeyPlace) {
        let layout = known.layout;
        let found = self.asm.label();
        self.asm.note("entry");
        self.entry(key);
        self.jump_if(Cond::Ne, Reg::R0, 0, found);
        let new = self.frame.take(layout.size, 0);
        for word in (0..layout.size as i16).step_by(8) {
            self.asm.store(Width::D, Reg::R10, new + word, 0);
        }
        if let Some(comm) = layout.comm {
            self.task_name(Reg::R10, new + comm as i16);
        }
        self.asm.map(Reg::R1, MapRef::HistTable);
        self.asm.address(Reg::R2, key.base, i32::from(key.at));
        self.asm.address(Reg::R3, Reg::R10, i32::from(new));
        self.asm.mov(Reg::R4, NO_EXIST);
        self.call(Helper::MapUpdateElem);
        self.entry(key);
        self.jump_if(Cond::Ne, Reg::R0, 0, found);
        self.full();
        self.bind(found);
    }

    /// R9 = the entry that all CPUs share.
    fn shared_entry(&mut self, known: &Known<'_>, key: KeyPlace) {
        let (made, found, done) = (self.frame.take(8, 0), self.asm.label(), self.asm.label());
        self.asm.note("entry");
        self.entry(key);
        self.jump_if(Cond::Ne, Reg::R0, 0, found);
        self.asm.map(Reg::R1, MapRef::HistTable);
        self.asm.address(Reg::R2, key.base, i32::from(key.at));
        self.asm.map_value(Reg::R3, MapRef::HistEmpty);
        self.asm.mov(Reg::R4, NO_EXIST);
        self.call(Helper::MapUpdateElem);
        self.asm.store(Width::D, Reg::R10, made, Reg::R0);
        self.entry(key);
        let Some(comm) = known.layout.comm else {
            self.jump_if(Cond::Ne, Reg::R0, 0, found);
            self.full();
            self.bind(found);
            self.asm.mov(Reg::R9, Reg::R0);
            return;
        };
        let there = self.asm.label();
        self.jump_if(Cond::Ne, Reg::R0, 0, there);
        self.full();
        self.bind(there);
        self.asm.mov(Reg::R9, Reg::R0);
        self.asm.load(Width::D, Reg::R1, Reg::R10, made);
        self.jump_if(Cond::Ne, Reg::R1, 0, done);
        self.task_name(Reg::R9, comm as i16);
        self.jump(done);
        self.bind(found);
        self.asm.mov(Reg::R9, Reg::R0);
        self.bind(done);
    }

    /// Counts a drop and exits.
    fn full(&mut self) {
        self.asm.note("full");
        self.asm.map_value(Reg::R1, MapRef::HistDrops);
        self.asm.mov(Reg::R2, 1);
        self.asm.atomic(Width::D, Atomic::AddOnly, Reg::R1, 0, Reg::R2);
        self.asm.mov(Reg::R0, 0);
        self.asm.exit();
    }

    fn add(&mut self, known: &Known<'_>, addends: &[i16]) {
        for sum in 0..known.layout.sums {
            let at = 8 * sum as i16;
            self.asm.load(Width::D, Reg::R1, Reg::R0, at);
            match sum.checked_sub(1) {
                None => self.asm.alu(Alu::Add, Reg::R1, 1),
                Some(value) => {
                    self.asm.load(Width::D, Reg::R2, Reg::R10, addends[value]);
                    self.asm.alu(Alu::Add, Reg::R1, Reg::R2);
                }
            }
            self.asm.store(Width::D, Reg::R0, at, Reg::R1);
        }
    }

    fn add_for_all(&mut self, known: &Known<'_>, addends: &[i16]) {
        for sum in 0..known.layout.sums {
            match sum.checked_sub(1) {
                None => self.asm.mov(Reg::R1, 1),
                Some(value) => self.asm.load(Width::D, Reg::R1, Reg::R10, addends[value]),
            }
            let off = 8 * sum as i16;
            self.asm.atomic(Width::D, Atomic::AddOnly, Reg::R9, off, Reg::R1);
        }
    }

    /// Sets bits in a word of the entry.
    pub(super) fn set_bits(&mut self, at: usize, bits: u64) {
        self.asm.constant(Reg::R1, bits);
        self.asm.atomic(Width::D, Atomic::OrOnly, Reg::R9, at as i16, Reg::R1);
    }

    /// R0 = the entry of the key.
    fn entry(&mut self, key: KeyPlace) {
        self.asm.map(Reg::R1, MapRef::HistTable);
        self.asm.address(Reg::R2, key.base, i32::from(key.at));
        self.call(Helper::MapLookupElem);
    }

    /// Writes the name of the current task; the idle task has the name that the kernel's histograms use
    /// (`save_comm()`).
    fn task_name(&mut self, base: Reg, at: i16) {
        const IDLE: [u8; 8] = *b"<idle>\0\0";
        let (busy, done) = (self.asm.label(), self.asm.label());
        if *self.hook == ProgramContext::Inject {
            self.uses.common = true;
            self.asm.mov(Reg::R0, Reg::R8);
            self.asm.alu(Alu::Rsh, Reg::R0, 32);
        } else {
            self.call(Helper::GetCurrentPidTgid);
        }
        self.jump32_if(Cond::Ne, Reg::R0, 0, busy);
        self.asm.constant(Reg::R1, u64::from_le_bytes(IDLE));
        self.asm.store(Width::D, base, at, Reg::R1);
        self.jump(done);
        self.bind(busy);
        self.who(KeyPlace { base, at });
        self.bind(done);
    }
}
