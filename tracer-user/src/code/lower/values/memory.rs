//! Kernel memory that the arguments of a raw tracepoint point to: bytes that are read together, and their place on the
//! stack.
//!
//! Fields that are close together at one pointer form a group. One helper call reads a group to the stack when its
//! first field is needed. [`Facts`](crate::code::lower::facts::Facts) records which groups have been read at a point.

use crate::{
    code::{
        asm::{Alu, Reg, Width},
        lower::{emitter::Emitter, facts::Fact, output::LowerError},
    },
    plan::{
        filter::{CpusSubject, Filter, Pattern, Place, Test, Text},
        source::{FieldSource, ProgramContext, Source},
    },
};

/// Gap in bytes between two fields up to which they are read together, because a second helper call costs more.
const GAP: u32 = 32;
/// Largest group in bytes; longer fields are read alone.
const GROUP_MAX: u32 = 128;
/// Stack bytes for all groups together. Groups that do not fit share one place and are read at each use.
const STACK_MAX: usize = 192;

/// Bytes in memory at a pointer. The pointer is an argument, or is read from one through a chain of pointers.
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

/// Place of a group.
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
pub(crate) struct Memory {
    groups: Vec<Group>,
    /// The place of each group on the stack.
    slots: Vec<Slot>,
    shared: Option<i16>,
}

impl Memory {
    /// The groups that a filter may read.
    pub(super) fn for_filter(filter: &Filter, context: &ProgramContext) -> Self {
        let mut wanted = Vec::new();
        if let ProgramContext::RawTracepoint(fields) = context {
            add_filter(filter, fields, &mut wanted);
        }
        Self::of(wanted)
    }

