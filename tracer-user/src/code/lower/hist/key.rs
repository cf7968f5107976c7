//! The key: its parts in order, equal to the kernel's byte for byte.

use super::{
    number::number,
    update::{KEY_AT, KeyPlace, Update, data_address},
};
use crate::{
    code::{
        asm::{Alu, Helper, Reg, Width},
        lower::{emitter::Emitter, output::LowerError, values::Values},
    },
    event::{Field, FieldClass},
    lang::{
        facts::Arch,
        hist::{Function as Compute, Value},
    },
    plan::{
        hist::{KeyKind, STACK_BYTES},
        source::ProgramContext,
    },
};

/// Longest key, in bytes, that is built on the stack.
const STACK_KEY_MAX: usize = 96;

/// Builds the key.
pub(super) fn build(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    update: &Update<'_>,
) -> Result<KeyPlace, LowerError> {
    let Update { hist, layout, .. } = update;
    let key = if layout.key_size <= STACK_KEY_MAX && !layout.is_shared() {
        KeyPlace { base: Reg::R10, at: emit.alloc(layout.key_size) }
    } else {
        emit.use_scratch();
        KeyPlace { base: Reg::R7, at: KEY_AT as i16 }
    };
    for (value, part) in hist.keys().iter().zip(&layout.keys) {
        let at = key.at + part.offset as i16;
        emit.note(format!("key {}", String::from_utf8_lossy(&value.shown_name())));
        if part.kind != KeyKind::Number || part.size > 8 {
            for word in (0..part.size as i16).step_by(8) {
                emit.store(Width::D, key.base, at + word, 0);
            }
        }
        match part.kind {
            KeyKind::Number => {
                number(emit, values, value, update)?;
                emit.store(Width::D, key.base, at, Reg::R0);
            }
            KeyKind::Text => {
                // The key has space for the NUL: one byte more than the text's field.
                let size = match &value.field {
                    Some(field) if field.class == FieldClass::StaticString => part.size.min(field.size + 1),
                    _ => part.size,
                };
                match &value.field {
                    Some(field) if matches!(field.class, FieldClass::DynString | FieldClass::RelString) => {
                        copy_data(emit, values, field, KeyPlace { at, ..key }, size)?;
                    }
                    _ => copy_text(emit, values, value, KeyPlace { at, ..key }, size)?,
                }
            }
            KeyKind::Stack => copy_stack(emit, values, KeyPlace { at, ..key }, update),
            KeyKind::RecordedStack => copy_recorded_stack(emit, values, value, KeyPlace { at, ..key })?,
        }
    }
    Ok(key)
}

/// Copies a text up to its NUL, at most `size` bytes including the NUL.
pub(super) fn copy_text(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    to: KeyPlace,
    size: usize,
) -> Result<(), LowerError> {
    if value.function == Compute::Comm {
        values.copy_comm(emit, (to.base, to.at));
        return Ok(());
    }
    data_address(emit, values, value.field.as_ref().ok_or(LowerError::NoData)?)?;
    emit.address(Reg::R1, to.base, i32::from(to.at));
    emit.mov(Reg::R2, size as i32);
    emit.call(Helper::ProbeReadKernelStr);
    Ok(())
}

/// Copies data of varying length, at most `size` bytes less one. Like the kernel, it does not end at a NUL
/// (`add_to_key()`, kernel/trace/trace_events_hist.c).
fn copy_data(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    field: &Field,
    to: KeyPlace,
    size: usize,
) -> Result<(), LowerError> {
    data_address(emit, values, field)?;
    emit.load(Width::W, Reg::R2, Reg::R6, field.offset as i16);
    emit.alu(Alu::Rsh, Reg::R2, 16);
    emit.limit(Reg::R2, size - 1);
    emit.address(Reg::R1, to.base, i32::from(to.at));
    emit.call(Helper::ProbeReadKernel);
    Ok(())
}

/// R0 = the number of bytes of the hit's stack that were copied, or an error.
pub(super) fn copy_stack(emit: &mut Emitter, values: &mut Values<'_>, to: KeyPlace, update: &Update<'_>) {
    match update.hook_context {
        Some(context) => emit.load(Width::D, Reg::R1, Reg::R10, context),
        None if *values.context() == ProgramContext::Inject => {
            // An injected record has no stack.
            emit.mov(Reg::R0, -1);
            return;
        }
        None => emit.mov(Reg::R1, Reg::R6),
    }
    emit.address(Reg::R2, to.base, i32::from(to.at));
    emit.mov(Reg::R3, STACK_BYTES as i32);
    emit.mov(Reg::R4, own_frames(values.context(), Arch::native()));
    emit.call(Helper::GetStack);
}

/// Copies a stack that the record holds. The record has the depth and then the addresses; the key has only the
/// addresses.
fn copy_recorded_stack(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    value: &Value,
    to: KeyPlace,
) -> Result<(), LowerError> {
    let is_recorded =
        |field: &&Field| field.class == FieldClass::Stacktrace && field.offset >= tracer_abi::COMMON_SIZE;
    let field = value.field.as_ref().filter(|_| value.function == Compute::Stack).filter(is_recorded);
    data_address(emit, values, field.ok_or(LowerError::NoData)?)?;
    let from = emit.save(Reg::R3);
    emit.read_kernel((to.base, to.at), 8);
    emit.load(Width::D, Reg::R2, to.base, to.at);
    emit.store(Width::D, to.base, to.at, 0);
    emit.limit(Reg::R2, STACK_BYTES / 8);
    emit.alu(Alu::Lsh, Reg::R2, 3);
    emit.address(Reg::R1, to.base, i32::from(to.at));
    emit.load(Width::D, Reg::R3, Reg::R10, from);
    emit.alu(Alu::Add, Reg::R3, 8);
    emit.call(Helper::ProbeReadKernel);
    Ok(())
}

/// Number of addresses at the start of the helper's stack that are the tracer's own. At a raw tracepoint the stack
/// starts with the program and its caller, on arm64 through a stub. At a tracepoint on arm64, the kernel's record of
/// registers makes the stack start with the same address twice (`perf_arch_fetch_caller_regs()`,
/// `arch/arm64/include/asm/perf_event.h`).
fn own_frames(context: &ProgramContext, arch: Arch) -> i32 {
    match (context, arch) {
        (ProgramContext::RawTracepoint(_), Arch::X86_64) => 2,
        (ProgramContext::RawTracepoint(_), Arch::Arm64) => 4,
        (ProgramContext::Tracepoint | ProgramContext::CallTracepoint, Arch::Arm64) => 1,
        _ => 0,
    }
}
