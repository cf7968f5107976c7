//! A histogram's update at the hit: a whole program, without a template, because nothing is recorded.
//!
//! The key is built in place (on the stack, or in memory of the CPU's own where it is long), sums are computed in front
//! of the look-up, and a new entry is made with `BPF_NOEXIST`, the name of its task included, so that of two hits that
//! make it one makes it and both count. The table has a value a CPU: a program does not run inside itself on a CPU, so
//! plain additions are exact. A full table counts a drop.
//!
//! Maps are named by placeholders ([`TABLE`], [`DROPS`], [`SCRATCH`]) that whoever loads the program puts descriptors in
//! for.

mod number;

use tracer_abi::FILTER_AREA;

use super::{Exits, Lower, LowerError, Next, Uses, memory::Memory, text};
use crate::{
    code::asm::{Alu, Cond, Function, Helper, Insn, Reg, Width},
    event::{Field, FieldClass},
    lang::hist::{Flags, Function as Compute, Hist, Value},
    plan::{
        filter::{Filter, NumberOp, Place, Test},
        hist::{COMM_SIZE, KeyKind, KeyPart, Layout, STACK_BYTES},
        source::Hook,
    },
};

/// Symbol of the program.
pub const PROGRAM: &str = "tracer_hist";

/// What stands for the table's descriptor.
pub const TABLE: i32 = i32::MAX - 8001;
/// What stands for the descriptor of the array whose only value counts drops.
pub const DROPS: i32 = i32::MAX - 8002;
/// What stands for the descriptor of the CPUs' own memory.
pub const SCRATCH: i32 = i32::MAX - 8003;

/// Source register of a 64-bit immediate that is a map: `BPF_PSEUDO_MAP_FD`.
const PSEUDO_MAP: u8 = 1;
/// Source register of a 64-bit immediate that is the address of a map's value.
const PSEUDO_VALUE: u8 = 2;

/// Bytes of [`SCRATCH`]'s values: what filters fetch, and a key.
pub const SCRATCH_SIZE: usize = FILTER_AREA + KEY_ROOM;
const KEY_ROOM: usize = 512;
/// Longest key that is built on the stack.
const STACK_KEY_MAX: usize = 96;

/// `BPF_NOEXIST`
const NO_EXIST: i32 = 1;
/// Opcode of an atomic addition of eight bytes (`BPF_STX | BPF_ATOMIC | BPF_DW`).
const ATOMIC_ADD: u8 = 0xdb;

/// A histogram at a hook.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The histogram, one that [`unsupported`] has nothing against.
    pub hist: &'a Hist,
    /// Which hits count.
    pub filter: Option<&'a Filter>,
    /// How values are had.
    pub hook: &'a Hook,
    /// `common_type` of the event's records.
    pub kind: u16,
    /// A process whose hits do not count.
    pub but_process: Option<u32>,
}

/// The program and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program, then the functions that it calls back.
    pub functions: Vec<Function>,
    /// Whether it refers to [`SCRATCH`].
    pub scratch: bool,
}

/// Why a histogram cannot be counted in the kernel yet.
pub fn unsupported(hist: &Hist) -> Option<&'static str> {
    fn odd(value: &Value) -> bool {
        let is_text = value.flags.has(Flags::STRING);
        let rounded = matches!(value.function, Compute::Log2 | Compute::Bucket);
        let text_operand = rounded && value.operands.iter().any(|operand| operand.flags.has(Flags::STRING));
        let stack_number = value.function == Compute::Stack;
        (is_text && value.function == Compute::PtrText) || text_operand || stack_number
    }
    if !hist.references.is_empty() {
        return Some("references to variables");
    }
    if !hist.actions.is_empty() {
        return Some("actions");
    }
    let values = &hist.fields[..hist.values - hist.variables];
    let texts = values.iter().any(|value| value.flags.has(Flags::STRING));
    if texts || values.iter().chain(hist.keys()).any(odd) {
        return Some("a text or a recorded stack where a number is wanted");
    }
    None
}

/// Lowers a histogram's update.
///
/// # Errors
/// When the hook cannot give a value.
pub fn hist(request: &Request<'_>) -> Result<Program, LowerError> {
    let mut uses = Uses { calls: true, ..Uses::default() };
    // The first pass finds what is used, the second lowers for that.
    lower(request, &mut uses)?;
    let functions = lower(request, &mut uses)?;
    Ok(Program { functions, scratch: uses.scratch })
}

