//! Kernel memory behind the arguments of a raw tracepoint: which fields are read together, and which are already read.
//!
//! Fields that lie close together behind one pointer form a group. One helper call reads a group to one place on the
//! stack when its first field is needed. For each label, the lowering keeps the set of groups that all jumps to it have
//! read. Code after the label reads only groups outside of that set, some of them possibly again.

use std::collections::{BTreeSet, HashMap};

use super::{Lower, fetch::covering};
use crate::{
    code::asm::{Alu, Cond, Helper, Label, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Pattern, Place, Test, Text},
        source::{FieldSource, ProgramContext, Source, SwitchState, SyscallArgs},
    },
};

/// Gap in bytes between two fields up to which they are read together, because a second helper call costs more.
const GAP: u32 = 32;
/// Largest group in bytes; longer fields are read alone.
const GROUP_MAX: u32 = 128;
/// Stack bytes for all groups together. Groups that do not fit share one place and are read at each use.
const STACK_MAX: usize = 192;

/// What is known to be done at each point of the code: everything that all paths to it have done.
#[derive(Clone, Debug)]
pub(super) struct Fetched<T> {
    /// None where no path arrives.
    now: Option<BTreeSet<T>>,
    at: HashMap<Label, BTreeSet<T>>,
}

impl<T> Default for Fetched<T> {
    fn default() -> Self {
        Self { now: Some(BTreeSet::new()), at: HashMap::new() }
    }
}

impl<T: Ord + Clone> Fetched<T> {
    pub(super) fn has(&self, key: &T) -> bool {
        self.now.as_ref().is_some_and(|now| now.contains(key))
    }

    pub(super) fn add(&mut self, key: T) {
        if let Some(now) = &mut self.now {
            now.insert(key);
        }
    }

    /// Forgets keys that fail the test.
    pub(super) fn keep(&mut self, test: impl Fn(&T) -> bool) {
        if let Some(now) = &mut self.now {
            now.retain(test);
        }
    }

    /// Records a jump from here to the label.
    pub(super) fn leave(&mut self, to: Label) {
        let Some(now) = &self.now else { return };
        self.at
            .entry(to)
            .and_modify(|there| there.retain(|key| now.contains(key)))
            .or_insert_with(|| now.clone());
    }

    /// Ends the path here.
    pub(super) fn end(&mut self) {
        self.now = None;
    }

    /// Binds the label here.
    pub(super) fn arrive(&mut self, label: Label) {
        match (&mut self.now, self.at.remove(&label)) {
            (Some(now), Some(there)) => now.retain(|key| there.contains(key)),
            (now @ None, there) => *now = there,
            (Some(_), None) => {}
        }
    }
}

/// Bytes in memory behind a pointer. The pointer is an argument, or is read from one through a chain of pointers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    arg: u8,
    /// Offsets of the pointers in the chain.
    prefix: Vec<u32>,
    start: u32,
    end: u32,
    /// Whether its fields are aligned in memory. Then they are also aligned in a stack copy of equal phase.
    aligned: bool,
}

impl Group {
    /// Its stack position modulo 8.
    fn phase(&self) -> u32 {
        if self.aligned { self.start % 8 } else { 0 }
    }
}

/// Where a group is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// A place of its own that is not allocated yet.
    Own,
    Taken(i16),
    /// The place shared by all groups without their own.
    Shared,
}

/// The groups of a function and their places.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    groups: Vec<Group>,
    /// The place of each group on the stack.
    slots: Vec<Slot>,
    shared: Option<i16>,
    pub(super) fetched: Fetched<usize>,
}

impl Memory {
    /// The groups that a filter may read.
    pub(super) fn for_filter(filter: &Filter, hook: &ProgramContext) -> Self {
        let mut wanted = Vec::new();
        if let ProgramContext::RawTracepoint(fields) = hook {
            want_filter(filter, fields, &mut wanted);
        }
        Self::of(wanted)
    }

