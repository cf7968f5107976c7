//! The values of a dynamic event: fetches one value, or a word of memory that a value points to.
//!
//! R6 is the context, R9 the value. The steps are those of the kernel (`process_fetch_insn_bottom()`,
//! `kernel/trace/trace_probe_tmpl.h`). A value that cannot be read is 0. As in the kernel, an address below the
//! kernel's half is in user memory (`probe_mem_read()`).

use crate::{
    code::{
        asm::{Alu, Cond, Helper, Label, Reg, Width},
        lower::emitter::{COMM_SIZE, Emitter},
    },
    event::Field,
    plan::probe::{ArgPlan, Deref, Origin, ProbeContext, ProbePlan, Step, Value},
};

/// Bits of an address within a kernel stack: `THREAD_SIZE`, 16 KiB.
const STACK_BITS: i32 = 14;
/// Sizes in bytes of `endbr64` and of the call of the function tracer, on x86.
const ENDBR: i32 = 4;
const CALL: i32 = 5;
/// Byte offset of `bp_addr` in `struct uprobe_dispatch_data`, kernel/trace/trace_uprobe.c.
const DISPATCHED_ADDRESS: i32 = 8;

/// Which memory an address is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressSpace {
    Kernel,
    User,
    /// The value of the address selects the memory.
    Either,
}

impl AddressSpace {
    /// The memory that a value is read from: user memory if the probe is in user space (`is_user_probe`) or the value's
    /// definition selects it (`is_user_value`).
    pub(super) fn of(is_user_probe: bool, is_user_value: bool) -> Self {
        if is_user_probe || is_user_value { Self::User } else { Self::Either }
    }

    /// Copies `size` bytes of memory from R3; R0 is 0 on success.
    pub(super) fn read(self, emit: &mut Emitter, (to, off): (Reg, i16), size: usize) {
        emit.address(Reg::R1, to, i32::from(off));
        emit.mov(Reg::R2, size as i32);
        self.call(emit, Helper::ProbeReadKernel, Helper::ProbeReadUser);
    }

    /// Calls the helper that reads a text of at most R2 bytes from R3 into R1.
    pub(super) fn read_text(self, emit: &mut Emitter) {
        self.call(emit, Helper::ProbeReadKernelStr, Helper::ProbeReadUserStr);
    }

    fn call(self, emit: &mut Emitter, kernel: Helper, user: Helper) {
        match self {
            Self::Kernel => emit.call(kernel),
            Self::User => emit.call(user),
            Self::Either => {
                let [below, done] = emit.labels();
                emit.jump_if(Cond::SGe, Reg::R3, 0, below);
                emit.call(kernel);
                emit.jump(done);
                emit.bind(below);
                emit.call(user);
                emit.bind(done);
            }
        }
    }
}

/// Fetches the values of a record, and owns the stack words that they share.
pub(super) struct Fetch<'a> {
    pub(super) plan: &'a ProbePlan,
    /// Stack offset of the call's words.
    pub(super) call: Option<i16>,
    /// Stack offset of the arguments saved at the entry.
    pub(super) entry_args: Option<i16>,
    /// Stack offset of the word for reads.
    slot: Option<i16>,
    /// Stack offset of the text of a definition. One is there at a time.
    text: Option<i16>,
}

impl<'a> Fetch<'a> {
    /// For values that need neither the words of a call nor saved arguments.
    pub(super) fn new(plan: &'a ProbePlan) -> Self {
        Self { plan, call: None, entry_args: None, slot: None, text: None }
    }

    /// Stack offset of a word for reads.
    pub(super) fn slot(&mut self, emit: &mut Emitter) -> i16 {
        *self.slot.get_or_insert_with(|| emit.alloc(8))
    }

    /// Stack offset of memory for the longest text of the definition, and its NUL.
    fn text(&mut self, emit: &mut Emitter) -> i16 {
        let length = |arg: &ArgPlan| match &arg.value.from {
            Origin::Text(text) => text.len(),
            _ => 0,
        };
        let longest = self.plan.args.iter().map(length).max().unwrap_or(0);
        *self.text.get_or_insert_with(|| emit.alloc((longest + 1).next_multiple_of(8)))
    }

