//! Register use: the registers that an instruction reads and writes, and the registers that are read after it.

use std::ops::Range;

use super::program::{Item, Program};
use crate::code::asm::{Alu, Atomic, CALL, EXIT, FETCH, Insn, JA, Reg, SOURCE_REG, class};

/// A set of registers, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Regs(u16);

impl Regs {
    pub(super) const NONE: Self = Self(0);
    /// R1 to R5: the arguments of a call, which it clobbers.
    const ARGUMENTS: Self = Self(0b11_1110);

    pub(super) const fn one(number: u8) -> Self {
        Self(1 << number)
    }

    pub(super) fn has(self, number: u8) -> bool {
        self.0 & 1 << number != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.both(other) != Self::NONE
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |number| self.has(*number))
    }
}

/// R6 to R9, which a called function preserves.
pub(super) const SAVED: Regs = Regs(0b11_1100_0000);

/// The registers that an item reads, and those that it writes.
pub(super) fn effect(item: &Item) -> (Regs, Regs) {
    let insn = item.insn;
    let (dst, src) = (Regs::one(insn.dst), Regs::one(insn.src));
    let from_register = insn.op & SOURCE_REG != 0;
    let source = if from_register { src } else { Regs::NONE };
    match insn.class() {
        class::ALU | class::ALU64 => {
            let moves = insn.op & 0xf0 == Alu::Mov as u8;
            (if moves { source } else { source.with(dst) }, dst)
        }
        class::LDX => (src, dst),
        class::LD => (Regs::NONE, dst),
        class::ST => (dst, Regs::NONE),
        // Compare and exchange reads R0. Operations that fetch return the old value in R0 or in their source.
        class::STX if insn.is_atomic() => {
            let fetched = match insn.imm {
                imm if imm & FETCH == 0 => Regs::NONE,
                imm if imm == Atomic::CompareExchange as i32 => Regs::one(Reg::R0 as u8),
                _ => src,
            };
            (dst.with(src).with(Regs::one(Reg::R0 as u8)), fetched)
        }
        class::STX => (dst.with(src), Regs::NONE),
        _ if insn.op == CALL => (arguments(insn), Regs::ARGUMENTS.with(Regs::one(Reg::R0 as u8))),
        _ if insn.op == EXIT => (Regs::one(Reg::R0 as u8), Regs::NONE),
        _ if insn.op == JA => (Regs::NONE, Regs::NONE),
        _ => (dst.with(source), Regs::NONE),
    }
}

/// Arguments of a call: the exact number for helpers that templates and generated code call often, otherwise all five.
fn arguments(insn: Insn) -> Regs {
    let count = match (insn.src, insn.imm) {
        // bpf_ktime_get_ns, bpf_get_smp_processor_id, bpf_get_current_pid_tgid, bpf_get_current_task{,_btf}.
        (0, 5 | 8 | 14 | 35 | 158) => 0,
        // bpf_map_lookup_elem, bpf_get_current_comm, bpf_ringbuf_submit, bpf_ringbuf_query.
        (0, 1 | 16 | 132 | 134) => 2,
        // bpf_tail_call, bpf_probe_read_{user,kernel}{,_str}, bpf_ringbuf_reserve.
        (0, 12 | 112..=115 | 131) => 3,
        // bpf_get_stack, bpf_ringbuf_output, bpf_loop.
        (0, 67 | 130 | 181) => 4,
        _ => 5,
    };
    (1..=count).map(Regs::one).fold(Regs::NONE, Regs::with)
}

/// Whether an item only sets registers. This includes loads: the kernel handles a bad address, so a load has no other
/// effect.
pub(super) fn is_pure(item: &Item) -> bool {
    matches!(item.insn.class(), class::ALU | class::ALU64 | class::LDX) || item.insn.is_wide()
}

/// For each item, the registers that some path after it reads before writing them.
pub(super) fn needed_after(program: &Program) -> Vec<Regs> {
    read_after(program, 0..program.items.len(), Regs::with, |at, after| {
        needed_before(&program.items[at], after)
    })
}

/// Like [`needed_after`], but ignores reads by items whose results are not needed.
pub(super) fn needed_after_pruning(program: &Program) -> Vec<Regs> {
    read_after(program, 0..program.items.len(), Regs::with, |at, after| {
        let item = &program.items[at];
        let is_idle = is_pure(item) && !effect(item).1.meets(after);
        if is_idle { after } else { needed_before(item, after) }
    })
}

fn needed_before(item: &Item, after: Regs) -> Regs {
    let (reads, writes) = effect(item);
    after.without(writes).with(reads)
}

/// For each item of a part of the program, the set of what some path after it reads before writing it. `with` is the
/// union of two sets, `before` the set before an item by the set after it.
pub(super) fn read_after<T: Copy + Default + PartialEq>(
    program: &Program,
    part: Range<usize>,
    with: fn(T, T) -> T,
    before: impl Fn(usize, T) -> T,
) -> Vec<T> {
    let mut known_before = vec![T::default(); part.len()];
    let mut known_after = known_before.clone();
    // Without a jump back, everything that an item needs is known when it is visited.
    let turns_back = part.clone().any(|at| program.items[at].target().is_some_and(|to| to <= at));
    loop {
        let mut changed = false;
        for at in (0..part.len()).rev() {
            let item = &program.items[part.start + at];
            let next = known_before.get(at + 1).filter(|_| !item.insn.ends_block());
            let target = item.target().map(|to| known_before[to - part.start]);
            let new_after = next.copied().into_iter().chain(target).fold(T::default(), with);
            let new_before = before(part.start + at, new_after);
            if new_after != known_after[at] || new_before != known_before[at] {
                (known_after[at], known_before[at], changed) = (new_after, new_before, true);
            }
        }
        if !changed || !turns_back {
            break;
        }
    }
    known_after
}

/// The item that last wrote a register before item `at` on the straight path to it. None if another path joins, or if
/// no item on the path writes the register.
pub(super) fn definition(program: &Program, landings: &[bool], at: usize, register: u8) -> Option<usize> {
    let mut here = at;
    while here > 0 && !landings[here] {
        here -= 1;
        if program.items[here].insn.ends_block() {
            return None;
        }
        if effect(&program.items[here]).1.has(register) {
            return Some(here);
        }
    }
    None
}
