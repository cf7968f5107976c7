//! The record of a dynamic event: fetches its values one after the other and appends texts to the fixed part.
//!
//! R6 is the context, R7 the payload, R8 the offset of the next text, R9 the current value. The steps are those of the
//! kernel (`process_fetch_insn_bottom()`, `kernel/trace/trace_probe_tmpl.h`). A value that cannot be read is 0. A text
//! that cannot be read is an empty location, which prints as `(fault)`. As in the kernel, an address below the kernel's
//! half is in user memory (`probe_mem_read()`).
//!
//! The values that a filter reads are fetched in the same way (`image.rs`).

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD, STAMP_SIZE};

use super::{Code, Lower, LowerError, Needs, Uses};
use crate::{
    code::asm::{Alu, Cond, Helper, MapRef, Reg, Width},
    event::Field,
    lang::fetch::Store,
    plan::{
        probe::{ArgPlan, Origin, ProbeContext, ProbePlan, Value},
        source::ProgramContext,
    },
};

/// Longest text, its NUL included: `MAX_STRING_SIZE`, kernel/trace/trace_probe.h.
const TEXT_MAX: i32 = 4096;
/// Room for the name of a symbol: more than `KSYM_SYMBOL_LEN`, include/linux/kallsyms.h.
const SYMBOL_MAX: i32 = 640;
/// Bits of an address within a kernel stack: `THREAD_SIZE`, 16 KiB.
const STACK_BITS: i32 = 14;
/// Sizes in bytes of `endbr64` and of the call of the function tracer, on x86.
const ENDBR: i32 = 4;
const CALL: i32 = 5;
/// Byte offset of `bp_addr` in `struct uprobe_dispatch_data`, kernel/trace/trace_uprobe.c.
const DISPATCHED_ADDRESS: i32 = 8;
/// Bytes of a task's name: `TASK_COMM_LEN`.
const COMM_SIZE: usize = 16;
/// The length of a record is a multiple of this.
const ALIGNMENT: usize = 4;

/// Which memory an address is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Kernel,
    User,
    /// The address decides.
    Either,
}

/// Lowers a dynamic event's record to `tracer_record`.
pub(super) fn record(plan: &ProbePlan) -> Result<Code, LowerError> {
    let size = plan.fixed.next_multiple_of(ALIGNMENT);
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let mut lower = Lower::new(&ProgramContext::Inject, Uses { calls: true, ..Uses::default() });
    lower.asm.mov(Reg::R6, Reg::R1);
    lower.asm.mov(Reg::R7, Reg::R2);
    if let Some(base) = &plan.base {
        lower.asm.load(Width::D, Reg::R8, Reg::R7, 0);
        lower.base_record(base, STAMP_SIZE, true)?;
    }
    lower.fetch_all(plan, true, |_, _| true)?;
    // With a base record, the record is built in memory instead of in a ring, because the base record needs space after
    // it.
    let varies = plan.is_variable() || plan.base.is_some();
    if varies && !plan.is_variable() {
        lower.asm.mov(Reg::R8, plan.fixed as i32);
    }
    if varies {
        lower.asm.note("whole length");
        lower.bound_text();
        lower.asm.mov(Reg::R1, Reg::R7);
        lower.asm.alu(Alu::Add, Reg::R1, Reg::R8);
        for byte in 0..ALIGNMENT as i16 - 1 {
            lower.asm.store(Width::B, Reg::R1, byte, 0);
        }
        lower.asm.mov(Reg::R0, Reg::R8);
        lower.asm.alu(Alu::Add, Reg::R0, ALIGNMENT as i32 - 1);
        lower.asm.alu(Alu::And, Reg::R0, -(ALIGNMENT as i32));
    } else {
        for byte in plan.fixed..size {
            lower.asm.store(Width::B, Reg::R7, byte as i16, 0);
        }
        lower.asm.mov(Reg::R0, size as i32);
    }
    lower.asm.exit();
    let function = lower.asm.finish(tracer_abi::RECORD);
    Ok(Code { functions: vec![function], needs: Needs::default(), size: (!varies).then_some(size) })
}

