//! Loads numbers of the record into R0, from the source that the hook provides.

use tracer_abi::COMMON_SIZE;

use super::{Lower, LowerError};
use crate::{
    code::asm::{Alu, Helper, Reg, Width},
    plan::{
        filter::Place,
        source::{FieldSource, ProgramContext, Source},
    },
};

impl Lower<'_> {
    /// R0 = the number at this place, zero-extended.
    pub(super) fn value(&mut self, place: Place) -> Result<(), LowerError> {
        let (offset, size) = (usize::from(place.offset), usize::from(place.size));
        let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
        match self.hook {
            ProgramContext::Tracepoint | ProgramContext::RawTracepoint(_) if offset + size <= COMMON_SIZE => {
                self.common_field(offset, size);
            }
            ProgramContext::Tracepoint
            | ProgramContext::Inject
            | ProgramContext::Probe(_)
            | ProgramContext::UserRecord(_)
                if offset.is_multiple_of(size) =>
            {
                self.asm.load(width, Reg::R0, self.ctx, offset as i16);
            }
            ProgramContext::Tracepoint
            | ProgramContext::Inject
            | ProgramContext::Probe(_)
            | ProgramContext::UserRecord(_) => {
                // The verifier accepts only aligned loads of the context.
                let slot = self.frame.take(size, 0);
                self.read_context(slot, offset, size);
                self.asm.load(width, Reg::R0, Reg::R10, slot);
            }
            ProgramContext::RawTracepoint(fields) => {
                let field = covering(fields, offset, size)?;
                let inner = offset - usize::from(field.offset);
                self.sourced(&field.source, inner, width);
            }
        }
        Ok(())
    }

    /// Copies bytes of the context, aligned or not, to the stack.
    pub(super) fn read_context(&mut self, slot: i16, offset: usize, size: usize) {
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, size as i32);
        self.asm.address(Reg::R3, self.ctx, offset as i32);
        self.call(Helper::ProbeReadKernel);
    }

    /// R0 = bytes of the common word.
    fn common_field(&mut self, offset: usize, size: usize) {
        self.uses.common = true;
        // Type and pid are always filled; flags and preempt count are between them.
        self.uses.flags |= offset < 4 && offset + size > 2;
        self.asm.mov(Reg::R0, self.common);
        if offset > 0 {
            self.asm.alu(Alu::Rsh, Reg::R0, 8 * offset as i32);
        }
        if offset + size < COMMON_SIZE {
            self.truncate(size);
        }
    }

    /// R0 = the bytes of a source's value from `inner` on.
    pub(super) fn sourced(&mut self, source: &Source, inner: usize, width: Width) {
        match source {
            Source::Arg(arg) => {
                if inner.is_multiple_of(width.bytes()) {
                    self.asm.load(width, Reg::R0, self.ctx, i16::from(*arg) * 8 + inner as i16);
                } else {
                    self.argument(Reg::R0, *arg);
                    self.asm.alu(Alu::Rsh, Reg::R0, 8 * inner as i32);
                    self.truncate(width.bytes());
                }
            }
            Source::Const(value) => {
                let value = value >> (8 * inner);
                let value = if width == Width::D { value } else { value & ((1 << (8 * width.bytes())) - 1) };
                self.asm.constant(Reg::R0, value);
            }
            Source::Memory { arg, path } => self.memory_value(*arg, path, inner, width),
            Source::SwitchState(state) => {
                self.switch_state(*state);
                self.part(inner, width);
            }
            Source::Extended { arg, path, width: read, signed } => {
                let size = usize::from(*read);
                self.memory_value(*arg, path, 0, Width::of(size).unwrap_or(Width::D));
                if *signed && size < 8 {
                    self.asm.alu(Alu::Lsh, Reg::R0, 64 - 8 * size as i32);
                    self.asm.alu(Alu::Arsh, Reg::R0, 64 - 8 * size as i32);
                }
                self.part(inner, width);
            }
            Source::SyscallArgs(args) => {
                self.syscall_args(args, inner / 8, 1, |_, _| {});
                self.part(inner % 8, width);
            }
        }
    }
}

impl Lower<'_> {
    /// R0 = `width` bytes of R0 from byte `inner` on.
    fn part(&mut self, inner: usize, width: Width) {
        if inner > 0 {
            self.asm.alu(Alu::Rsh, Reg::R0, 8 * inner as i32);
        }
        self.truncate(width.bytes());
    }
}

/// The source that covers all of these bytes.
pub(super) fn covering(
    fields: &[FieldSource],
    offset: usize,
    size: usize,
) -> Result<&FieldSource, LowerError> {
    fields
        .iter()
        .find(|field| {
            let start = usize::from(field.offset);
            start <= offset && offset + size <= start + usize::from(field.size)
        })
        .ok_or(LowerError::NoSource { offset, end: offset + size })
}
