//! Resolves items and labels to slots and offsets: jump threading, dead code, islands.

use std::collections::HashSet;

use super::{Assembler, CALL, Cond, Function, Helper, Insn, Item, JA, Label};

/// Largest number of slots that a jump may span without an island.
const REACH: usize = 32_000;
/// Distance in slots from a jump to its island; the remainder is reserved for islands placed in between.
const ISLAND_AT: usize = 26_000;

impl Item {
    /// Number of slots of the item.
    fn slots(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// Largest number of slots of the item after the verifier has replaced calls by code (`inline_bpf_loop()` and
    /// `do_misc_fixups()`, `kernel/bpf/verifier.c`). Jumps must stay within reach then too.
    fn grown(&self) -> usize {
        match self.insn {
            Insn { op: CALL, src: 0, imm, .. } if imm == Helper::Loop as i32 => 32,
            Insn { op: CALL, .. } => 8,
            _ => self.slots(),
        }
    }
}

impl Assembler {
    /// Fills in all offsets.
    ///
    /// # Panics
    /// If the target of a jump was not bound, or control falls off the end. Both are errors of the caller's code, not
    /// of its input.
    pub fn finish(mut self, name: impl Into<String>) -> Function {
        loop {
            let before = self.items.len();
            self.thread_jumps();
            self.turn_skips();
            self.remove_unreached();
            self.remove_empty_jumps();
            if self.items.len() == before {
                break;
            }
        }
        self.place_islands();
        self.emit(name.into())
    }

    #[expect(clippy::expect_used, reason = "every generator binds the labels that it jumps to")]
    fn place(&self, label: Label) -> usize {
        self.labels[label.0 as usize].expect("every label that is jumped to is bound")
    }

    /// Redirects a jump to an unconditional jump to the final target.
    fn thread_jumps(&mut self) {
        for at in 0..self.items.len() {
            let Some(mut target) = self.items[at].target else { continue };
            // Only forward jumps are followed, so that a loop of jumps ends.
            let mut from = at;
            while let Some(Item { insn: Insn { op: JA, .. }, target: Some(next), .. }) =
                self.items.get(self.place(target)).filter(|_| self.place(target) > from)
            {
                from = self.place(target);
                target = *next;
            }
            self.items[at].target = Some(target);
        }
    }

    /// `if a goto 1; goto 2; 1:` becomes `if !a goto 2; 1:`.
    fn turn_skips(&mut self) {
        let targets: HashSet<usize> =
            self.items.iter().filter_map(|item| item.target).map(|to| self.place(to)).collect();
        for at in 1..self.items.len() {
            let [Item { target: Some(over), .. }, Item { insn: Insn { op: JA, .. }, target: Some(to), .. }] =
                self.items[at - 1..=at]
            else {
                continue;
            };
            let skip = &mut self.items[at - 1].insn;
            let inverse = Cond::of_opcode(skip.op).and_then(Cond::inverse);
            if let Some(inverse) = inverse.filter(|_| !targets.contains(&at))
                && self.labels[over.0 as usize] == Some(at + 1)
            {
                skip.op = skip.op & 0x0f | inverse as u8;
                self.items[at - 1].target = Some(to);
                self.items[at].target = Some(over);
            }
        }
    }

    /// Drops items that no path from the entry reaches.
    fn remove_unreached(&mut self) {
        let mut reached = vec![false; self.items.len()];
        let mut work = vec![0];
        while let Some(at) = work.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            let item = &self.items[at];
            if let Some(target) = item.target {
                work.push(self.place(target));
            }
            if !item.insn.ends_block() {
                assert!(at + 1 < self.items.len(), "control falls off the end");
                work.push(at + 1);
            }
        }
        self.retain(&reached);
    }

    /// Drops unconditional jumps to the next item.
    fn remove_empty_jumps(&mut self) {
        let is_kept = |(at, item): (usize, &Item)| {
            item.insn.op != JA || item.target.map(|to| self.place(to)) != Some(at + 1)
        };
        let keep: Vec<_> = self.items.iter().enumerate().map(is_kept).collect();
        self.retain(&keep);
    }

    fn retain(&mut self, keep: &[bool]) {
        let mut moved = Vec::with_capacity(keep.len() + 1);
        let mut kept = 0;
        for keep in keep {
            moved.push(kept);
            kept += usize::from(*keep);
        }
        moved.push(kept);
        for place in self.labels.iter_mut().flatten() {
            *place = moved[*place];
        }
        let mut keep = keep.iter();
        // The note of a dropped jump moves to the code after it.
        let mut carried = Vec::new();
        self.items.retain_mut(|item| {
            let keep = keep.next().copied().unwrap_or(true);
            if keep {
                item.notes.splice(0..0, std::mem::take(&mut carried));
            } else if item.insn.op == JA {
                carried.append(&mut item.notes);
            }
            keep
        });
    }

    /// Where each item starts, and the end.
    fn starts(&self, size: impl Fn(&Item) -> usize) -> Vec<usize> {
        let mut at = 0;
        let mut starts = Vec::with_capacity(self.items.len() + 1);
        for item in &self.items {
            starts.push(at);
            at += size(item);
        }
        starts.push(at);
        starts
    }

