//! Drops stores into the frame that are never read.
//!
//! Other passes leave such writes: the keys of removed lookups, and the spilled values of folded paths.

use std::ops::Range;

use super::{
    flow,
    frame::FRAME,
    program::{Item, Program},
};
use crate::code::asm::{CALL, Reg, Width, class};

/// Bytes of a frame, one bit each; the first is the byte just below the frame register.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Bytes([u64; 8]);

impl Bytes {
    const ALL: Self = Self([u64::MAX; 8]);

    /// The bytes of an access, without bytes outside of the frame, which the verifier refuses.
    fn of(offset: i16, width: usize) -> Self {
        let mut bytes = Self::default();
        for n in 0..width as i32 {
            if let Ok(at @ 0..512) = usize::try_from(-(i32::from(offset) + n) - 1) {
                bytes.0[at / 64] |= 1 << (at % 64);
            }
        }
        bytes
    }

    fn with(self, other: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }

    fn meets(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| one & other != 0)
    }
}

/// How an item uses the frame of its function.
#[derive(Clone, Copy)]
enum Use {
    Nothing,
    Reads(Bytes),
    Writes(Bytes),
}

/// Removes the stores that no path after them reads.
pub(super) fn drop_unread(program: &mut Program) {
    let mut unread = vec![false; program.items.len()];
    for start in program.starts.clone() {
        let extent = program.extent(start);
        let uses = uses(program, extent.clone());
        let read_after =
            flow::read_after(program, extent.clone(), Bytes::with, |at, after| match uses[at - start] {
                Use::Nothing => after,
                Use::Reads(bytes) => after.with(bytes),
                Use::Writes(bytes) => after.without(bytes),
            });
        for (at, (one, later)) in extent.zip(uses.iter().zip(read_after)) {
            unread[at] = matches!(one, Use::Writes(bytes) if !bytes.meets(later));
        }
    }
    program.remove(|at, _| unread[at]);
}

/// How each item of a function uses the frame.
fn uses(program: &Program, extent: Range<usize>) -> Vec<Use> {
    let items = &program.items[extent.clone()];
    let points = pointing(program, extent);
    items.iter().zip(points).map(|(item, points)| one_use(item, points)).collect()
}

fn one_use(item: &Item, points: flow::Regs) -> Use {
    let insn = item.insn;
    let bytes = || Bytes::of(insn.off, Width::of_opcode(insn.op).bytes());
    match insn.class() {
        class::LDX if insn.src == FRAME => Use::Reads(bytes()),
        class::LDX if points.has(insn.src) => Use::Reads(Bytes::ALL),
        class::STX if insn.is_atomic() && points.has(insn.dst) => Use::Reads(Bytes::ALL),
        class::ST | class::STX if !insn.is_atomic() && insn.dst == FRAME => Use::Writes(bytes()),
        _ if insn.op == CALL && flow::effect(item).0.meets(points) => Use::Reads(Bytes::ALL),
        _ => Use::Nothing,
    }
}

/// For each item, the registers that may hold an address in the frame before it.
fn pointing(program: &Program, extent: Range<usize>) -> Vec<flow::Regs> {
    let items = &program.items[extent.clone()];
    let mut before: Vec<Option<flow::Regs>> = vec![None; items.len()];
    let mut due = vec![false; items.len()];
    // Whether an address may have been stored where a load can find it.
    let mut stored = false;
    loop {
        let stored_before = stored;
        before.fill(None);
        (before[0], due[0]) = (Some(flow::Regs::one(FRAME)), true);
        let mut at = 0;
        while at < items.len() {
            let (true, Some(points)) = (std::mem::take(&mut due[at]), before[at]) else {
                at += 1;
                continue;
            };
            let item = &items[at];
            stored |= item.insn.class() == class::STX && points.has(item.insn.src);
            let after = after(item, points, stored);
            let next = (!item.insn.ends_block()).then_some(at + 1);
            for to in next.into_iter().chain(item.target().map(|to| to - extent.start)) {
                let Some(known) = before.get_mut(to) else { continue };
                let met = known.map_or(after, |known| known.with(after));
                if *known != Some(met) {
                    (*known, due[to]) = (Some(met), true);
                    at = at.min(to);
                }
            }
        }
        if stored == stored_before {
            break;
        }
    }
    before.into_iter().map(|known| known.unwrap_or(flow::Regs::one(FRAME))).collect()
}

/// The registers that may hold an address in the frame after an item.
fn after(item: &Item, points: flow::Regs, stored: bool) -> flow::Regs {
    let (reads, writes) = flow::effect(item);
    let left = points.without(writes);
    let carries = match item.insn.class() {
        class::ALU | class::ALU64 => reads.meets(points),
        class::LDX => stored,
        // A function may return an address that it received.
        _ => item.insn.calls_function() && reads.meets(points),
    };
    match item.insn.class() {
        class::STX if item.insn.is_atomic() && stored => {
            points.with(flow::Regs::one(Reg::R0 as u8)).with(flow::Regs::one(item.insn.src))
        }
        _ if carries => left.with(writes),
        _ => left,
    }
}