    /// The groups that a record of these fields reads.
    pub(super) fn for_fields<'a>(fields: impl Iterator<Item = &'a FieldSource>) -> Self {
        let mut wanted = Vec::new();
        for field in fields {
            want_source(&field.source, 0, usize::from(field.size), &mut wanted);
        }
        Self::of(wanted)
    }

    fn of(mut wanted: Vec<Group>) -> Self {
        wanted.sort();
        wanted.dedup();
        let mut groups: Vec<Group> = Vec::new();
        for next in wanted {
            match groups.last_mut() {
                Some(last)
                    if (last.arg, &last.prefix) == (next.arg, &next.prefix)
                        && last.aligned
                        && next.aligned
                        && next.start <= last.end + GAP
                        && next.end.max(last.end) - last.start <= GROUP_MAX =>
                {
                    last.end = last.end.max(next.end);
                }
                _ => groups.push(next),
            }
        }
        let room = |group: &Group| (group.end - group.start) as usize + 8;
        let whole: usize = groups.iter().map(room).sum();
        let mut left = if whole <= STACK_MAX { STACK_MAX } else { STACK_MAX - GROUP_MAX as usize - 8 };
        let slots = groups
            .iter()
            .map(|group| {
                let own = room(group) <= left;
                left -= if own { room(group) } else { 0 };
                if own { Slot::Own } else { Slot::Shared }
            })
            .collect();
        Self { groups, slots, ..Self::default() }
    }

    /// The group that contains these bytes, with numbers at aligned positions of the stack.
    fn find(&self, arg: u8, prefix: &[u32], start: u32, end: u32) -> Option<usize> {
        let align = match end - start {
            size @ (2 | 4 | 8) => size,
            _ => 1,
        };
        self.groups.iter().position(|group| {
            (group.arg, &group.prefix[..]) == (arg, prefix)
                && group.start <= start
                && end <= group.end
                && (group.phase() + start - group.start).is_multiple_of(align)
        })
    }
}

/// Adds the memory that a source reads for the `size` bytes from `inner` on.
fn want_source(source: &Source, inner: usize, size: usize, wanted: &mut Vec<Group>) {
    match source {
        Source::Memory { arg, path } => want(*arg, path, inner as u32, size as u32, wanted),
        Source::Extended { arg, path, width, .. } => want(*arg, path, 0, u32::from(*width), wanted),
        Source::SwitchState(state) => want(state.task, &[state.exit_state], 0, 4, wanted),
        Source::SyscallArgs(args) => {
            for (native, compat) in args.offsets().skip(inner / 8).take(size.div_ceil(8)) {
                want(args.regs, &[native], 0, 8, wanted);
                if let Some(compat) = compat {
                    want(args.regs, &[compat], 0, 8, wanted);
                }
            }
        }
        Source::Arg(_) | Source::Const(_) => {}
    }
}

/// Adds bytes at the end of a path, and the pointers on the path.
fn want(arg: u8, path: &[u32], inner: u32, size: u32, wanted: &mut Vec<Group>) {
    let Some((last, prefix)) = path.split_last() else { return };
    let start = last + inner;
    let aligned = start.is_multiple_of(if size.is_power_of_two() { size.min(8) } else { 1 });
    wanted.push(Group { arg, prefix: prefix.to_vec(), start, end: start + size, aligned });
    if !prefix.is_empty() {
        want(arg, prefix, 0, 8, wanted);
    }
}

fn want_filter(filter: &Filter, fields: &[FieldSource], wanted: &mut Vec<Group>) {
    match filter {
        Filter::Const(_) => {}
        Filter::Not(inner) => want_filter(inner, fields, wanted),
        Filter::And(list) | Filter::Or(list) => {
            for filter in list {
                want_filter(filter, fields, wanted);
            }
        }
        Filter::Test(test) => {
            let place = match test {
                Test::Number { place, .. }
                | Test::Function { place, .. }
                | Test::Text { text: Text::Pointer { place, .. }, .. }
                | Test::Text {
                    text: Text::Static(place),
                    pattern: Pattern::Full(_) | Pattern::Front(_) | Pattern::End(_),
                    ..
                }
                | Test::Cpus { subject: CpusSubject::Scalar { place }, .. } => *place,
                _ => return,
            };
            let Place { offset, size } = place;
            if u32::from(size) > GROUP_MAX {
                return;
            }
            if let Ok(field) = covering(fields, usize::from(offset), usize::from(size)) {
                want_source(&field.source, usize::from(offset - field.offset), usize::from(size), wanted);
            }
        }
    }
}

