//! Actions: the values that `onmax()` and `onchange()` track, saved variables, snapshots, synthetic events.
//!
//! The tracked value is replaced by compare-and-exchange, so that a hit on one CPU never replaces a greater value of
//! another CPU. Saving locks the entry, so that the saved values belong to the tracked value. Like every loop in a
//! program, the attempts to lock are bounded. A hit that does not get the lock (an interrupt during the save of another
//! hit) saves nevertheless.

use tracer_abi::{Switches, control};

use super::{KeyPlace, Known, LowerError, PARAMS_AT, emission, variable::reference_at};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, Label, MapRef, Reg, Width},
        lower::Lower,
    },
    lang::hist::action::{Action, Deed, Handler},
    plan::hist::{COMM_SIZE, snapshot},
};

/// Number of attempts at a lock or an exchange.
const TRIES: i32 = 128;
/// `BPF_RB_NO_WAKEUP`
const NO_WAKEUP: i32 = 1;

impl Lower<'_> {
    /// Lowers one action, for the entry in R9.
    pub(super) fn handle(
        &mut self,
        number: usize,
        action: &Action,
        known: &Known<'_>,
        key: KeyPlace,
    ) -> Result<(), LowerError> {
        let (tracked, skip) = match &action.handler {
            Handler::Match { .. } => return self.deed(number, action, known, key),
            // The condition under which there is nothing to do.
            Handler::Max(tracked) => (tracked, Cond::Le),
            Handler::Change(tracked) => (tracked, Cond::Eq),
        };
        self.asm.note(String::from_utf8_lossy(&tracked.text));
        let (old, value) = (known.layout.slot(tracked.slot) as i16, reference_at(tracked.reference));
        let (lost, over) = (self.asm.label(), self.asm.label());
        self.use_scratch();
        self.asm.load(Width::D, Reg::R1, Reg::R7, value);
        self.asm.load(Width::D, Reg::R0, Reg::R9, old);
        self.jump_if(skip, Reg::R1, Reg::R0, over);
        let lock = known.layout.lock.filter(|_| action.deed == Deed::Save);
        let lock = lock.map(|at| (at as i16, self.lock(Reg::R9, at as i16)));
        self.asm.load(Width::D, Reg::R1, Reg::R7, value);
        self.asm.load(Width::D, Reg::R0, Reg::R9, old);
        self.asm.mov(Reg::R3, TRIES);
        let (again, won) = (self.asm.label(), self.asm.label());
        self.asm.bind(again);
        self.jump_if(skip, Reg::R1, Reg::R0, lost);
        self.asm.mov(Reg::R2, Reg::R0);
        self.asm.atomic(Width::D, Atomic::CompareExchange, Reg::R9, old, Reg::R1);
        self.jump_if(Cond::Eq, Reg::R0, Reg::R2, won);
        self.asm.alu(Alu::Add, Reg::R3, -1);
        self.asm.jump_if(Cond::Ne, Reg::R3, 0, again);
        self.asm.store(Width::D, Reg::R9, old, Reg::R1);
        self.bind(won);
        self.deed(number, action, known, key)?;
        self.bind(lost);
        if let Some((at, got)) = lock {
            self.unlock(Reg::R9, at, got);
        }
        self.bind(over);
        Ok(())
    }

    fn deed(
        &mut self,
        number: usize,
        action: &Action,
        known: &Known<'_>,
        key: KeyPlace,
    ) -> Result<(), LowerError> {
        match action.deed {
            Deed::Save => {
                for (variable, value) in &known.hist.saved {
                    self.set_variable(variable, value, known)?;
                }
                Ok(())
            }
            Deed::Snapshot => {
                self.snapshot(action, known, key);
                Ok(())
            }
            Deed::Trace => {
                if known.emits.get(number) == Some(&true) {
                    self.emit(number, action, known);
                }
                Ok(())
            }
        }
    }

    /// Calls the function that emits the synthetic event.
    fn emit(&mut self, number: usize, action: &Action, known: &Known<'_>) {
        self.asm.note(emission(number));
        self.use_scratch();
        for (param, reference) in action.references.iter().enumerate() {
            self.asm.load(Width::D, Reg::R1, Reg::R7, reference_at(*reference));
            self.asm.store(Width::D, Reg::R7, (PARAMS_AT + 8 * param) as i16, Reg::R1);
        }
        self.asm.address(Reg::R1, Reg::R7, PARAMS_AT as i32);
        match known.context {
            Some(context) => self.asm.load(Width::D, Reg::R2, Reg::R10, context),
            None => self.asm.mov(Reg::R2, Reg::R6),
        }
        self.asm.call_function(emission(number));
    }

    /// Locks a word; returns the stack offset of a word that is 0 if the lock was taken.
    fn lock(&mut self, base: Reg, at: i16) -> i16 {
        let (again, done, got) = (self.asm.label(), self.asm.label(), self.frame.take(8, 0));
        self.asm.mov(Reg::R3, TRIES);
        self.asm.bind(again);
        self.asm.mov(Reg::R0, 0);
        self.asm.mov(Reg::R1, 1);
        self.asm.atomic(Width::D, Atomic::CompareExchange, base, at, Reg::R1);
        self.jump_if(Cond::Eq, Reg::R0, 0, done);
        self.asm.alu(Alu::Add, Reg::R3, -1);
        self.asm.jump_if(Cond::Ne, Reg::R3, 0, again);
        self.bind(done);
        self.asm.store(Width::D, Reg::R10, got, Reg::R0);
        got
    }

    fn unlock(&mut self, base: Reg, at: i16, got: i16) {
        let over = self.asm.label();
        self.asm.load(Width::D, Reg::R1, Reg::R10, got);
        self.jump_if(Cond::Ne, Reg::R1, 0, over);
        self.asm.atomic(Width::D, Atomic::Exchange, base, at, Reg::R1);
        self.bind(over);
    }

    /// Stores what the snapshot is taken for and requests it, unless the last snapshot already covers the value
    /// (`cond_snapshot_update()`).
    fn snapshot(&mut self, action: &Action, known: &Known<'_>, key: KeyPlace) {
        const STATE: Reg = Reg::R5;
        let Some(tracked) = action.tracked() else { return };
        let skip = if matches!(action.handler, Handler::Max(_)) { Cond::Le } else { Cond::Eq };
        let (as_before, over) = (self.asm.label(), self.asm.label());
        self.asm.map_value(STATE, MapRef::HistSnapshot);
        let got = self.lock(STATE, snapshot::LOCK as i16);
        self.asm.load(Width::D, Reg::R1, Reg::R7, reference_at(tracked.reference));
        self.asm.load(Width::D, Reg::R2, STATE, snapshot::VALUE as i16);
        self.jump_if(skip, Reg::R1, Reg::R2, as_before);
        self.asm.store(Width::D, STATE, snapshot::VALUE as i16, Reg::R1);
        self.asm.store(Width::D, STATE, snapshot::TAKEN as i16, 1);
        for word in (0..known.layout.key_size).step_by(8) {
            self.asm.load(Width::D, Reg::R1, key.base, key.at + word as i16);
            self.asm.store(Width::D, STATE, (snapshot::KEY + word) as i16, Reg::R1);
        }
        if let Some(comm) = known.layout.comm {
            for word in (0..COMM_SIZE).step_by(8) {
                self.asm.load(Width::D, Reg::R1, Reg::R9, (comm + word) as i16);
                self.asm.store(Width::D, STATE, (snapshot::COMM + word) as i16, Reg::R1);
            }
        }
        self.unlock(STATE, snapshot::LOCK as i16, got);
        self.ask_for_snapshot();
        self.jump(over);
        self.bind(as_before);
        self.unlock(STATE, snapshot::LOCK as i16, got);
        self.bind(over);
    }

    /// Writes a control record to the CPU's ring, or sets the word that reports that there was no room for it.
    fn ask_for_snapshot(&mut self) {
        let (lost, done) = (self.asm.label(), self.asm.label());
        self.control_record(control::SNAPSHOT, NO_WAKEUP, lost);
        self.jump(done);
        self.bind(lost);
        self.asm.map_value(Reg::R1, MapRef::Switches);
        self.asm.store(Width::W, Reg::R1, std::mem::offset_of!(Switches, snapshot) as i16, 1);
        self.bind(done);
    }

    /// Writes a control record to the CPU's ring; jumps to `lost` if there is no room.
    pub(super) fn control_record(&mut self, kind: u16, wake: i32, lost: Label) {
        let (cpu, record) = (self.frame.take(8, 0), self.frame.take(16, 0));
        self.call(Helper::KtimeGetNs);
        self.asm.store(Width::D, Reg::R10, record, Reg::R0);
        self.asm.store(Width::D, Reg::R10, record + 8, i32::from(kind));
        self.call(Helper::GetSmpProcessorId);
        self.asm.store(Width::D, Reg::R10, cpu, Reg::R0);
        self.asm.map(Reg::R1, MapRef::Rings);
        self.asm.address(Reg::R2, Reg::R10, i32::from(cpu));
        self.call(Helper::MapLookupElem);
        self.jump_if(Cond::Eq, Reg::R0, 0, lost);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.address(Reg::R2, Reg::R10, i32::from(record));
        self.asm.mov(Reg::R3, 16);
        self.asm.mov(Reg::R4, wake);
        self.call(Helper::RingbufOutput);
        self.jump_if(Cond::Ne, Reg::R0, 0, lost);
    }
}