fn lower(request: &Request<'_>, uses: &mut Uses) -> Result<Vec<Function>, LowerError> {
    let Request { hist, hook, .. } = *request;
    let layout = Layout::of(hist);
    let mut lower = Lower::new(hook, Uses { calls: true, ..*uses });
    let filter = request.filter.unwrap_or(&Filter::Const(true));
    let mut read = vec![filter.clone()];
    // Variables that nobody refers to need not be computed.
    read.extend(hist.fields[..layout.sums].iter().chain(hist.keys()).flat_map(numbers));
    lower.memory = Memory::for_filter(&Filter::And(read), hook);
    lower.texts = text::Texts::for_filter(filter);
    let (yes, no) = (lower.asm.label(), lower.asm.label());
    lower.hist_prologue(request, no);
    lower.branch(filter, Exits { yes, no, next: Next::Yes })?;
    lower.bind(yes);
    let key = lower.hist_key(hist, &layout)?;
    lower.hist_update(hist, &layout, key)?;
    lower.bind(no);
    lower.asm.mov(Reg::R0, 0);
    lower.asm.exit();
    *uses = Uses { searches: lower.searches.count(), ..lower.uses };
    let main = lower.asm.finish(PROGRAM);
    let mut callbacks = lower.searches.finish();
    callbacks.retain(|callback| main.addresses.iter().any(|(_, name)| *name == callback.name));
    Ok(std::iter::once(main).chain(callbacks).collect())
}

/// A number's place in the record.
fn place(field: &Field) -> Place {
    Place { offset: field.offset as u16, size: field.size as u16 }
}

/// Tests that read what a value reads.
fn numbers(value: &Value) -> Vec<Filter> {
    let mut found: Vec<Filter> = value.operands.iter().flat_map(numbers).collect();
    if let (Compute::Number, Some(field)) = (value.function, &value.field) {
        let test = Test::Number { place: place(field), signed: false, op: NumberOp::Eq, value: 0 };
        found.push(Filter::Test(test));
    }
    found
}

/// Where a key is built.
#[derive(Clone, Copy)]
struct KeyPlace {
    base: Reg,
    at: i16,
}

