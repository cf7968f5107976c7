//! Disables preemption while a program runs.
//!
//! A thread that preempts a program at a uprobe runs it too, and uses the same stack, where the kernel gives the program
//! one stack per CPU. The calls cover all of the program, because it has values on its stack from its first to its last
//! instruction.
//!
//! A program at a function or at a raw tracepoint does not run for a thread that preempts it. The call that enables
//! preemption can reschedule at once, before the program has ended. It does not reschedule while interrupts are
//! disabled. The kernel then reschedules when it next enables preemption, which is after the program's end. It still
//! skips hits while a thread is suspended before the program's first call or after its last one.

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
    // R6 keeps the context during the first call, and the result during the others.
    let around = |calls: &[Insn], kept: Reg| -> Vec<Item> {
        let keep = Insn::alu(Alu::Mov, Reg::R6, Operand::Reg(kept));
        let take = Insn::alu(Alu::Mov, kept, Operand::Reg(Reg::R6));
        [keep].iter().chain(calls).chain([&take]).copied().map(Item::plain).collect()
    };
    // The state of interrupts is in the first slot of the stack, which no program needs at its end.
    let with_slot = |function: u32| {
        [
            Insn::alu(Alu::Mov, Reg::R1, Operand::Reg(Reg::R10)),
            Insn::alu(Alu::Add, Reg::R1, Operand::Imm(-8)),
            Insn::call_kernel(function),
        ]
    };
    let mut last = vec![Insn::call_kernel(guard.enable)];
    if let Some(interrupts) = guard.interrupts {
        last.splice(0..0, with_slot(interrupts.save));
        last.extend(with_slot(interrupts.restore));
    }
    program.edit(|at, item| match (at, item.insn.op) {
        (0, _) => {
            let first = around(&[Insn::call_kernel(guard.disable)], Reg::R1);
            Edit::Replace(first.into_iter().chain([*item]).collect())
        }
        (_, EXIT) if main.contains(&at) => {
            Edit::Replace(around(&last, Reg::R0).into_iter().chain([*item]).collect())
        }
        _ => Edit::Keep,
    });
    program.encode()
}