    /// R9 = a value.
    pub(super) fn value(&mut self, emit: &mut Emitter, value: &Value) {
        let call = self.call.unwrap_or_default();
        let word = |word: u8| call + 8 * i16::from(word);
        match &value.from {
            Origin::Nothing => {
                emit.constant(Reg::R9, value.plus.cast_unsigned());
                return;
            }
            Origin::Context(offset) => emit.load(Width::D, Reg::R9, Reg::R6, *offset as i16),
            Origin::Call(at) => emit.load(Width::D, Reg::R9, Reg::R10, word(*at)),
            Origin::EntryArg(at) => {
                let place = self.entry_args.unwrap_or_default() + 8 * i16::from(*at);
                emit.load(Width::D, Reg::R9, Reg::R10, place);
            }
            Origin::CallReturn { told_by, inside, outside, start, size } => {
                let [other, done] = emit.labels();
                if *start == 0 {
                    emit.mov(Reg::R1, Reg::R6);
                    emit.call(Helper::GetFuncIp);
                    emit.mov(Reg::R1, Reg::R0);
                } else {
                    emit.constant(Reg::R1, *start);
                }
                emit.load(Width::D, Reg::R0, Reg::R10, word(*told_by));
                emit.alu(Alu::Sub, Reg::R0, Reg::R1);
                emit.constant(Reg::R1, *size);
                emit.jump_if(Cond::Ge, Reg::R0, Reg::R1, other);
                emit.load(Width::D, Reg::R9, Reg::R10, word(*inside));
                emit.jump(done);
                emit.bind(other);
                emit.load(Width::D, Reg::R9, Reg::R10, word(*outside));
                emit.bind(done);
            }
            Origin::Function => {
                emit.mov(Reg::R1, Reg::R6);
                emit.call(Helper::GetFuncIp);
                emit.mov(Reg::R9, Reg::R0);
            }
            Origin::FunctionInTask { utask, vaddr } => {
                let slot = self.slot(emit);
                emit.call(Helper::GetCurrentTask);
                emit.mov(Reg::R9, Reg::R0);
                for offset in [utask.cast_signed(), vaddr.cast_signed(), DISPATCHED_ADDRESS] {
                    self.deref(emit, AddressSpace::Kernel, offset);
                    emit.load(Width::D, Reg::R9, Reg::R10, slot);
                }
            }
            Origin::FunctionPlace(ip) => {
                let [marked, done] = emit.labels();
                emit.mov(Reg::R1, Reg::R6);
                emit.call(Helper::GetFuncIp);
                emit.load(Width::D, Reg::R9, Reg::R6, *ip as i16);
                emit.alu(Alu::Sub, Reg::R9, Reg::R0);
                for distance in [ENDBR, ENDBR + CALL] {
                    emit.jump_if(Cond::Eq, Reg::R9, distance, marked);
                }
                emit.mov(Reg::R9, Reg::R0);
                emit.jump(done);
                emit.bind(marked);
                emit.mov(Reg::R9, Reg::R0);
                emit.alu(Alu::Add, Reg::R9, ENDBR);
                emit.bind(done);
            }
            Origin::Stack(number) => self.stack_word(emit, *number),
            Origin::Comm => {
                let slot = emit.alloc(COMM_SIZE);
                emit.read_comm((Reg::R10, slot));
                emit.address(Reg::R9, Reg::R10, i32::from(slot));
            }
            Origin::Task => {
                emit.call(Helper::GetCurrentTask);
                emit.mov(Reg::R9, Reg::R0);
            }
            Origin::Text(text) => {
                let mut bytes = text.clone();
                bytes.resize((text.len() + 1).next_multiple_of(8), 0);
                let slot = self.text(emit);
                for (at, word) in (slot..).step_by(8).zip(bytes.as_chunks().0) {
                    emit.constant(Reg::R0, u64::from_le_bytes(*word));
                    emit.store(Width::D, Reg::R10, at, Reg::R0);
                }
                emit.address(Reg::R9, Reg::R10, i32::from(slot));
            }
            Origin::Field(field) => record_field(emit, field),
        }
        match i32::try_from(value.plus) {
            Ok(0) => {}
            Ok(plus) => emit.alu(Alu::Add, Reg::R9, plus),
            Err(_) => {
                emit.constant(Reg::R0, value.plus.cast_unsigned());
                emit.alu(Alu::Add, Reg::R9, Reg::R0);
            }
        }
    }

    /// R9 = a word of the stack; 0 if the word is outside of the kernel stack.
    fn stack_word(&mut self, emit: &mut Emitter, number: u32) {
        let ProbeContext::Registers(arch) = self.plan.context else { return };
        let sp = arch.register("sp").unwrap_or_default();
        let slot = self.slot(emit);
        let done = emit.label();
        emit.load(Width::D, Reg::R3, Reg::R6, sp as i16);
        let memory = if self.plan.user {
            emit.alu(Alu::Add, Reg::R3, 8 * number.cast_signed());
            AddressSpace::User
        } else {
            emit.mov(Reg::R9, 0);
            emit.mov(Reg::R0, Reg::R3);
            emit.alu(Alu::Add, Reg::R3, 8 * number.cast_signed());
            emit.alu(Alu::Xor, Reg::R0, Reg::R3);
            emit.alu(Alu::Rsh, Reg::R0, STACK_BITS);
            emit.jump_if(Cond::Ne, Reg::R0, 0, done);
            AddressSpace::Kernel
        };
        memory.read(emit, (Reg::R10, slot), 8);
        emit.load(Width::D, Reg::R9, Reg::R10, slot);
        emit.bind(done);
    }

