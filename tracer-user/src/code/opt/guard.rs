//! Disables preemption while a program runs.
//!
//! A thread that preempts a program and runs it too uses the same stack, where the kernel gives the program one stack
//! per CPU. The calls cover all of the program, because it has values on its stack from its first to its last
//! instruction.

use super::program::{Edit, Item, Program};
use crate::code::asm::{Alu, EXIT, Helper, Insn, Operand, Reg};
use crate::kernel::PreemptGuard;

/// The program with preemption disabled from its start to its exits. `None` for a program with a tail call, which it may
/// not make with preemption disabled, and for code that this module does not understand.
pub fn guarded(insns: &[Insn], guard: PreemptGuard) -> Option<Vec<Insn>> {
    let mut program = Program::decode(insns)?;
    let calls_program = program.items.iter().any(|item| item.insn == Insn::call(Helper::TailCall));
    let first_moves = program.items.first().is_none_or(|item| item.to.is_some());
    if calls_program || first_moves || program.landings()[0] {
        return None;
    }
    let main = program.extent(0);
    // R6 keeps the context during the first call, and the result during the second.
    let around = |function: u32, kept: Reg| {
        [
            Insn::alu(Alu::Mov, Reg::R6, Operand::Reg(kept)),
            Insn::call_kernel(function),
            Insn::alu(Alu::Mov, kept, Operand::Reg(Reg::R6)),
        ]
        .map(Item::plain)
    };
    program.edit(|at, item| match (at, item.insn.op) {
        (0, _) => Edit::Replace(around(guard.disable, Reg::R1).into_iter().chain([*item]).collect()),
        (_, EXIT) if main.contains(&at) => {
            Edit::Replace(around(guard.enable, Reg::R0).into_iter().chain([*item]).collect())
        }
        _ => Edit::Keep,
    });
    program.encode()
}
