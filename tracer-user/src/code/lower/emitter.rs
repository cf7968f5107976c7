//! The function that is being generated: its instructions, the roles of its registers, its stack frame, and the facts
//! at each point.
//!
//! R6 is the context, R7 scratch memory or the payload, R8 the common word. A function that calls no helper keeps its
//! arguments where they arrive and needs no prologue. The function's [`Uses`] are known only at its end. It is
//! therefore lowered twice: the first pass collects the uses, the second pass starts from them.

use std::ops::{Deref, DerefMut};

use super::facts::Facts;
use crate::code::asm::{Alu, Assembler, Cond, Function, Helper, Label, MapRef, Operand, Reg, Width};

/// Bytes of a task's name: `TASK_COMM_LEN`, include/linux/sched.h.
pub(super) const COMM_SIZE: usize = 16;

/// Arguments and calls that a function uses.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the facts are independent")]
pub(super) struct Uses {
    /// It calls helpers, which overwrite R1 to R5.
    pub(super) calls: bool,
    pub(super) scratch: bool,
    /// It reads the common word.
    pub(super) common: bool,
    /// It reads the flags or the preempt count in the common word.
    pub(super) flags: bool,
    /// Number of different searches.
    pub(super) searches: usize,
}

/// Emits one function. It is an [`Assembler`] with its own labels, jumps and calls, which keep the uses and the facts: do
/// not pass it as an `Assembler` to what emits these.
pub(super) struct Emitter {
    asm: Assembler,
    /// From the first pass; completed by each pass.
    pub(super) uses: Uses,
    pub(super) facts: Facts,
    /// Register of the context.
    pub(super) ctx: Reg,
    /// Register of the common word.
    pub(super) common: Reg,
    /// Bytes of the stack frame that are allocated, from the top down.
    frame: i32,
}

impl Deref for Emitter {
    type Target = Assembler;

    fn deref(&self) -> &Assembler {
        &self.asm
    }
}

impl DerefMut for Emitter {
    fn deref_mut(&mut self) -> &mut Assembler {
        &mut self.asm
    }
}

impl Emitter {
    pub(super) fn new(uses: Uses) -> Self {
        let (ctx, common) = if uses.calls { (Reg::R6, Reg::R8) } else { (Reg::R1, Reg::R3) };
        Self { asm: Assembler::new(), uses, facts: Facts::default(), ctx, common, frame: 0 }
    }

    /// For a function that calls helpers and needs only one pass.
    pub(super) fn with_calls() -> Self {
        Self::new(Uses { calls: true, ..Uses::default() })
    }

    /// Moves the arguments to registers that calls preserve, if there are calls.
    pub(super) fn prologue(&mut self) {
        if self.uses.calls {
            self.mov(Reg::R6, Reg::R1);
            if self.uses.scratch {
                self.mov(Reg::R7, Reg::R2);
            }
            if self.uses.common {
                self.mov(Reg::R8, Reg::R3);
            }
        }
    }

    pub(super) fn finish(self, name: &str) -> Function {
        self.asm.finish(name)
    }

    /// Scratch memory is always in R7, which calls preserve.
    pub(super) fn use_scratch(&mut self) {
        self.uses.scratch = true;
        self.uses.calls = true;
    }

    /// Allocates `size` bytes of the stack at an address that is a multiple of 8; returns the offset from R10.
    pub(super) fn alloc(&mut self, size: usize) -> i16 {
        self.alloc_at(size, 0)
    }

    /// Allocates `size` bytes of the stack at an address that is `phase` modulo 8; returns the offset from R10.
    pub(super) fn alloc_at(&mut self, size: usize, phase: usize) -> i16 {
        let end = self.frame + (size + phase) as i32;
        self.frame = (end + 7) & !7;
        (phase as i32 - self.frame) as i16
    }

    /// Allocates a word of the stack and stores a value there; returns its offset from R10.
    pub(super) fn save(&mut self, value: impl Into<Operand>) -> i16 {
        let slot = self.alloc(8);
        self.store(Width::D, Reg::R10, slot, value);
        slot
    }

