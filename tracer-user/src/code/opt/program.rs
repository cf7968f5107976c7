//! A program as the passes see it: instructions whose targets are items, and edits of them.

use std::ops::Range;

use crate::code::asm::Insn;

/// `BPF_JMP32 | BPF_JA`: a jump whose distance is in the immediate. Compiled templates do not contain it.
const JA32: u8 = 0x06;

/// One instruction of a [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) insn: Insn,
    /// Second slot of a 64-bit immediate.
    pub(super) second: Option<Insn>,
    /// The item that a jump, a call of a function or a function's address refers to.
    pub(super) to: Option<usize>,
}

impl Item {
    pub(super) fn plain(insn: Insn) -> Self {
        Self { insn, second: None, to: None }
    }

    /// The item that a jump may continue at.
    pub(super) fn target(&self) -> Option<usize> {
        self.to.filter(|_| !self.insn.refers_to_function())
    }
}

/// Instructions whose targets are items, so that items can be inserted between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) items: Vec<Item>,
    /// First items of the functions, in order; the program's own entry is item 0.
    pub(super) starts: Vec<usize>,
}

/// Replacement of an item.
pub(super) enum Edit {
    Keep,
    /// Another instruction with the same target.
    Change(Insn),
    /// The item, followed by a jump to another item.
    Then(usize),
    /// Items whose targets count from the first of them; their number denotes the item after them. Targets that are
    /// functions are items of the program before the edit.
    Replace(Vec<Item>),
}

impl Program {
    /// Returns None for a program that this module does not understand.
    pub(super) fn decode(insns: &[Insn]) -> Option<Self> {
        // Every function has an item.
        insns.first()?;
        let mut at_slot = vec![None; insns.len()];
        let mut count = 0;
        let mut slot = 0;
        while slot < insns.len() {
            at_slot[slot] = Some(count);
            count += 1;
            slot += 1 + usize::from(insns[slot].is_wide());
        }
        let mut items = Vec::with_capacity(count);
        for (slot, insn) in insns.iter().enumerate().filter(|(slot, _)| at_slot[*slot].is_some()) {
            if insn.op == JA32 {
                return None;
            }
            let second = if insn.is_wide() { Some(*insns.get(slot + 1)?) } else { None };
            let mut item = Item { insn: *insn, second, to: None };
            let is_reference = insn.refers_to_function();
            if is_reference || insn.is_jump() {
                let distance = if is_reference { insn.imm } else { i32::from(insn.off) };
                let target = usize::try_from(slot as i64 + 1 + i64::from(distance)).ok()?;
                item.to = Some((*at_slot.get(target)?)?);
            }
            items.push(item);
        }
        let mut starts: Vec<usize> =
            items.iter().filter(|item| item.insn.refers_to_function()).filter_map(|item| item.to).collect();
        starts.push(0);
        starts.sort_unstable();
        starts.dedup();
        Some(Self { items, starts })
    }

    /// Returns None if a jump is too long.
    pub(super) fn encode(&self) -> Option<Vec<Insn>> {
        let mut starts = Vec::with_capacity(self.items.len());
        let mut slots = 0_usize;
        for item in &self.items {
            starts.push(slots);
            slots += 1 + usize::from(item.second.is_some());
        }
        let mut insns = Vec::with_capacity(slots);
        for (item, start) in self.items.iter().zip(&starts) {
            let mut insn = item.insn;
            if let Some(to) = item.to {
                let distance = starts[to] as i64 - *start as i64 - 1;
                if insn.refers_to_function() {
                    insn.imm = i32::try_from(distance).ok()?;
                } else {
                    insn.off = i16::try_from(distance).ok()?;
                }
            }
            insns.push(insn);
            insns.extend(item.second);
        }
        Some(insns)
    }

    /// The items of the function that starts at `start`.
    pub(super) fn extent(&self, start: usize) -> Range<usize> {
        let next = self.starts.iter().find(|other| **other > start);
        start..next.copied().unwrap_or(self.items.len())
    }

    /// For each item, whether a jump lands on it.
    pub(super) fn landings(&self) -> Vec<bool> {
        let mut landed = vec![false; self.items.len()];
        for to in self.items.iter().filter_map(Item::target) {
            landed[to] = true;
        }
        landed
    }

    /// Removes items and adjusts all targets.
    pub(super) fn remove(&mut self, mut is_needless: impl FnMut(usize, &Item) -> bool) {
        self.edit(|at, item| if is_needless(at, item) { Edit::Replace(Vec::new()) } else { Edit::Keep });
    }

    /// Edits items one by one and adjusts all targets.
    pub(super) fn edit(&mut self, mut change: impl FnMut(usize, &Item) -> Edit) {
        // Each new item, and the first item of the replacement that its target counts from, if it is in one.
        let mut items = Vec::with_capacity(self.items.len());
        let mut moved = Vec::with_capacity(self.items.len() + 1);
        for (at, item) in self.items.iter().enumerate() {
            let first = items.len();
            moved.push(first);
            match change(at, item) {
                Edit::Keep => items.push((*item, None)),
                Edit::Change(insn) => items.push((Item { insn, second: None, to: item.to }, None)),
                Edit::Then(to) => {
                    let jump = Item { to: Some(to), ..Item::plain(Insn::jump()) };
                    items.extend([(*item, None), (jump, None)]);
                }
                Edit::Replace(list) => {
                    items.extend(list.into_iter().map(|new| (new, new.target().map(|_| first))));
                }
            }
        }
        moved.push(items.len());
        for start in &mut self.starts {
            *start = moved[*start];
        }
        self.starts.dedup();
        self.starts.retain(|start| *start < items.len());
        let placed = |(item, first): (Item, Option<usize>)| {
            let to = item.to.map(|to| first.map_or_else(|| moved[to], |first| first + to));
            Item { to, ..item }
        };
        self.items = items.into_iter().map(placed).collect();
    }
}