    /// Reads the word at R9 plus an offset to the stack; R0 is 0 on success.
    pub(super) fn deref(&mut self, emit: &mut Emitter, memory: AddressSpace, offset: i32) {
        let slot = self.slot(emit);
        emit.address(Reg::R3, Reg::R9, offset);
        memory.read(emit, (Reg::R10, slot), 8);
    }

    /// R9 = the value after a step. Jumps to `fault` if memory cannot be read.
    pub(super) fn step(&mut self, emit: &mut Emitter, step: &Step, fault: Label) {
        let slot = self.slot(emit);
        match *step {
            Step::Deref(Deref { user, offset }) => {
                self.deref(emit, AddressSpace::of(self.plan.user, user), offset);
                emit.jump_if(Cond::Ne, Reg::R0, 0, fault);
                emit.load(Width::D, Reg::R9, Reg::R10, slot);
            }
            Step::ThisCpu { table } => {
                emit.call(Helper::GetSmpProcessorId);
                emit.alu(Alu::Lsh, Reg::R0, 3);
                emit.constant(Reg::R3, table);
                emit.alu(Alu::Add, Reg::R3, Reg::R0);
                AddressSpace::Kernel.read(emit, (Reg::R10, slot), 8);
                emit.jump_if(Cond::Ne, Reg::R0, 0, fault);
                emit.load(Width::D, Reg::R0, Reg::R10, slot);
                emit.alu(Alu::Add, Reg::R9, Reg::R0);
            }
        }
    }
}

/// The steps of an argument: for an array of texts, whose elements are at adjacent pointers, the last read separately.
pub(super) fn steps(arg: &ArgPlan) -> (Option<&Deref>, &[Step]) {
    match arg.steps.split_last() {
        Some((Step::Deref(last), before)) if arg.is_text() && arg.count > 1 => (Some(last), before),
        _ => (None, &arg.steps),
    }
}

/// Copies the words of a call to the stack. In the context they have BTF types, and the verifier refuses loads of
/// some of them.
pub(super) fn call_words(emit: &mut Emitter, last: u8) -> i16 {
    let size = 8 * (usize::from(last) + 1);
    let slot = emit.alloc(size);
    emit.note("the call's words");
    emit.mov(Reg::R3, Reg::R6);
    emit.read_kernel((Reg::R10, slot), size as i32);
    slot
}

/// R9 = a field of the record that is the context: a number, or the address of a text.
fn record_field(emit: &mut Emitter, field: &Field) {
    let offset = field.offset;
    if field.is_data_loc() || field.is_rel_loc() {
        // The verifier accepts only aligned loads of a context.
        if offset.is_multiple_of(2) {
            emit.load(Width::H, Reg::R0, Reg::R6, offset as i16);
        } else {
            emit.load(Width::B, Reg::R0, Reg::R6, offset as i16);
            emit.load(Width::B, Reg::R9, Reg::R6, offset as i16 + 1);
            emit.alu(Alu::Lsh, Reg::R9, 8);
            emit.alu(Alu::Or, Reg::R0, Reg::R9);
            // Changes nothing; 6.1's verifier does not see that the value has 16 bits.
            emit.alu(Alu::And, Reg::R0, 0xffff);
        }
        if field.is_rel_loc() {
            emit.alu(Alu::Add, Reg::R0, field.end() as i32);
        }
        emit.mov(Reg::R9, Reg::R6);
        emit.alu(Alu::Add, Reg::R9, Reg::R0);
        return;
    }
    let Some(width) = Width::of(field.size).filter(|_| field.array.is_none()) else {
        emit.address(Reg::R9, Reg::R6, offset as i32);
        return;
    };
    if offset.is_multiple_of(field.size) {
        emit.load(width, Reg::R9, Reg::R6, offset as i16);
    } else {
        let slot = emit.alloc(field.size);
        emit.address(Reg::R3, Reg::R6, offset as i32);
        emit.read_kernel((Reg::R10, slot), field.size as i32);
        emit.load(width, Reg::R9, Reg::R10, slot);
    }
    if field.signed {
        emit.extend_sign(Reg::R9, field.size);
    }
}