    pub(super) fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.label())
    }

    /// Binds a label to the next instruction.
    pub(super) fn bind(&mut self, label: Label) {
        self.asm.bind(label);
        self.facts.arrive(label);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jump_past(to);
        self.facts.end();
    }

    /// Jumps like [`Self::jump`], but keeps the facts for the code after the jump.
    pub(super) fn jump_past(&mut self, to: Label) {
        self.asm.jump(to);
        self.facts.leave(to);
    }

    pub(super) fn jump_if(&mut self, cond: Cond, reg: Reg, value: impl Into<Operand>, to: Label) {
        self.asm.jump_if(cond, reg, value, to);
        self.facts.leave(to);
    }

    /// Compares the low 32 bits.
    pub(super) fn jump32_if(&mut self, cond: Cond, reg: Reg, value: impl Into<Operand>, to: Label) {
        self.asm.jump32_if(cond, reg, value, to);
        self.facts.leave(to);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.uses.calls = true;
        self.asm.call(helper);
    }

    /// `dst` = bytes of the context.
    pub(super) fn load_context(&mut self, width: Width, dst: Reg, off: usize) {
        self.asm.load(width, dst, self.ctx, off as i16);
    }

    /// `dst` = address of the context plus an offset.
    pub(super) fn context_address(&mut self, dst: Reg, off: usize) {
        self.asm.address(dst, self.ctx, off as i32);
    }

    /// Copies `size` bytes of kernel memory from R3; R0 is 0 on success.
    pub(super) fn read_kernel(&mut self, (to, off): (Reg, i16), size: impl Into<Operand>) {
        self.address(Reg::R1, to, i32::from(off));
        self.mov(Reg::R2, size);
        self.call(Helper::ProbeReadKernel);
    }

    /// Copies the name of the current task, [`COMM_SIZE`] bytes.
    pub(super) fn read_comm(&mut self, (to, off): (Reg, i16)) {
        self.address(Reg::R1, to, i32::from(off));
        self.mov(Reg::R2, COMM_SIZE as i32);
        self.call(Helper::GetCurrentComm);
    }

    /// R0 = address of a map's value for the key on the stack, or 0.
    pub(super) fn look_up(&mut self, map: MapRef, key: i16) {
        self.map(Reg::R1, map);
        self.address(Reg::R2, Reg::R10, i32::from(key));
        self.call(Helper::MapLookupElem);
    }

    /// Copies `size` bytes, a multiple of 8, through R1.
    pub(super) fn copy_words(&mut self, (to, to_off): (Reg, i16), (from, from_off): (Reg, i16), size: usize) {
        for word in (0..size as i16).step_by(8) {
            self.load(Width::D, Reg::R1, from, from_off + word);
            self.store(Width::D, to, to_off + word, Reg::R1);
        }
    }

    /// `reg` = the smaller of `reg` and `max`, unsigned.
    pub(super) fn limit(&mut self, reg: Reg, max: usize) {
        let fits = self.label();
        self.jump_if(Cond::Le, reg, max as i32, fits);
        self.mov(reg, max as i32);
        self.bind(fits);
    }

    /// Jumps to `out` if R0, the result of `bpf_get_current_pid_tgid`, is of this process.
    pub(super) fn leave_process(&mut self, process: Option<u32>, out: Label) {
        if let Some(process) = process {
            self.mov(Reg::R1, Reg::R0);
            self.alu(Alu::Rsh, Reg::R1, 32);
            self.jump_if(Cond::Eq, Reg::R1, process.cast_signed(), out);
        }
    }

    /// Extends the sign of a number of `size` bytes.
    pub(super) fn extend_sign(&mut self, reg: Reg, size: usize) {
        if size < 8 {
            let above = 64 - 8 * size as i32;
            self.alu(Alu::Lsh, reg, above);
            self.alu(Alu::Arsh, reg, above);
        }
    }

    /// The number as an operand, in R5 if it is too wide for an immediate.
    pub(super) fn operand(&mut self, number: u64) -> Operand {
        if let Ok(imm) = i32::try_from(number.cast_signed()) {
            return Operand::Imm(imm);
        }
        self.constant(Reg::R5, number);
        Operand::Reg(Reg::R5)
    }

    /// Zero-extends R0 from a width.
    pub(super) fn truncate(&mut self, size: usize) {
        match size {
            4 => self.alu32(Alu::Mov, Reg::R0, Reg::R0),
            1 | 2 => self.alu(Alu::And, Reg::R0, (1 << (8 * size)) - 1),
            _ => {}
        }
    }
}
