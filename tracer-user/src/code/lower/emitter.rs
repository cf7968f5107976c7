//! The function that is being generated: its instructions, the roles of its registers, its stack frame, and the facts
//! at each point.
//!
//! R6 is the context, R7 scratch memory or the payload, R8 the common word. A function that calls no helper keeps its
//! arguments where they arrive and needs no prologue. The function's [`Uses`] are known only at its end. It is
//! therefore lowered twice: the first pass collects the uses, the second pass starts from them.

use super::facts::{Fact, Facts};
use crate::code::asm::{Alu, Assembler, Atomic, Cond, Function, Helper, Label, MapRef, Operand, Reg, Width};

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

/// Emits one function.
pub(super) struct Emitter {
    asm: Assembler,
    /// From the first pass; completed by each pass.
    uses: Uses,
    ctx: Reg,
    common: Reg,
    /// Bytes of the stack frame that are allocated, from the top down.
    frame: i32,
    facts: Facts,
}

impl Emitter {
    pub(super) fn new(uses: Uses) -> Self {
        let (ctx, common) = if uses.calls { (Reg::R6, Reg::R8) } else { (Reg::R1, Reg::R3) };
        Self { asm: Assembler::new(), uses, ctx, common, frame: 0, facts: Facts::default() }
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

    pub(super) fn uses(&self) -> Uses {
        self.uses
    }

    /// Scratch memory is always in R7, which calls preserve.
    pub(super) fn use_scratch(&mut self) {
        self.uses.scratch = true;
        self.uses.calls = true;
    }

    pub(super) fn use_common(&mut self) {
        self.uses.common = true;
    }

    /// Notes that flags or preempt count are read, if `read`.
    pub(super) fn use_flags(&mut self, read: bool) {
        self.uses.flags |= read;
    }

    /// Register of the context.
    pub(super) fn ctx(&self) -> Reg {
        self.ctx
    }

    /// Register of the common word.
    pub(super) fn common(&self) -> Reg {
        self.common
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

    pub(super) fn has(&self, fact: Fact) -> bool {
        self.facts.has(fact)
    }

    pub(super) fn facts(&mut self) -> &mut Facts {
        &mut self.facts
    }

    pub(super) fn label(&mut self) -> Label {
        self.asm.label()
    }

    pub(super) fn labels<const N: usize>(&mut self) -> [Label; N] {
        std::array::from_fn(|_| self.asm.label())
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

    pub(super) fn call_function(&mut self, name: impl Into<String>) {
        self.asm.call_function(name);
    }

    pub(super) fn exit(&mut self) {
        self.asm.exit();
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.asm.note(text);
    }

    pub(super) fn load(&mut self, width: Width, dst: Reg, src: Reg, off: i16) {
        self.asm.load(width, dst, src, off);
    }

    pub(super) fn store(&mut self, width: Width, dst: Reg, off: i16, value: impl Into<Operand>) {
        self.asm.store(width, dst, off, value);
    }

    pub(super) fn atomic(&mut self, width: Width, op: Atomic, dst: Reg, off: i16, value: Reg) {
        self.asm.atomic(width, op, dst, off, value);
    }

    pub(super) fn alu(&mut self, op: Alu, dst: Reg, value: impl Into<Operand>) {
        self.asm.alu(op, dst, value);
    }

    pub(super) fn alu32(&mut self, op: Alu, dst: Reg, value: impl Into<Operand>) {
        self.asm.alu32(op, dst, value);
    }

    pub(super) fn mov(&mut self, dst: Reg, value: impl Into<Operand>) {
        self.asm.mov(dst, value);
    }

    pub(super) fn constant(&mut self, dst: Reg, value: u64) {
        self.asm.constant(dst, value);
    }

    /// `dst = reg + off`
    pub(super) fn address(&mut self, dst: Reg, reg: Reg, off: i32) {
        self.asm.address(dst, reg, off);
    }

    /// `dst = address of the function`
    pub(super) fn function(&mut self, dst: Reg, name: impl Into<String>) {
        self.asm.function(dst, name);
    }

    pub(super) fn map(&mut self, dst: Reg, map: MapRef) {
        self.asm.map(dst, map);
    }

    /// `dst = address of the map's first value`
    pub(super) fn map_value(&mut self, dst: Reg, map: MapRef) {
        self.asm.map_value(dst, map);
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