impl Lower<'_> {
    fn map(&mut self, dst: Reg, kind: u8, name: i32) {
        let [mut first, second] = Insn::imm64(dst, 0);
        (first.src, first.imm) = (kind, name);
        self.asm.push_wide(first, second);
    }

    fn hist_prologue(&mut self, request: &Request<'_>, out: crate::code::asm::Label) {
        self.asm.mov(Reg::R6, Reg::R1);
        if self.uses.common || request.but_process.is_some() {
            self.call(Helper::GetCurrentPidTgid);
            if let Some(process) = request.but_process {
                self.asm.mov(Reg::R1, Reg::R0);
                self.asm.alu(Alu::Rsh, Reg::R1, 32);
                self.jump_if(Cond::Eq, Reg::R1, process.cast_signed(), out);
            }
            if self.uses.common {
                self.asm.mov(Reg::R8, Reg::R0);
                self.asm.alu(Alu::Lsh, Reg::R8, 32);
                self.asm.alu(Alu::Or, Reg::R8, i32::from(request.kind));
            }
        }
        if self.uses.scratch {
            let index = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, index, 0);
            self.map(Reg::R1, PSEUDO_MAP, SCRATCH);
            self.asm.address(Reg::R2, Reg::R10, i32::from(index));
            self.call(Helper::MapLookupElem);
            self.jump_if(Cond::Eq, Reg::R0, 0, out);
            self.asm.mov(Reg::R7, Reg::R0);
        }
    }

    /// Builds the key.
    fn hist_key(&mut self, hist: &Hist, layout: &Layout) -> Result<KeyPlace, LowerError> {
        let key = if layout.key_size <= STACK_KEY_MAX {
            KeyPlace { base: Reg::R10, at: self.frame.take(layout.key_size, 0) }
        } else {
            self.use_scratch();
            KeyPlace { base: Reg::R7, at: FILTER_AREA as i16 }
        };
        for (value, part) in hist.keys().iter().zip(&layout.keys) {
            let at = key.at + part.offset as i16;
            self.asm.note(format!("key {}", String::from_utf8_lossy(&value.shown_name())));
            if part.kind != KeyKind::Number || part.size > 8 {
                for word in (0..part.size as i16).step_by(8) {
                    self.asm.store(Width::D, key.base, at + word, 0);
                }
            }
            match part.kind {
                KeyKind::Number => {
                    self.number_of(value, hist)?;
                    self.asm.store(Width::D, key.base, at, Reg::R0);
                }
                KeyKind::Text => self.text_key(value, *part, KeyPlace { at, ..key })?,
                KeyKind::Stack => {
                    self.asm.mov(Reg::R1, Reg::R6);
                    self.asm.address(Reg::R2, key.base, i32::from(at));
                    self.asm.mov(Reg::R3, STACK_BYTES as i32);
                    // At a raw tracepoint the stack starts with the program and who calls it.
                    let own = if matches!(self.hook, Hook::RawTracepoint(_)) { 2 } else { 0 };
                    self.asm.mov(Reg::R4, own);
                    self.call(Helper::GetStack);
                }
                KeyKind::RecordedStack => return Err(LowerError::NoData),
            }
        }
        Ok(key)
    }

    /// Copies a text up to its NUL.
    fn text_key(&mut self, value: &Value, part: KeyPart, key: KeyPlace) -> Result<(), LowerError> {
        self.asm.address(Reg::R1, key.base, i32::from(key.at));
        if value.function == Compute::Comm {
            self.asm.mov(Reg::R2, COMM_SIZE as i32);
            self.call(Helper::GetCurrentComm);
            return Ok(());
        }
        let Some(field) = &value.field else { return Err(LowerError::NoData) };
        if !matches!(self.hook, Hook::Tracepoint | Hook::Inject) {
            return Err(LowerError::NoData);
        }
        let offset = field.offset as i32;
        // One more than is copied, for the NUL, which the key's part has room for.
        let room = match field.class {
            FieldClass::StaticString => part.size.min(field.size + 1),
            _ => part.size,
        };
        if field.class == FieldClass::StaticString {
            self.asm.address(Reg::R3, Reg::R6, offset);
        } else {
            self.asm.load(Width::W, Reg::R3, Reg::R6, offset as i16);
            self.asm.alu(Alu::And, Reg::R3, 0xffff);
            self.asm.alu(Alu::Add, Reg::R3, Reg::R6);
            if field.class == FieldClass::RelString {
                self.asm.alu(Alu::Add, Reg::R3, offset + 4);
            }
        }
        self.asm.mov(Reg::R2, room as i32);
        self.call(Helper::ProbeReadKernelStr);
        Ok(())
    }

    /// Finds or makes the entry and adds to its sums.
    fn hist_update(&mut self, hist: &Hist, layout: &Layout, key: KeyPlace) -> Result<(), LowerError> {
        let mut addends = Vec::new();
        for value in &hist.fields[1..layout.sums] {
            self.asm.note(format!("value {}", String::from_utf8_lossy(&value.shown_name())));
            self.number_of(value, hist)?;
            let slot = self.frame.take(8, 0);
            self.asm.store(Width::D, Reg::R10, slot, Reg::R0);
            addends.push(slot);
        }
        let found = self.asm.label();
        self.asm.note("entry");
        self.entry(key);
        self.jump_if(Cond::Ne, Reg::R0, 0, found);
        let new = self.frame.take(layout.size, 0);
        for word in (0..layout.size as i16).step_by(8) {
            self.asm.store(Width::D, Reg::R10, new + word, 0);
        }
        if let Some(comm) = layout.comm {
            self.task_name(new + comm as i16);
        }
        self.map(Reg::R1, PSEUDO_MAP, TABLE);
        self.asm.address(Reg::R2, key.base, i32::from(key.at));
        self.asm.address(Reg::R3, Reg::R10, i32::from(new));
        self.asm.mov(Reg::R4, NO_EXIST);
        self.call(Helper::MapUpdateElem);
        self.entry(key);
        self.jump_if(Cond::Ne, Reg::R0, 0, found);
        self.asm.note("full");
        self.map(Reg::R1, PSEUDO_VALUE, DROPS);
        self.asm.mov(Reg::R2, 1);
        self.asm.push(Insn { op: ATOMIC_ADD, dst: Reg::R1 as u8, src: Reg::R2 as u8, off: 0, imm: 0 });
        self.asm.mov(Reg::R0, 0);
        self.asm.exit();
        self.bind(found);
        for sum in 0..layout.sums {
            let at = 8 * sum as i16;
            self.asm.load(Width::D, Reg::R1, Reg::R0, at);
            match sum.checked_sub(1) {
                None => self.asm.alu(Alu::Add, Reg::R1, 1),
                Some(value) => {
                    self.asm.load(Width::D, Reg::R2, Reg::R10, addends[value]);
                    self.asm.alu(Alu::Add, Reg::R1, Reg::R2);
                }
            }
            self.asm.store(Width::D, Reg::R0, at, Reg::R1);
        }
        Ok(())
    }

    /// R0 = the entry of the key.
    fn entry(&mut self, key: KeyPlace) {
        self.map(Reg::R1, PSEUDO_MAP, TABLE);
        self.asm.address(Reg::R2, key.base, i32::from(key.at));
        self.call(Helper::MapLookupElem);
    }

    /// The name of the current task, as the kernel's histograms call the idle one (`save_comm()`).
    fn task_name(&mut self, at: i16) {
        const IDLE: [u8; 8] = *b"<idle>\0\0";
        let (busy, done) = (self.asm.label(), self.asm.label());
        self.call(Helper::GetCurrentPidTgid);
        self.jump32_if(Cond::Ne, Reg::R0, 0, busy);
        self.asm.constant(Reg::R1, u64::from_le_bytes(IDLE));
        self.asm.store(Width::D, Reg::R10, at, Reg::R1);
        self.jump(done);
        self.bind(busy);
        self.asm.address(Reg::R1, Reg::R10, i32::from(at));
        self.asm.mov(Reg::R2, COMM_SIZE as i32);
        self.call(Helper::GetCurrentComm);
        self.bind(done);
    }
}

#[cfg(test)]
mod tests;
