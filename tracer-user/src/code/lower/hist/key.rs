//! The key: its parts in order, equal to the kernel's byte for byte.

use super::{Compute, FieldClass, KEY_AT, KeyPlace, Known, LowerError, Value};
use crate::{
    code::{
        asm::{Alu, Cond, Helper, Reg, Width},
        lower::Lower,
    },
    event::Field,
    lang::facts::Arch,
    plan::{
        hist::{KeyKind, STACK_BYTES},
        source::ProgramContext,
    },
};

/// Longest key, in bytes, that is built on the stack.
const STACK_KEY_MAX: usize = 96;

/// Whether a value is a stack that the record holds.
pub(super) fn is_recorded_stack(value: &Value) -> bool {
    let field = value.field.as_ref();
    value.function == Compute::Stack
        && field.is_some_and(|f| f.class == FieldClass::Stacktrace && f.offset >= tracer_abi::COMMON_SIZE)
}

impl Lower<'_> {
    /// Builds the key.
    pub(super) fn hist_key(&mut self, known: &Known<'_>) -> Result<KeyPlace, LowerError> {
        let Known { hist, layout, .. } = known;
        let key = if layout.key_size <= STACK_KEY_MAX && !layout.is_shared() {
            KeyPlace { base: Reg::R10, at: self.frame.take(layout.key_size, 0) }
        } else {
            self.use_scratch();
            KeyPlace { base: Reg::R7, at: KEY_AT as i16 }
        };
        for (value, part) in hist.keys().iter().zip(&layout.keys) {
            let at = key.at + part.offset as i16;
            self.asm.note(format!("key {}", String::from_utf8_lossy(&value.shown_name())));
            if part.kind != KeyKind::Number || part.size > 8 {
                for word in (0..part.size as i16).step_by(8) {
                    self.asm.store(Width::D, key.base, at + word, 0);
                }
            }
            match part.kind {
                KeyKind::Number => {
                    self.number_of(value, known)?;
                    self.asm.store(Width::D, key.base, at, Reg::R0);
                }
                KeyKind::Text => {
                    // One byte more than is copied, for the NUL; the key's part has room for it.
                    let room = match &value.field {
                        Some(field) if field.class == FieldClass::StaticString => {
                            part.size.min(field.size + 1)
                        }
                        _ => part.size,
                    };
                    self.copy_text(value, KeyPlace { at, ..key }, room)?;
                }
                KeyKind::Stack => self.copy_stack(KeyPlace { at, ..key }, known),
                KeyKind::RecordedStack => self.copy_recorded_stack(value, KeyPlace { at, ..key })?,
            }
        }
        Ok(key)
    }

    /// Copies a text up to its NUL, at most `room` bytes including the NUL.
    pub(super) fn copy_text(&mut self, value: &Value, to: KeyPlace, room: usize) -> Result<(), LowerError> {
        if value.function == Compute::Comm {
            self.who(to);
            return Ok(());
        }
        let Some(field) = &value.field else { return Err(LowerError::NoData) };
        match field.class {
            FieldClass::StaticString => {
                self.needs_record()?;
                self.asm.address(Reg::R3, Reg::R6, field.offset as i32);
            }
            _ => self.data_address(field)?,
        }
        self.asm.address(Reg::R1, to.base, i32::from(to.at));
        self.asm.mov(Reg::R2, room as i32);
        self.call(Helper::ProbeReadKernelStr);
        Ok(())
    }

    pub(super) fn needs_record(&self) -> Result<(), LowerError> {
        let has = matches!(self.hook, ProgramContext::Tracepoint | ProgramContext::Inject);
        has.then_some(()).ok_or(LowerError::NoData)
    }

    /// R3 = address of a field's data in the record.
    pub(super) fn data_address(&mut self, field: &Field) -> Result<(), LowerError> {
        self.needs_record()?;
        self.asm.load(Width::W, Reg::R3, Reg::R6, field.offset as i16);
        self.asm.alu(Alu::And, Reg::R3, 0xffff);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R6);
        if field.class == FieldClass::RelString {
            self.asm.alu(Alu::Add, Reg::R3, field.offset as i32 + 4);
        }
        Ok(())
    }

    /// R0 = the number of bytes of the hit's stack that were copied, or an error.
    pub(super) fn copy_stack(&mut self, to: KeyPlace, known: &Known<'_>) {
        match known.context {
            Some(context) => self.asm.load(Width::D, Reg::R1, Reg::R10, context),
            None if *self.hook == ProgramContext::Inject => {
                // An injected record has no stack.
                self.asm.mov(Reg::R0, -1);
                return;
            }
            None => self.asm.mov(Reg::R1, Reg::R6),
        }
        self.asm.address(Reg::R2, to.base, i32::from(to.at));
        self.asm.mov(Reg::R3, STACK_BYTES as i32);
        self.asm.mov(Reg::R4, own_frames(self.hook, Arch::native()));
        self.call(Helper::GetStack);
    }

    /// Copies a stack that the record holds. The record has the depth and then the addresses; the key has only the
    /// addresses.
    fn copy_recorded_stack(&mut self, value: &Value, to: KeyPlace) -> Result<(), LowerError> {
        let Some(field) = value.field.as_ref().filter(|_| is_recorded_stack(value)) else {
            return Err(LowerError::NoData);
        };
        self.data_address(field)?;
        let from = self.frame.take(8, 0);
        self.asm.store(Width::D, Reg::R10, from, Reg::R3);
        self.asm.address(Reg::R1, to.base, i32::from(to.at));
        self.asm.mov(Reg::R2, 8);
        self.call(Helper::ProbeReadKernel);
        let fits = self.asm.label();
        self.asm.load(Width::D, Reg::R2, to.base, to.at);
        self.asm.store(Width::D, to.base, to.at, 0);
        self.jump_if(Cond::Le, Reg::R2, (STACK_BYTES / 8) as i32, fits);
        self.asm.mov(Reg::R2, (STACK_BYTES / 8) as i32);
        self.bind(fits);
        self.asm.alu(Alu::Lsh, Reg::R2, 3);
        self.asm.address(Reg::R1, to.base, i32::from(to.at));
        self.asm.load(Width::D, Reg::R3, Reg::R10, from);
        self.asm.alu(Alu::Add, Reg::R3, 8);
        self.call(Helper::ProbeReadKernel);
        Ok(())
    }
}

/// Number of addresses at the start of the helper's stack that are the tracer's own. At a raw tracepoint the stack
/// starts with the program and its caller, on arm64 through a stub. At a tracepoint on arm64, the kernel's record of
/// registers makes the stack start with the same address twice (`perf_arch_fetch_caller_regs()`,
/// `arch/arm64/include/asm/perf_event.h`).
fn own_frames(hook: &ProgramContext, arch: Arch) -> i32 {
    match (hook, arch) {
        (ProgramContext::RawTracepoint(_), Arch::X86_64) => 2,
        (ProgramContext::RawTracepoint(_), Arch::Arm64) => 4,
        (ProgramContext::Tracepoint, Arch::Arm64) => 1,
        _ => 0,
    }
}
