//! The stack frame of a function: its depth, and moving it further down.

use std::ops::Range;

use super::{flow, program::Program};
use crate::code::asm::{Alu, Insn, Operand, Reg, SOURCE_REG, Width, class};

/// Number of the frame register.
pub(super) const FRAME: u8 = Reg::R10 as u8;

/// How an item uses the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A load or store at an offset.
    Access(i16),
    /// An address is taken: the item adds this offset.
    Address(i32),
}

/// Uses of the frame in a part of the program, by item; None if this function does not understand one of them.
pub(super) fn uses(program: &Program, landings: &[bool], part: Range<usize>) -> Option<Vec<(usize, Use)>> {
    let mut found = Vec::new();
    for at in part.clone() {
        let insn = program.items[at].insn;
        let reads = flow::effect(&program.items[at]).0;
        if !reads.has(FRAME) {
            continue;
        }
        let access = match insn.class() {
            class::LDX | class::ST => true,
            // A store of the frame's address itself is not an access to the frame.
            class::STX => insn.dst == FRAME && insn.src != FRAME,
            _ => false,
        };
        if access {
            found.push((at, Use::Access(insn.off)));
        } else if is_move(insn, FRAME) {
            let (add, offset) = added(program, landings, at, part.end)?;
            found.push((add, Use::Address(offset)));
        } else {
            return None;
        }
    }
    Some(found)
}

/// Whether the instruction is `dst = register`, 64 bits.
pub(super) fn is_move(insn: Insn, register: u8) -> bool {
    insn.op == class::ALU64 | Alu::Mov as u8 | SOURCE_REG && insn.src == register && insn.off == 0
}

/// The `r += imm` that follows the move at `at` on the straight path, and its immediate.
fn added(program: &Program, landings: &[bool], at: usize, end: usize) -> Option<(usize, i32)> {
    let register = program.items[at].insn.dst;
    for (here, item) in program.items.iter().enumerate().take(end).skip(at + 1) {
        if landings[here] {
            return None;
        }
        let (reads, writes) = flow::effect(item);
        if item.insn.op == class::ALU64 | Alu::Add as u8 && item.insn.dst == register {
            return Some((here, item.insn.imm));
        }
        if reads.has(register) || writes.has(register) || item.insn.is_jump() || item.insn.ends_block() {
            return None;
        }
    }
    None
}

/// Number of bytes below the frame's end that these uses reach, rounded up to a multiple of eight.
pub(super) fn depth(uses: &[(usize, Use)]) -> i32 {
    let lowest = uses.iter().map(|(_, one)| match one {
        Use::Access(offset) => i32::from(*offset),
        Use::Address(offset) => *offset,
    });
    (-lowest.min().unwrap_or(0).min(0) + 7) & !7
}

/// The instruction with its use of the frame moved down by `by` bytes.
pub(super) fn lowered(mut insn: Insn, one: Use, by: i32) -> Insn {
    match one {
        Use::Access(offset) => insn.off = offset - by as i16,
        Use::Address(offset) => insn.imm = offset - by,
    }
    insn
}

/// `*(u64 *)(r10 + offset) = register`, and the load back.
pub(super) fn spill(register: u8, offset: i32) -> [Insn; 2] {
    let save = Insn::store(Width::D, Reg::R10, offset as i16, Operand::Reg(Reg::R0));
    let back = Insn::load(Width::D, Reg::R0, Reg::R10, offset as i16);
    [Insn { src: register, ..save }, Insn { dst: register, ..back }]
}