impl Lower<'_> {
    pub(super) fn fetch_all(
        &mut self,
        plan: &ProbePlan,
        whole: bool,
        wanted: impl Fn(usize, usize) -> bool,
    ) -> Result<(), LowerError> {
        let head = (0..).map(|n| COMMON_SIZE + 8 * n).zip(&plan.head);
        let head: Vec<_> = head.filter(|(offset, _)| wanted(*offset, offset + 8)).collect();
        let args: Vec<_> =
            plan.args.iter().filter(|arg| wanted(arg.offset, arg.offset + arg.bytes())).collect();
        let values = head.iter().map(|(_, value)| *value).chain(args.iter().map(|arg| &arg.value));
        let words = values.filter_map(|value| last_word(&value.from)).max();
        let call = words.map(|last| self.call_words(last));
        let values = head.iter().map(|(_, value)| *value).chain(args.iter().map(|arg| &arg.value));
        let keeps = values.into_iter().any(|value| matches!(value.from, Origin::Kept(_)));
        let kept = match plan.given {
            ProbeContext::Registers(arch) if keeps => Some(self.kept_words(arch, plan.kept.len(), whole)),
            _ => None,
        };
        let mut fetch = Fetch { plan, call, kept, slot: None };
        for (offset, value) in head {
            self.asm.note(format!("bytes {offset}: {value}"));
            self.fetch_value(&mut fetch, value);
            self.asm.store(Width::D, Reg::R7, offset as i16, Reg::R9);
        }
        if args.iter().any(|arg| arg.is_text()) {
            self.asm.mov(Reg::R8, plan.fixed as i32);
        }
        for arg in args {
            self.fetch_arg(&mut fetch, arg)?;
        }
        Ok(())
    }

    /// Copies the words of a call to the stack: in the context they are typed, and some cannot be loaded at all.
    fn call_words(&mut self, last: u8) -> i16 {
        let size = 8 * (usize::from(last) + 1);
        let slot = self.frame.take(size, 0);
        self.asm.note("the call's words");
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, size as i32);
        self.asm.mov(Reg::R3, Reg::R6);
        self.call(Helper::ProbeReadKernel);
        slot
    }

    /// R9 = a value.
    pub(super) fn fetch_value(&mut self, fetch: &mut Fetch<'_>, value: &Value) {
        let word = |word: u8| fetch.call.unwrap_or_default() + 8 * i16::from(word);
        match &value.from {
            Origin::Nothing => {
                self.asm.constant(Reg::R9, value.plus.cast_unsigned());
                return;
            }
            Origin::Context(offset) => self.asm.load(Width::D, Reg::R9, Reg::R6, *offset as i16),
            Origin::Call(at) => self.asm.load(Width::D, Reg::R9, Reg::R10, word(*at)),
            Origin::Kept(at) => {
                let place = fetch.kept.unwrap_or_default() + 8 * i16::from(*at);
                self.asm.load(Width::D, Reg::R9, Reg::R10, place);
            }
            Origin::CallReturn { at, start, size } => {
                let [padded, done] = std::array::from_fn(|_| self.asm.label());
                self.asm.load(Width::D, Reg::R0, Reg::R10, word(at - 2));
                self.asm.constant(Reg::R1, *start);
                self.asm.alu(Alu::Sub, Reg::R0, Reg::R1);
                self.asm.constant(Reg::R1, *size);
                self.jump_if(Cond::Ge, Reg::R0, Reg::R1, padded);
                self.asm.load(Width::D, Reg::R9, Reg::R10, word(*at));
                self.jump(done);
                self.bind(padded);
                self.asm.load(Width::D, Reg::R9, Reg::R10, word(at + 1));
                self.bind(done);
            }
            Origin::Function => {
                self.asm.mov(Reg::R1, Reg::R6);
                self.call(Helper::GetFuncIp);
                self.asm.mov(Reg::R9, Reg::R0);
            }
            Origin::FunctionInTask { utask, vaddr } => {
                let slot = fetch.slot(self);
                self.call(Helper::GetCurrentTask);
                self.asm.mov(Reg::R9, Reg::R0);
                for offset in [utask.cast_signed(), vaddr.cast_signed(), DISPATCHED_ADDRESS] {
                    self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
                    self.asm.mov(Reg::R2, 8);
                    self.asm.address(Reg::R3, Reg::R9, offset);
                    self.read(Whose::Kernel, false);
                    self.asm.load(Width::D, Reg::R9, Reg::R10, slot);
                }
            }
            Origin::FunctionPlace(ip) => {
                let [marked, done] = std::array::from_fn(|_| self.asm.label());
                self.asm.mov(Reg::R1, Reg::R6);
                self.call(Helper::GetFuncIp);
                self.asm.load(Width::D, Reg::R9, Reg::R6, *ip as i16);
                self.asm.alu(Alu::Sub, Reg::R9, Reg::R0);
                for distance in [ENDBR, ENDBR + CALL] {
                    self.jump_if(Cond::Eq, Reg::R9, distance, marked);
                }
                self.asm.mov(Reg::R9, Reg::R0);
                self.jump(done);
                self.bind(marked);
                self.asm.mov(Reg::R9, Reg::R0);
                self.asm.alu(Alu::Add, Reg::R9, ENDBR);
                self.bind(done);
            }
            Origin::Stack(number) => self.stack_word(fetch, *number),
            Origin::Comm => {
                let slot = self.frame.take(COMM_SIZE, 0);
                self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
                self.asm.mov(Reg::R2, COMM_SIZE as i32);
                self.call(Helper::GetCurrentComm);
                self.asm.address(Reg::R9, Reg::R10, i32::from(slot));
            }
            Origin::Text(text) => {
                let mut bytes = text.clone();
                bytes.resize((text.len() + 1).next_multiple_of(8), 0);
                let slot = self.frame.take(bytes.len(), 0);
                for (at, word) in (slot..).step_by(8).zip(bytes.as_chunks().0) {
                    self.asm.constant(Reg::R0, u64::from_le_bytes(*word));
                    self.asm.store(Width::D, Reg::R10, at, Reg::R0);
                }
                self.asm.address(Reg::R9, Reg::R10, i32::from(slot));
            }
            Origin::Field(field) => self.field(field),
        }
        match i32::try_from(value.plus) {
            Ok(0) => {}
            Ok(plus) => self.asm.alu(Alu::Add, Reg::R9, plus),
            Err(_) => {
                self.asm.constant(Reg::R0, value.plus.cast_unsigned());
                self.asm.alu(Alu::Add, Reg::R9, Reg::R0);
            }
        }
    }

    /// R9 = a field of the record that is the context: a number, or the address of a text.
    fn field(&mut self, field: &Field) {
        let offset = field.offset;
        if field.is_data_loc() || field.is_rel_loc() {
            // The verifier accepts only aligned loads of a context.
            if offset.is_multiple_of(2) {
                self.asm.load(Width::H, Reg::R0, Reg::R6, offset as i16);
            } else {
                self.asm.load(Width::B, Reg::R0, Reg::R6, offset as i16);
                self.asm.load(Width::B, Reg::R9, Reg::R6, offset as i16 + 1);
                self.asm.alu(Alu::Lsh, Reg::R9, 8);
                self.asm.alu(Alu::Or, Reg::R0, Reg::R9);
                // Changes nothing; 6.1's verifier does not see that the value has 16 bits.
                self.asm.alu(Alu::And, Reg::R0, 0xffff);
            }
            if field.is_rel_loc() {
                self.asm.alu(Alu::Add, Reg::R0, field.end() as i32);
            }
            self.asm.mov(Reg::R9, Reg::R6);
            self.asm.alu(Alu::Add, Reg::R9, Reg::R0);
            return;
        }
        let Some(width) = Width::of(field.size).filter(|_| field.array.is_none()) else {
            self.asm.address(Reg::R9, Reg::R6, offset as i32);
            return;
        };
        if offset.is_multiple_of(field.size) {
            self.asm.load(width, Reg::R9, Reg::R6, offset as i16);
        } else {
            let slot = self.frame.take(field.size, 0);
            self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
            self.asm.mov(Reg::R2, field.size as i32);
            self.asm.address(Reg::R3, Reg::R6, offset as i32);
            self.call(Helper::ProbeReadKernel);
            self.asm.load(width, Reg::R9, Reg::R10, slot);
        }
        if field.signed && field.size < 8 {
            let shift = 64 - 8 * field.size as i32;
            self.asm.alu(Alu::Lsh, Reg::R9, shift);
            self.asm.alu(Alu::Arsh, Reg::R9, shift);
        }
    }

    /// R9 = a word of the stack; 0 if it lies outside of the kernel stack.
    fn stack_word(&mut self, fetch: &mut Fetch<'_>, number: u32) {
        let ProbeContext::Registers(arch) = fetch.plan.given else { return };
        let sp = arch.register("sp").unwrap_or_default();
        let slot = fetch.slot(self);
        let done = self.asm.label();
        self.asm.load(Width::D, Reg::R3, Reg::R6, sp as i16);
        let whose = if fetch.plan.user {
            self.asm.alu(Alu::Add, Reg::R3, 8 * number.cast_signed());
            Whose::User
        } else {
            self.asm.mov(Reg::R9, 0);
            self.asm.mov(Reg::R0, Reg::R3);
            self.asm.alu(Alu::Add, Reg::R3, 8 * number.cast_signed());
            self.asm.alu(Alu::Xor, Reg::R0, Reg::R3);
            self.asm.alu(Alu::Rsh, Reg::R0, STACK_BITS);
            self.jump_if(Cond::Ne, Reg::R0, 0, done);
            Whose::Kernel
        };
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, 8);
        self.read(whose, false);
        self.asm.load(Width::D, Reg::R9, Reg::R10, slot);
        self.bind(done);
    }

    /// Calls the helper that reads at most R2 bytes of memory from R3 into R1.
    pub(super) fn read(&mut self, whose: Whose, text: bool) {
        let (kernel, user) = if text {
            (Helper::ProbeReadKernelStr, Helper::ProbeReadUserStr)
        } else {
            (Helper::ProbeReadKernel, Helper::ProbeReadUser)
        };
        match whose {
            Whose::Kernel => self.call(kernel),
            Whose::User => self.call(user),
            Whose::Either => {
                let [below, done] = std::array::from_fn(|_| self.asm.label());
                self.jump_if(Cond::SGe, Reg::R3, 0, below);
                self.call(kernel);
                self.jump(done);
                self.bind(below);
                self.call(user);
                self.bind(done);
            }
        }
    }

    fn fetch_arg(&mut self, fetch: &mut Fetch<'_>, arg: &ArgPlan) -> Result<(), LowerError> {
        self.asm.note(format!("{}: {}", arg.name, arg.value));
        let [fault, done] = std::array::from_fn(|_| self.asm.label());
        let user = fetch.plan.user;
        self.fetch_value(fetch, &arg.value);
        // The elements of an array of texts are behind adjacent pointers.
        let pointers = arg.is_text() && arg.count > 1;
        let (last, before) = match arg.derefs.split_last() {
            Some((last, before)) if pointers => (Some(last), before),
            _ => (None, &arg.derefs[..]),
        };
        for deref in before {
            self.deref(fetch, whose(user, deref.user), deref.offset);
            self.jump_if(Cond::Ne, Reg::R0, 0, fault);
            let slot = fetch.slot(self);
            self.asm.load(Width::D, Reg::R9, Reg::R10, slot);
        }
        let faults = !before.is_empty();
        if arg.is_text() {
            let from = match arg.store {
                _ if arg.value.is_own() => Whose::Kernel,
                store => whose(user, store == Store::UserText),
            };
            for element in 0..arg.count {
                let to = (arg.offset + (element * arg.size) as usize) as i16;
                if let Some(last) = last {
                    let [skip, next] = std::array::from_fn(|_| self.asm.label());
                    let at = last.offset.wrapping_add(8 * element.cast_signed());
                    self.deref(fetch, whose(user, last.user), at);
                    self.jump_if(Cond::Ne, Reg::R0, 0, skip);
                    let slot = fetch.slot(self);
                    self.asm.load(Width::D, Reg::R3, Reg::R10, slot);
                    self.fetch_text(arg, to, from, user);
                    self.jump(next);
                    self.bind(skip);
                    self.empty_text(to);
                    self.bind(next);
                } else {
                    self.asm.mov(Reg::R3, Reg::R9);
                    self.fetch_text(arg, to, from, user);
                }
            }
        } else {
            self.fetch_number(arg, whose(user, arg.store == Store::UserMemory))?;
        }
        if faults {
            self.jump(done);
            self.bind(fault);
            for element in 0..arg.count {
                let to = arg.offset + (element * arg.size) as usize;
                if arg.is_text() {
                    self.empty_text(to as i16);
                } else {
                    for byte in to..to + arg.size as usize {
                        self.asm.store(Width::B, Reg::R7, byte as i16, 0);
                    }
                }
            }
            self.bind(done);
        }
        Ok(())
    }

    /// Reads the word at R9 plus an offset to the stack; R0 is 0 on success.
    fn deref(&mut self, fetch: &mut Fetch<'_>, whose: Whose, offset: i32) {
        let slot = fetch.slot(self);
        self.asm.address(Reg::R1, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R2, 8);
        self.asm.address(Reg::R3, Reg::R9, offset);
        self.read(whose, false);
    }

    /// Stores the number in R9, or the numbers at the address in R9.
    fn fetch_number(&mut self, arg: &ArgPlan, whose: Whose) -> Result<(), LowerError> {
        let size = arg.size as usize;
        let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
        if arg.store == Store::Raw {
            self.asm.store(width, Reg::R7, arg.offset as i16, Reg::R9);
        } else {
            self.asm.address(Reg::R1, Reg::R7, arg.offset as i32);
            self.asm.mov(Reg::R2, arg.bytes() as i32);
            self.asm.address(Reg::R3, Reg::R9, arg.store_offset);
            self.read(whose, false);
        }
        if let Some((left, right)) = arg.bits {
            for element in 0..arg.count {
                let at = (arg.offset + (element * arg.size) as usize) as i16;
                self.asm.load(width, Reg::R0, Reg::R7, at);
                self.asm.alu(Alu::Lsh, Reg::R0, i32::from(left));
                self.truncate(size);
                self.asm.alu(Alu::Rsh, Reg::R0, i32::from(right));
                self.asm.store(width, Reg::R7, at, Reg::R0);
            }
        }
        Ok(())
    }

    /// Appends the text at R3, or the name of the symbol at R3, to the record and stores its location.
    fn fetch_text(&mut self, arg: &ArgPlan, to: i16, whose: Whose, in_file: bool) {
        let [empty, done] = std::array::from_fn(|_| self.asm.label());
        self.bound_text();
        if arg.store == Store::SymbolText {
            self.symbol_name();
        } else {
            if arg.store_offset != 0 {
                self.asm.alu(Alu::Add, Reg::R3, arg.store_offset);
            }
            let fits = self.asm.label();
            self.asm.mov(Reg::R2, MAX_PAYLOAD as i32);
            self.asm.alu(Alu::Sub, Reg::R2, Reg::R8);
            self.jump_if(Cond::Le, Reg::R2, TEXT_MAX, fits);
            self.asm.mov(Reg::R2, TEXT_MAX);
            self.bind(fits);
            self.asm.mov(Reg::R1, Reg::R7);
            self.asm.alu(Alu::Add, Reg::R1, Reg::R8);
            self.read(whose, true);
            if whose == Whose::User && in_file {
                self.count_nothing();
            }
        }
        self.jump_if(Cond::SLe, Reg::R0, 0, empty);
        self.jump_if(Cond::SGt, Reg::R0, TEXT_MAX, empty);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(Alu::Lsh, Reg::R1, 16);
        self.asm.alu(Alu::Or, Reg::R1, Reg::R8);
        self.asm.store(Width::W, Reg::R7, to, Reg::R1);
        self.asm.alu(Alu::Add, Reg::R8, Reg::R0);
        self.jump(done);
        self.bind(empty);
        self.empty_text(to);
        self.bind(done);
    }

    /// For an empty text in user space, the helper of some kernels returns 0 and does not count the NUL
    /// (`strncpy_from_user_nofault()`, seen on 6.12). The kernel's own uprobes count it.
    fn count_nothing(&mut self) {
        let counted = self.asm.label();
        self.jump_if(Cond::Ne, Reg::R0, 0, counted);
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R1, Reg::R8);
        self.asm.store(Width::B, Reg::R1, 0, 0);
        self.asm.mov(Reg::R0, 1);
        self.bind(counted);
    }

    /// Appends the name and place of the symbol that contains R3 to the record; R0 = their length in bytes.
    fn symbol_name(&mut self) {
        let slot = self.frame.take(8, 0);
        self.asm.store(Width::D, Reg::R10, slot, Reg::R3);
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R1, Reg::R8);
        self.asm.mov(Reg::R2, SYMBOL_MAX);
        self.asm.map_value(Reg::R3, MapRef::SymbolFormat);
        self.asm.address(Reg::R4, Reg::R10, i32::from(slot));
        self.asm.mov(Reg::R5, 8);
        self.call(Helper::Snprintf);
        let fits = self.asm.label();
        self.jump_if(Cond::SLe, Reg::R0, SYMBOL_MAX, fits);
        self.asm.mov(Reg::R0, SYMBOL_MAX);
        self.bind(fits);
    }

    /// Stores the location of a missing text.
    fn empty_text(&mut self, to: i16) {
        self.asm.store(Width::W, Reg::R7, to, Reg::R8);
    }

    /// Limits R8 to the size of a record. R8 never exceeds it; the check is for the verifier.
    fn bound_text(&mut self) {
        let inside = self.asm.label();
        self.jump_if(Cond::Le, Reg::R8, MAX_PAYLOAD as i32, inside);
        self.asm.mov(Reg::R8, MAX_PAYLOAD as i32);
        self.bind(inside);
    }
}

fn whose(user: bool, asked: bool) -> Whose {
    if asked || user { Whose::User } else { Whose::Either }
}

/// State that the values of a record share.
pub(super) struct Fetch<'a> {
    plan: &'a ProbePlan,
    /// Stack offset of the call's words.
    call: Option<i16>,
    /// Stack offset of the words saved at the entry.
    kept: Option<i16>,
    /// Stack offset of the word for reads.
    slot: Option<i16>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(plan: &'a ProbePlan) -> Self {
        Self { plan, call: None, kept: None, slot: None }
    }

    pub(super) fn slot(&mut self, lower: &mut Lower<'_>) -> i16 {
        *self.slot.get_or_insert_with(|| lower.frame.take(8, 0))
    }
}

/// The last of a call's words that a value needs.
fn last_word(from: &Origin) -> Option<u8> {
    match from {
        Origin::Call(word) => Some(*word),
        Origin::CallReturn { at, .. } => Some(at + 1),
        _ => None,
    }
}
