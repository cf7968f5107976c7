//! Replaces calls of `bpf_probe_read_kernel` by direct loads of kernel memory.
//!
//! The kernel function `bpf_rdonly_cast` (6.2, a35b9af4ec2c) turns any number into a readable pointer to a type of the
//! kernel's BTF. It costs nothing, because the verifier replaces it by a move. A load that faults yields zero, as the
//! helper does. A helper call costs 15 to 30 ns where returns are guarded. The type begins with a long array of
//! characters, because the verifier accepts loads of any width inside an array.

use super::{
    flow, frame,
    program::{Edit, Item, Program},
};
use crate::code::asm::{Alu, Helper, Insn, Operand, Reg, Width, class};
use crate::kernel::Cast;

/// The longest read, in bytes, that is replaced; longer reads stay helper calls.
const LONGEST: i32 = 256;

/// A read whose size and destination are known.
struct Read {
    /// Base register of the destination: the frame register, or a register that a call preserves.
    base: u8,
    /// Offset of the destination from the base register.
    slot: i32,
    size: i32,
}

/// Replaces every read whose size and destination are known and whose result is not used.
pub(super) fn direct(program: &mut Program, cast: Cast) {
    let landings = program.landings();
    let needed = flow::needed_after(program);
    let reads: Vec<Option<Read>> = (0..program.items.len())
        .map(|at| read(program, &landings, at).filter(|_| !needed[at].has(Reg::R0 as u8)))
        .collect();
    program.edit(|at, _| match &reads[at] {
        Some(read) => Edit::Replace(loads(read, cast).into_iter().map(Item::plain).collect()),
        None => Edit::Keep,
    });
}

/// The read that the item performs, if it is such a call.
fn read(program: &Program, landings: &[bool], at: usize) -> Option<Read> {
    if program.items[at].insn != Insn::call(Helper::ProbeReadKernel) {
        return None;
    }
    let insn = |at: usize| program.items[at].insn;
    let size = insn(flow::definition(program, landings, at, Reg::R2 as u8)?);
    let is_constant = matches!(size.class(), class::ALU | class::ALU64) && size.op & 0xf8 == Alu::Mov as u8;
    let add = flow::definition(program, landings, at, Reg::R1 as u8)?;
    let (start, slot) = if insn(add).op == class::ALU64 | Alu::Add as u8 {
        (flow::definition(program, landings, add, Reg::R1 as u8)?, insn(add).imm)
    } else {
        (add, 0)
    };
    let base = insn(start).src;
    let lasts = base == Reg::R10 as u8 || flow::SAVED.has(base);
    let unchanged = (start..at).all(|at| !flow::effect(&program.items[at]).1.has(base));
    let known = is_constant && frame::is_move(insn(start), base) && lasts && unchanged;
    (known && (1..=LONGEST).contains(&size.imm)).then_some(Read { base, slot, size: size.imm })
}

/// The loads and stores that replace a read from R3.
fn loads(read: &Read, cast: Cast) -> Vec<Insn> {
    let mut insns = vec![Insn::alu(Alu::Mov, Reg::R1, Operand::Reg(Reg::R3))];
    insns.extend(call(cast));
    // The window, rounded down to a multiple of eight.
    let window = (cast.window & !7).cast_signed();
    let (mut done, mut start) = (0, 0);
    while done < read.size {
        // Only accesses to the stack must be aligned.
        let aligned = [8, 4, 2].into_iter().find(|n| (read.slot + done) % n == 0 && *n <= read.size - done);
        let width = aligned.unwrap_or(1);
        if done - start + width > window {
            insns.push(Insn::alu(Alu::Mov, Reg::R1, Operand::Reg(Reg::R0)));
            insns.push(Insn::alu(Alu::Add, Reg::R1, Operand::Imm(done - start)));
            insns.extend(call(cast));
            start = done;
        }
        let kind = Width::of(width as usize).unwrap_or(Width::B);
        insns.push(Insn::load(kind, Reg::R1, Reg::R0, (done - start) as i16));
        let store = Insn::store(kind, Reg::R10, (read.slot + done) as i16, Operand::Reg(Reg::R1));
        insns.push(Insn { dst: read.base, ..store });
        done += width;
    }
    insns
}

/// `r0 = r1`, as a pointer that may be loaded from; clobbers R1 to R5.
fn call(cast: Cast) -> [Insn; 2] {
    let structure = Insn::alu(Alu::Mov, Reg::R2, Operand::Imm(cast.structure.cast_signed()));
    [structure, Insn::call_kernel(cast.function)]
}
