//! Variables: looks up those of other histograms by the hit's key, and sets the histogram's own in its entry.
//!
//! The lookups come before the hit counts, the own variables are set after that (`resolve_var_refs()`,
//! `hist_trigger_elt_update()`). A text or a stack is stored in the entry, and the variable is its address, as in the
//! kernel. A lookup therefore yields the text without a copy, and the reader sees its current content.

use super::{Compute, KeyPlace, Known, LowerError, REFERENCES_AT};
use crate::{
    code::{
        asm::{Alu, Atomic, Cond, Helper, MapRef, Reg, Width},
        lower::Lower,
    },
    lang::hist::{TEXT_MAX, Value},
    plan::hist::{COMM_SIZE, is_stack, is_text},
};

/// Offset of the value of a reference from R7.
pub(super) fn reference_at(number: usize) -> i16 {
    (REFERENCES_AT + 8 * number) as i16
}

impl Lower<'_> {
    /// Looks up the variables of other histograms, in order; a hit ends here if one is not set.
    pub(super) fn look_up(&mut self, known: &Known<'_>, key: KeyPlace) {
        if !known.references.list.is_empty() {
            self.use_scratch();
        }
        for (number, reference) in known.references.list.iter().enumerate() {
            let Some(owner) = reference.owner else { continue };
            let name = known.hist.references[number].name.clone().unwrap_or_default();
            self.asm.note(format!("${}", String::from_utf8_lossy(&name)));
            if reference.key_size > known.layout.key_size {
                // The kernel would compare arbitrary bytes after the key.
                self.jump(known.out);
                return;
            }
            self.asm.map(Reg::R1, MapRef::HistOwner(u16::try_from(owner).unwrap_or(u16::MAX)));
            self.asm.address(Reg::R2, key.base, i32::from(key.at));
            self.call(Helper::MapLookupElem);
            self.jump_if(Cond::Eq, Reg::R0, 0, known.out);
            let (bits, bit) = (reference.set_bits as i16, 1i32 << reference.slot);
            if reference.once {
                self.asm.mov(Reg::R1, !bit);
                self.asm.atomic(Width::D, Atomic::And, Reg::R0, bits, Reg::R1);
            } else {
                self.asm.load(Width::D, Reg::R1, Reg::R0, bits);
            }
            self.asm.alu(Alu::And, Reg::R1, bit);
            self.jump_if(Cond::Eq, Reg::R1, 0, known.out);
            self.asm.load(Width::D, Reg::R1, Reg::R0, reference.offset as i16);
            self.asm.store(Width::D, Reg::R7, reference_at(number), Reg::R1);
        }
    }

    /// Sets the variables of the entry in R9.
    pub(super) fn set_variables(&mut self, known: &Known<'_>) -> Result<(), LowerError> {
        let hist = known.hist;
        let mut bits = 0;
        let own = hist.fields[known.layout.sums..hist.values].iter().map(|value| (value, value));
        let made = hist.field_variables.iter().map(|(variable, value)| (variable, value));
        for (variable, value) in own.chain(made) {
            self.set_variable(variable, value, known)?;
            bits |= 1 << variable.slot.at;
        }
        self.set_bits(known.layout.set_bits(), bits);
        Ok(())
    }

    /// Sets one variable of the entry in R9. References in the same hit see the new value.
    pub(super) fn set_variable(
        &mut self,
        variable: &Value,
        value: &Value,
        known: &Known<'_>,
    ) -> Result<(), LowerError> {
        let slot = variable.slot.at;
        let name = variable.variable.clone().unwrap_or_default();
        self.asm.note(format!("{} =", String::from_utf8_lossy(&name)));
        match known.layout.text_at(slot) {
            Some(at) if is_text(value) => self.text_variable(value, at, known)?,
            Some(at) if is_stack(value) => self.stack_variable(at, known),
            _ => self.number_of(value, known)?,
        }
        self.asm.store(Width::D, Reg::R9, known.layout.slot(slot) as i16, Reg::R0);
        if let Some(number) = known.references.own(slot) {
            self.use_scratch();
            self.asm.store(Width::D, Reg::R7, reference_at(number), Reg::R0);
        }
        Ok(())
    }

    /// R0 = the address of a text that was copied to the entry.
    fn text_variable(&mut self, value: &Value, at: usize, known: &Known<'_>) -> Result<(), LowerError> {
        let to = KeyPlace { base: Reg::R9, at: at as i16 };
        if value.function == Compute::Execname {
            let comm = known.layout.comm.ok_or(LowerError::NoData)?;
            for word in (0..COMM_SIZE).step_by(8) {
                self.asm.load(Width::D, Reg::R1, Reg::R9, (comm + word) as i16);
                self.asm.store(Width::D, Reg::R9, (at + word) as i16, Reg::R1);
            }
        } else {
            self.copy_text(value, to, value.size.min(TEXT_MAX) as usize)?;
        }
        self.asm.address(Reg::R0, Reg::R9, at as i32);
        Ok(())
    }

    /// R0 = the address of a stack in the entry: its depth, then the addresses.
    fn stack_variable(&mut self, at: usize, known: &Known<'_>) {
        let empty = self.asm.label();
        self.copy_stack(KeyPlace { base: Reg::R9, at: at as i16 + 8 }, known);
        self.asm.mov(Reg::R1, Reg::R0);
        self.jump_if(Cond::SGe, Reg::R1, 0, empty);
        self.asm.mov(Reg::R1, 0);
        self.bind(empty);
        self.asm.alu(Alu::Rsh, Reg::R1, 3);
        self.asm.store(Width::D, Reg::R9, at as i16, Reg::R1);
        self.asm.address(Reg::R0, Reg::R9, at as i32);
    }
}