    /// Breaks up jumps that are too long. Only forward jumps can be too long; loops are short.
    fn place_islands(&mut self) {
        loop {
            let slots = self.starts(Item::grown);
            let far = |item: usize, to: Label| slots[self.place(to)] > slots[item] + REACH;
            let Some((first, to)) = self
                .items
                .iter()
                .enumerate()
                .find_map(|(at, item)| item.target.filter(|to| far(at, *to)).map(|to| (at, to)))
            else {
                return;
            };
            // The island is placed well before the limit of `first`. It also serves the jumps around `first`, including
            // those that only later islands would push out of reach.
            let at = slots.partition_point(|slot| *slot <= slots[first] + ISLAND_AT) - 1;
            let riders: Vec<_> = (0..at)
                .filter(|item| {
                    self.items[*item].target == Some(to) && slots[self.place(to)] > slots[*item] + ISLAND_AT
                })
                .filter(|item| slots[*item] + ISLAND_AT + 1000 > slots[at])
                .collect();
            self.insert_island(at, to, &riders);
        }
    }

    /// Inserts `skip: goto after; island: goto to` before item `at` and redirects the riders to the island.
    fn insert_island(&mut self, at: usize, to: Label, riders: &[usize]) {
        let falls_in = !self.items[at - 1].insn.ends_block();
        let added = 1 + usize::from(falls_in);
        for place in self.labels.iter_mut().flatten() {
            if *place >= at {
                *place += added;
            }
        }
        let island = self.label();
        self.labels[island.0 as usize] = Some(at + added - 1);
        for rider in riders {
            self.items[*rider].target = Some(island);
        }
        let jump = |target, notes| Item {
            insn: Insn::jump(),
            second: None,
            target: Some(target),
            address: None,
            notes,
        };
        self.items.insert(at, jump(to, vec!["island".to_owned()]));
        if falls_in {
            let after = self.label();
            self.labels[after.0 as usize] = Some(at + added);
            self.items.insert(at, jump(after, Vec::new()));
        }
    }

    #[expect(clippy::expect_used, reason = "an island is put into every jump that is longer")]
    fn emit(self, name: String) -> Function {
        let slots = self.starts(Item::slots);
        let mut function = Function { name, ..Function::default() };
        for (at, item) in self.items.iter().enumerate() {
            let slot = function.insns.len();
            if !item.notes.is_empty() {
                function.notes.insert(slot, item.notes.clone());
            }
            if let Some(name) = &item.address {
                function.addresses.push((slot, name.clone()));
            }
            let mut insn = item.insn;
            if let Some(target) = item.target {
                let offset = slots[self.place(target)] as i64 - slots[at] as i64 - 1;
                insn.off = i16::try_from(offset).expect("islands keep jumps within reach");
            }
            function.insns.push(insn);
            function.insns.extend(item.second);
        }
        function
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cond, Reg};
    use super::*;

    #[test]
    fn dead_code_and_empty_jumps_are_removed() {
        let mut asm = Assembler::new();
        let (end, dead) = (asm.label(), asm.label());
        asm.mov(Reg::R0, 1);
        asm.jump(end);
        asm.bind(dead);
        asm.mov(Reg::R0, 2);
        asm.jump(dead);
        asm.bind(end);
        asm.exit();
        let function = asm.finish("f");
        assert_eq!(function.insns.len(), 2);
    }

    #[test]
    fn a_jump_to_a_jump_is_redirected() {
        let mut asm = Assembler::new();
        let (middle, end) = (asm.label(), asm.label());
        asm.mov(Reg::R0, 0);
        asm.jump_if(Cond::Eq, Reg::R1, 0, middle);
        asm.mov(Reg::R0, 1);
        asm.exit();
        asm.bind(middle);
        asm.jump(end);
        asm.bind(end);
        asm.exit();
        let function = asm.finish("f");
        assert_eq!(function.insns.len(), 5);
        assert_eq!(function.insns[1].off, 2);
    }

    #[test]
    fn far_labels_are_reached_over_islands() {
        let mut asm = Assembler::new();
        let (yes, no) = (asm.label(), asm.label());
        for value in 0..120_000 {
            asm.jump_if(Cond::Eq, Reg::R1, value, if value % 2 == 0 { yes } else { no });
        }
        asm.bind(no);
        asm.mov(Reg::R0, 0);
        asm.exit();
        asm.bind(yes);
        asm.mov(Reg::R0, 1);
        asm.exit();
        let function = asm.finish("f");
        // Follow the jump taken at each compare to the end.
        for start in (0..120_000).step_by(777).chain([0, 1, 2, 119_998, 119_999]) {
            let mut at = function.insns.iter().position(|i| i.imm == start && i.op != JA).unwrap();
            let taken = |at: usize| (at as i64 + 1 + i64::from(function.insns[at].off)) as usize;
            at = taken(at);
            while function.insns[at].op == JA {
                at = taken(at);
            }
            assert_eq!(function.insns[at].imm, i32::from(start % 2 == 0), "compare with {start}");
        }
    }
}
