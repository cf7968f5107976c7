//! Loads into R0 the numbers of the record that the context provides, and properties of the hit.

mod expression;
mod memory;

use tracer_abi::{COMMON_SIZE, INJECT_COMM, INJECT_CPU};

use super::{emitter::Emitter, output::LowerError};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    plan::{
        filter::{Filter, Place},
        source::{FieldSource, ProgramContext, Source, SwitchState, SyscallArgs},
    },
};

use memory::Memory;
pub(super) use memory::covering;

/// The values at one context, and the kernel memory that they are read from.
pub(super) struct Values<'a> {
    context: &'a ProgramContext,
    /// Whether the record was built in memory, whose address is in place of the context.
    is_built: bool,
    pub(super) memory: Memory,
    /// Places on the stack for operands, by the depth of the operation.
    operands: Vec<i16>,
}

impl<'a> Values<'a> {
    pub(super) fn new(context: &'a ProgramContext) -> Self {
        Self { context, is_built: false, memory: Memory::default(), operands: Vec::new() }
    }

    /// For the numbers that a filter reads.
    pub(super) fn for_filter(context: &'a ProgramContext, filter: &Filter) -> Self {
        Self { memory: Memory::for_filter(filter, context), ..Self::new(context) }
    }

    /// For a record of these fields.
    pub(super) fn for_fields<'f>(
        context: &'a ProgramContext,
        fields: impl Iterator<Item = &'f FieldSource>,
    ) -> Self {
        Self { memory: Memory::for_fields(fields), ..Self::new(context) }
    }

    pub(super) fn context(&self) -> &'a ProgramContext {
        self.context
    }

    /// From here on, a record in memory is in place of the context.
    pub(super) fn set_built(&mut self) {
        self.is_built = true;
    }

    /// Whether a record is in place of the context.
    pub(super) fn has_record(&self) -> bool {
        self.is_built
            || matches!(
                self.context,
                ProgramContext::Tracepoint | ProgramContext::CallTracepoint | ProgramContext::Inject
            )
    }

    /// Whether the context is a record without the data after its fields.
    pub(super) fn lacks_data(&self) -> bool {
        !self.is_built && *self.context == ProgramContext::CallTracepoint
    }

    /// The sources of the fields, if the context is not a record.
    pub(super) fn sources(&self) -> Option<&'a [FieldSource]> {
        match self.context {
            ProgramContext::RawTracepoint(fields) if !self.is_built => Some(fields),
            _ => None,
        }
    }

    /// R0 = the CPU of the hit.
    pub(super) fn current_cpu(&self, emit: &mut Emitter) {
        if *self.context == ProgramContext::Inject {
            emit.load_context(Width::W, Reg::R0, INJECT_CPU);
        } else {
            emit.call(Helper::GetSmpProcessorId);
        }
    }

    /// Copies the name of the hitting task, [`COMM_SIZE`](super::emitter::COMM_SIZE) bytes.
    pub(super) fn copy_comm(&self, emit: &mut Emitter, (to, off): (Reg, i16)) {
        if *self.context != ProgramContext::Inject {
            emit.read_comm((to, off));
            return;
        }
        for at in [0, 8] {
            emit.load_context(Width::D, Reg::R0, INJECT_COMM + at);
            emit.store(Width::D, to, off + at as i16, Reg::R0);
        }
    }

    /// Whether the common fields cannot be loaded from the context.
    fn has_no_common_fields(&self) -> bool {
        matches!(
            self.context,
            ProgramContext::Tracepoint | ProgramContext::CallTracepoint | ProgramContext::RawTracepoint(_)
        )
    }

    /// R0 = the number at this place, zero-extended.
    pub(super) fn value(&mut self, emit: &mut Emitter, place: Place) -> Result<(), LowerError> {
        let (offset, size) = (usize::from(place.offset), usize::from(place.size));
        let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
        let is_common = offset + size <= COMMON_SIZE;
        match self.sources() {
            _ if is_common && !self.is_built && self.has_no_common_fields() => {
                common_field(emit, offset, size);
            }
            Some(fields) => {
                let field = covering(fields, offset, size)?;
                let inner = offset - usize::from(field.offset);
                self.sourced(emit, &field.source, inner, width);
            }
            None if offset.is_multiple_of(size) => emit.load_context(width, Reg::R0, offset),
            // The verifier accepts only aligned loads of the context.
            None => {
                let slot = emit.alloc(size);
                emit.context_address(Reg::R3, offset);
                emit.read_kernel((Reg::R10, slot), size as i32);
                emit.load(width, Reg::R0, Reg::R10, slot);
            }
        }
        Ok(())
    }

    /// R0 = the bytes of a source's value from `inner` on.
    pub(super) fn sourced(&mut self, emit: &mut Emitter, source: &Source, inner: usize, width: Width) {
        match source {
            Source::Arg(arg) => {
                if inner.is_multiple_of(width.bytes()) {
                    emit.load_context(width, Reg::R0, 8 * usize::from(*arg) + inner);
                } else {
                    emit.load_context(Width::D, Reg::R0, 8 * usize::from(*arg));
                    emit.alu(Alu::Rsh, Reg::R0, 8 * inner as i32);
                    emit.truncate(width.bytes());
                }
            }
            Source::Const(value) => {
                let bits = u64::MAX >> (64 - 8 * width.bytes());
                emit.constant(Reg::R0, value >> (8 * inner) & bits);
            }
            Source::Memory { arg, path } => self.memory.value(emit, *arg, path, inner, width),
            Source::Computed(expression) => {
                self.expression(emit, expression, 0);
                part(emit, inner, width);
            }
            Source::SwitchState(state) => {
                self.switch_state(emit, *state);
                part(emit, inner, width);
            }
            Source::Extended { arg, path, width: read, signed } => {
                let size = usize::from(*read);
                self.memory.value(emit, *arg, path, 0, Width::of(size).unwrap_or(Width::D));
                if *signed {
                    emit.extend_sign(Reg::R0, size);
                }
                part(emit, inner, width);
            }
            Source::SyscallArgs(args) => {
                self.syscall_args(emit, args, inner / 8, 1, |_, _| {});
                part(emit, inner % 8, width);
            }
            // A filter that reads the word reads it from a record that was built ([`Values::sources`]).
            Source::UserData(_) => emit.mov(Reg::R0, 0),
        }
    }

    /// Passes syscall arguments from `first` on to `to` in R0, eight bytes each, according to the kind of call.
    pub(super) fn syscall_args(
        &mut self,
        emit: &mut Emitter,
        args: &SyscallArgs,
        first: usize,
        count: usize,
        mut to: impl FnMut(&mut Emitter, usize),
    ) {
        let mut pass = |emit: &mut Emitter, slots: Vec<i16>| {
            for (number, slot) in slots.into_iter().enumerate() {
                emit.load(Width::D, Reg::R0, Reg::R10, slot);
                to(emit, number);
            }
        };
        let chosen = || args.offsets().skip(first).take(count);
        let mut slot = |emit: &mut Emitter, offset| self.memory.slot(emit, args.regs, &[offset], 0, 8);
        // Both kinds are read before the branch, mostly by one call.
        let natives = chosen().map(|(native, _)| slot(emit, native)).collect();
        let Some(compat) = args.compat else {
            pass(emit, natives);
            return;
        };
        let compats = chosen().map(|(_, other)| slot(emit, other.unwrap_or_default())).collect();
        let [is_compat, done] = emit.labels();
        emit.note("a 32-bit call?");
        emit.call(Helper::GetCurrentTask);
        let word = emit.alloc(4);
        emit.address(Reg::R3, Reg::R0, compat.task_offset.cast_signed());
        emit.read_kernel((Reg::R10, word), 4);
        emit.load(Width::W, Reg::R0, Reg::R10, word);
        emit.jump32_if(Cond::Set, Reg::R0, compat.mask.cast_signed(), is_compat);
        pass(emit, natives);
        emit.jump(done);
        emit.bind(is_compat);
        pass(emit, compats);
        emit.bind(done);
    }

    /// R0 = the task state of `sched_switch`: the highest of the reported bits, or `TASK_REPORT_MAX` if the task was
    /// preempted.
    fn switch_state(&mut self, emit: &mut Emitter, state: SwitchState) {
        // include/linux/sched.h: TASK_REPORT, TASK_REPORT_IDLE, TASK_REPORT_MAX, TASK_IDLE,
        // TASK_UNINTERRUPTIBLE, TASK_RTLOCK_WAIT | TASK_FROZEN.
        const REPORT: i32 = 0x7f;
        const REPORT_IDLE: i32 = 0x80;
        const REPORT_MAX: i32 = 0x100;
        const IDLE: i32 = 0x402;
        const UNINTERRUPTIBLE: i32 = 0x2;
        const REPORTED_AS_SLEEPING: i32 = 0x9000;

        let [preempted, not_idle, sleeping, highest, done] = emit.labels();
        emit.load_context(Width::B, Reg::R0, 8 * usize::from(state.preempt));
        emit.jump_if(Cond::Ne, Reg::R0, 0, preempted);
        self.memory.value(emit, state.task, &[state.exit_state], 0, Width::W);
        emit.load_context(Width::W, Reg::R2, 8 * usize::from(state.state));
        emit.alu(Alu::Or, Reg::R0, Reg::R2);
        emit.alu(Alu::And, Reg::R0, REPORT);
        emit.mov(Reg::R4, Reg::R2);
        emit.alu(Alu::And, Reg::R4, IDLE);
        emit.jump_if(Cond::Ne, Reg::R4, IDLE, not_idle);
        emit.mov(Reg::R0, REPORT_IDLE);
        emit.bind(not_idle);
        emit.jump_if(Cond::Set, Reg::R2, REPORTED_AS_SLEEPING, sleeping);
        emit.jump(highest);
        emit.bind(sleeping);
        emit.mov(Reg::R0, UNINTERRUPTIBLE);
        emit.bind(highest);
        for shift in [1, 2, 4] {
            emit.mov(Reg::R4, Reg::R0);
            emit.alu(Alu::Rsh, Reg::R4, shift);
            emit.alu(Alu::Or, Reg::R0, Reg::R4);
        }
        emit.mov(Reg::R4, Reg::R0);
        emit.alu(Alu::Rsh, Reg::R4, 1);
        emit.alu(Alu::Sub, Reg::R0, Reg::R4);
        emit.jump(done);
        emit.bind(preempted);
        emit.mov(Reg::R0, REPORT_MAX);
        emit.bind(done);
    }
}

/// R0 = bytes of the common word.
fn common_field(emit: &mut Emitter, offset: usize, size: usize) {
    emit.uses.common = true;
    // Type and pid are always filled; flags and preempt count are between them.
    emit.uses.flags |= offset < 4 && offset + size > 2;
    let common = emit.common;
    emit.mov(Reg::R0, common);
    if offset > 0 {
        emit.alu(Alu::Rsh, Reg::R0, 8 * offset as i32);
    }
    if offset + size < COMMON_SIZE {
        emit.truncate(size);
    }
}

/// R0 = `width` bytes of R0 from byte `inner` on.
fn part(emit: &mut Emitter, inner: usize, width: Width) {
    if inner > 0 {
        emit.alu(Alu::Rsh, Reg::R0, 8 * inner as i32);
    }
    emit.truncate(width.bytes());
}