    /// The groups that a record of these fields reads.
    pub(super) fn for_fields<'a>(fields: impl Iterator<Item = &'a FieldSource>) -> Self {
        let mut wanted = Vec::new();
        for field in fields {
            add_source(&field.source, 0, usize::from(field.size), &mut wanted);
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
        let stack_bytes = |group: &Group| (group.end - group.start) as usize + 8;
        let whole: usize = groups.iter().map(stack_bytes).sum();
        let mut left = if whole <= STACK_MAX { STACK_MAX } else { STACK_MAX - GROUP_MAX as usize - 8 };
        let slot = |group: &Group| match left.checked_sub(stack_bytes(group)) {
            Some(rest) => {
                left = rest;
                Slot::Own
            }
            None => Slot::Shared,
        };
        let slots = groups.iter().map(slot).collect();
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
fn add_source(source: &Source, inner: usize, size: usize, wanted: &mut Vec<Group>) {
    match source {
        Source::Memory { arg, path } => add_path(*arg, path, inner as u32, size as u32, wanted),
        Source::Extended { arg, path, width, .. } => add_path(*arg, path, 0, u32::from(*width), wanted),
        Source::Computed(expression) => {
            expression.each_memory(&mut |arg, path, width| add_path(arg, path, 0, u32::from(width), wanted));
        }
        Source::UserData(data) => {
            for offset in std::iter::once(data.pointer).chain(data.length) {
                add_path(data.regs, &[offset], 0, 8, wanted);
            }
        }
        Source::SwitchState(state) => add_path(state.task, &[state.exit_state], 0, 4, wanted),
        Source::SyscallArgs(args) => {
            for (native, compat) in args.offsets().skip(inner / 8).take(size.div_ceil(8)) {
                add_path(args.regs, &[native], 0, 8, wanted);
                if let Some(compat) = compat {
                    add_path(args.regs, &[compat], 0, 8, wanted);
                }
            }
        }
        Source::Arg(_) | Source::Const(_) => {}
    }
}

/// Adds bytes at the end of a path, and the pointers on the path.
fn add_path(arg: u8, path: &[u32], inner: u32, size: u32, wanted: &mut Vec<Group>) {
    let Some((last, prefix)) = path.split_last() else { return };
    let start = last + inner;
    let aligned = start.is_multiple_of(if size.is_power_of_two() { size.min(8) } else { 1 });
    wanted.push(Group { arg, prefix: prefix.to_vec(), start, end: start + size, aligned });
    if !prefix.is_empty() {
        add_path(arg, prefix, 0, 8, wanted);
    }
}

fn add_filter(filter: &Filter, fields: &[FieldSource], wanted: &mut Vec<Group>) {
    match filter {
        Filter::Const(_) => {}
        Filter::Not(inner) => add_filter(inner, fields, wanted),
        Filter::And(list) | Filter::Or(list) => {
            for filter in list {
                add_filter(filter, fields, wanted);
            }
        }
        Filter::Test(test) => {
            let Place { offset, size } = match test {
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
            if u32::from(size) > GROUP_MAX {
                return;
            }
            if let Ok(field) = covering(fields, usize::from(offset), usize::from(size)) {
                add_source(&field.source, usize::from(offset - field.offset), usize::from(size), wanted);
            }
        }
    }
}

impl Memory {
    /// R0 = the number in memory.
    pub(crate) fn value(&mut self, emit: &mut Emitter, arg: u8, path: &[u32], inner: usize, width: Width) {
        let slot = self.slot(emit, arg, path, inner, width.bytes());
        emit.load(width, Reg::R0, Reg::R10, slot);
    }

    /// Ensures that the bytes are on the stack and returns their offset.
    #[expect(clippy::expect_used, reason = "a plan ends every path with the field's own offset")]
    pub(crate) fn slot(
        &mut self,
        emit: &mut Emitter,
        arg: u8,
        path: &[u32],
        inner: usize,
        size: usize,
    ) -> i16 {
        let (last, prefix) = path.split_last().expect("a path has an offset");
        let start = last + inner as u32;
        let end = start + size as u32;
        let group = self.find(arg, prefix, start, end).unwrap_or_else(|| {
            let aligned = start.is_multiple_of(8.min(size as u32));
            self.groups.push(Group { arg, prefix: prefix.to_vec(), start, end, aligned });
            self.slots.push(Slot::Shared);
            self.groups.len() - 1
        });
        let into = (start - self.groups[group].start) as i16;
        if !emit.facts.has(Fact::Group(group)) {
            self.read(emit, group);
        }
        self.place(emit, group) + into
    }

    fn read(&mut self, emit: &mut Emitter, number: usize) {
        let group = self.groups[number].clone();
        self.pointer(emit, Reg::R3, group.arg, &group.prefix, group.start);
        let slot = self.place(emit, number);
        emit.read_kernel((Reg::R10, slot), (group.end - group.start) as i32);
        if self.slots[number] != Slot::Shared {
            emit.facts.add(Fact::Group(number));
        }
    }

    /// `dst` = the address at the end of a chain of pointers.
    pub(crate) fn pointer(&mut self, emit: &mut Emitter, dst: Reg, arg: u8, prefix: &[u32], start: u32) {
        if prefix.is_empty() {
            emit.load_context(Width::D, dst, 8 * usize::from(arg));
        } else {
            self.value(emit, arg, prefix, 0, Width::D);
            emit.mov(dst, Reg::R0);
        }
        if start > 0 {
            emit.alu(Alu::Add, dst, start.cast_signed());
        }
    }

    fn place(&mut self, emit: &mut Emitter, number: usize) -> i16 {
        let group = &self.groups[number];
        let phase = group.phase() as usize;
        match self.slots[number] {
            Slot::Taken(slot) => slot,
            Slot::Own => {
                let slot = emit.alloc_at((group.end - group.start) as usize, phase);
                self.slots[number] = Slot::Taken(slot);
                slot
            }
            Slot::Shared => {
                *self.shared.get_or_insert_with(|| emit.alloc(GROUP_MAX as usize + 8)) + phase as i16
            }
        }
    }
}

/// The source that covers all of these bytes.
pub(crate) fn covering(
    fields: &[FieldSource],
    offset: usize,
    size: usize,
) -> Result<&FieldSource, LowerError> {
    fields
        .iter()
        .find(|field| {
            let start = usize::from(field.offset);
            start <= offset && offset + size <= start + usize::from(field.size)
        })
        .ok_or(LowerError::NoSource { offset, end: offset + size })
}