impl Lower<'_> {
    /// R0 = the number in memory.
    pub(super) fn memory_value(&mut self, arg: u8, path: &[u32], inner: usize, width: Width) {
        let slot = self.memory_slot(arg, path, inner, width.bytes());
        self.asm.load(width, Reg::R0, Reg::R10, slot);
    }

    /// Ensures that the bytes are on the stack and returns their offset.
    #[expect(clippy::expect_used, reason = "a plan ends every path with the field's own offset")]
    pub(super) fn memory_slot(&mut self, arg: u8, path: &[u32], inner: usize, size: usize) -> i16 {
        let (last, prefix) = path.split_last().expect("a path has an offset");
        let start = last + inner as u32;
        let end = start + size as u32;
        let group = self.memory.find(arg, prefix, start, end).unwrap_or_else(|| {
            let aligned = start.is_multiple_of(8.min(size as u32));
            self.memory.groups.push(Group { arg, prefix: prefix.to_vec(), start, end, aligned });
            self.memory.slots.push(Slot::Shared);
            self.memory.groups.len() - 1
        });
        let into = (start - self.memory.groups[group].start) as i16;
        if !self.memory.fetched.has(&group) {
            self.read_group(group);
        }
        self.slot_of(group) + into
    }

    fn read_group(&mut self, number: usize) {
        let group = self.memory.groups[number].clone();
        self.pointer(Reg::R3, group.arg, &group.prefix, group.start);
        let slot = self.slot_of(number);
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, (group.end - group.start) as i32);
        self.call(Helper::ProbeReadKernel);
        if self.memory.slots[number] != Slot::Shared {
            self.memory.fetched.add(number);
        }
    }

    /// `dst` = the address at the end of a chain of pointers.
    pub(super) fn pointer(&mut self, dst: Reg, arg: u8, prefix: &[u32], start: u32) {
        if prefix.is_empty() {
            self.argument(dst, arg);
        } else {
            self.memory_value(arg, prefix, 0, Width::D);
            self.asm.mov(dst, Reg::R0);
        }
        if start > 0 {
            self.asm.alu(Alu::Add, dst, start.cast_signed());
        }
    }

    fn slot_of(&mut self, number: usize) -> i16 {
        let group = &self.memory.groups[number];
        let phase = group.phase() as usize;
        let size = (group.end - group.start) as usize;
        match self.memory.slots[number] {
            Slot::Taken(slot) => slot,
            Slot::Own => {
                let slot = self.frame.take(size, phase);
                self.memory.slots[number] = Slot::Taken(slot);
                slot
            }
            Slot::Shared => {
                let shared = &mut self.memory.shared;
                *shared.get_or_insert_with(|| self.frame.take(GROUP_MAX as usize + 8, 0)) + phase as i16
            }
        }
    }

    /// Passes syscall arguments from `first` on to `to` in R0, eight bytes each, according to the kind of call.
    pub(super) fn syscall_args(
        &mut self,
        args: &SyscallArgs,
        first: usize,
        count: usize,
        mut to: impl FnMut(&mut Self, usize),
    ) {
        let chosen: Vec<_> = args.offsets().skip(first).take(count).collect();
        // Both kinds are read before the branch, mostly by one call.
        let natives: Vec<_> =
            chosen.iter().map(|(native, _)| self.memory_slot(args.regs, &[*native], 0, 8)).collect();
        let Some(compat) = args.compat else {
            for (number, slot) in natives.into_iter().enumerate() {
                self.asm.load(Width::D, Reg::R0, Reg::R10, slot);
                to(self, number);
            }
            return;
        };
        let compats: Vec<_> = chosen
            .iter()
            .map(|(_, other)| self.memory_slot(args.regs, &[other.unwrap_or_default()], 0, 8))
            .collect();
        let (is_compat, done) = (self.asm.label(), self.asm.label());
        self.asm.note("a 32-bit call?");
        self.call(Helper::GetCurrentTask);
        let word = self.frame.take(4, 0);
        self.asm.address(Reg::R1, Reg::R10, i32::from(word));
        self.asm.mov(Reg::R2, 4);
        self.asm.mov(Reg::R3, Reg::R0);
        self.asm.alu(Alu::Add, Reg::R3, compat.task_offset.cast_signed());
        self.call(Helper::ProbeReadKernel);
        self.asm.load(Width::W, Reg::R0, Reg::R10, word);
        self.jump32_if(Cond::Set, Reg::R0, compat.mask.cast_signed(), is_compat);
        for (number, slot) in natives.into_iter().enumerate() {
            self.asm.load(Width::D, Reg::R0, Reg::R10, slot);
            to(self, number);
        }
        self.jump(done);
        self.bind(is_compat);
        for (number, slot) in compats.into_iter().enumerate() {
            self.asm.load(Width::D, Reg::R0, Reg::R10, slot);
            to(self, number);
        }
        self.bind(done);
    }

    /// R0 = the task state of `sched_switch`: the highest of the reported bits, or `TASK_REPORT_MAX` if the task was
    /// preempted.
    pub(super) fn switch_state(&mut self, state: SwitchState) {
        // include/linux/sched.h: TASK_REPORT, TASK_REPORT_IDLE, TASK_REPORT_MAX, TASK_IDLE,
        // TASK_UNINTERRUPTIBLE, TASK_RTLOCK_WAIT | TASK_FROZEN.
        const REPORT: i32 = 0x7f;
        const REPORT_IDLE: i32 = 0x80;
        const REPORT_MAX: i32 = 0x100;
        const IDLE: i32 = 0x402;
        const UNINTERRUPTIBLE: i32 = 0x2;
        const REPORTED_AS_SLEEPING: i32 = 0x9000;

        let [preempted, not_idle, sleeping, highest, done] = std::array::from_fn(|_| self.asm.label());
        self.asm.load(Width::B, Reg::R0, self.ctx, i16::from(state.preempt) * 8);
        self.jump_if(Cond::Ne, Reg::R0, 0, preempted);
        self.memory_value(state.task, &[state.exit_state], 0, Width::W);
        self.asm.load(Width::W, Reg::R2, self.ctx, i16::from(state.state) * 8);
        self.asm.alu(Alu::Or, Reg::R0, Reg::R2);
        self.asm.alu(Alu::And, Reg::R0, REPORT);
        self.asm.mov(Reg::R4, Reg::R2);
        self.asm.alu(Alu::And, Reg::R4, IDLE);
        self.jump_if(Cond::Ne, Reg::R4, IDLE, not_idle);
        self.asm.mov(Reg::R0, REPORT_IDLE);
        self.bind(not_idle);
        self.jump_if(Cond::Set, Reg::R2, REPORTED_AS_SLEEPING, sleeping);
        self.jump(highest);
        self.bind(sleeping);
        self.asm.mov(Reg::R0, UNINTERRUPTIBLE);
        self.bind(highest);
        for shift in [1, 2, 4] {
            self.asm.mov(Reg::R4, Reg::R0);
            self.asm.alu(Alu::Rsh, Reg::R4, shift);
            self.asm.alu(Alu::Or, Reg::R0, Reg::R4);
        }
        self.asm.mov(Reg::R4, Reg::R0);
        self.asm.alu(Alu::Rsh, Reg::R4, 1);
        self.asm.alu(Alu::Sub, Reg::R0, Reg::R4);
        self.jump(done);
        self.bind(preempted);
        self.asm.mov(Reg::R0, REPORT_MAX);
        self.bind(done);
    }
}
