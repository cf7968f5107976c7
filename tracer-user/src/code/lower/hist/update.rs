//! State that the steps of an update share: the histogram, places on the stack and in scratch memory, and accesses to
//! the record.

use tracer_abi::FILTER_AREA;

use super::table::Places;
use crate::{
    code::{
        asm::{Alu, Label, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    event::{Field, FieldClass},
    lang::hist::Hist,
    plan::{
        filter::Place,
        hist::{Layout, References, table::TableLayout},
    },
};

/// Offset of the key in the values of [`HistScratch`](crate::code::asm::MapRef::HistScratch), after the area for
/// filters.
pub(super) const KEY_AT: usize = FILTER_AREA;
const KEY_SIZE: usize = 512;
/// Offset of the values of references.
const REFERENCES_AT: usize = KEY_AT + KEY_SIZE;
const REFERENCES_SIZE: usize = 8 * 16;
/// Offset of the parameters of a synthetic event.
pub(super) const PARAMS_AT: usize = REFERENCES_AT + REFERENCES_SIZE;
const PARAMS_SIZE: usize = 8 * 64;
/// Offset of the word through which an address is stored and loaded to become a number for the verifier.
pub(super) const ADDRESS_AT: usize = PARAMS_AT + PARAMS_SIZE;
/// Offset of a record that is built because the context is none.
pub(super) const RECORD_AT: usize = ADDRESS_AT + 8;
/// Longer than the record of a system call with three texts.
const RECORD_SIZE: usize = 1024;
/// Size in bytes of the values of [`HistScratch`](crate::code::asm::MapRef::HistScratch).
pub const SCRATCH_SIZE: usize = RECORD_AT + RECORD_SIZE;

/// The update of one histogram.
pub(super) struct Update<'a> {
    pub(super) hist: &'a Hist,
    pub(super) layout: &'a Layout,
    pub(super) table: &'a TableLayout,
    /// The stack of searches.
    pub(super) places: Places,
    /// Whether programs add to the same entry at once.
    pub(super) is_atomic: bool,
    pub(super) references: &'a References,
    /// For each action, whether a function emits its synthetic event.
    pub(super) emits: &'a [bool],
    /// Stack offset of the context of the program's hook, if it is passed separately from a record.
    pub(super) hook_context: Option<i16>,
    /// Stack offset of the hit's time.
    pub(super) stamp: Option<i16>,
    /// Exit of a hit that needs no further work.
    pub(super) out: Label,
}

/// Where a key is built.
#[derive(Clone, Copy)]
pub(super) struct KeyPlace {
    pub(super) base: Reg,
    pub(super) at: i16,
}

/// Place of a number in the record.
pub(super) fn place(field: &Field) -> Place {
    Place { offset: field.offset as u16, size: field.size as u16 }
}

/// Offset of the value of a reference from R7.
pub(super) fn reference_at(number: usize) -> i16 {
    (REFERENCES_AT + 8 * number) as i16
}

/// R3 = address of a field's data in the record; an error if the context is not a record.
pub(super) fn data_address(emit: &mut Emitter, values: &Values<'_>, field: &Field) -> Result<(), LowerError> {
    if !values.has_record() {
        return Err(LowerError::NoData);
    }
    if field.class == FieldClass::StaticString {
        emit.address(Reg::R3, Reg::R6, field.offset as i32);
        return Ok(());
    }
    if values.lacks_data() {
        return Err(LowerError::NoData);
    }
    emit.load(Width::W, Reg::R3, Reg::R6, field.offset as i16);
    emit.alu(Alu::And, Reg::R3, 0xffff);
    emit.alu(Alu::Add, Reg::R3, Reg::R6);
    if field.class == FieldClass::RelString {
        emit.alu(Alu::Add, Reg::R3, field.offset as i32 + 4);
    }
    Ok(())
}
