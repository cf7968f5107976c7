//! The user memory that arguments of system calls point to.
//!
//! A program that records it may not wait for pages that are not in memory; the kernel's own handlers wait
//! (`syscall_get_data()`, kernel/trace/trace_syscalls.c). From 7.2 on, programs at the raw tracepoints of system calls
//! may sleep, but a program that sleeps and one that does not cannot call each other. So a sleepable program reads the
//! memory before the others run. It is attached before them, as the kernel runs the programs of a tracepoint in the
//! order in which they were attached.
//!
//! While the program waits, the kernel runs it for no other thread of that CPU. A page that such a thread lacks stays
//! absent. The thread that waits then runs the gates that were attached when its call began, also if they were closed
//! meanwhile. So their slots are never used for another tracepoint (`chain/mod.rs`).
//!
//! The program is attached before the first program at the tracepoint, even if that one reads no user memory, because a
//! link that is made later runs later. It costs a lookup for each call. It reads memory only for calls whose events ask
//! for it at that time.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tracer_abi::CALL_NUMBERS;

use super::raw_tracepoint;
use crate::{
    attach::{Cause, maps, program::load},
    code::asm::{Alu, Assembler, Cond, Function, Helper, MapRef, Reg, Width},
    kernel::syscalls::Registers,
    plan::source::{ProgramContext, Source, UserData},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind, Purpose},
    },
};

/// Name of program and map.
const NAME: &str = "tracer_pages";
/// The raw tracepoint.
pub(crate) const TRACEPOINT: &str = "sys_enter";
/// Bytes that the other programs read at most. The last one tells whether a text goes on.
const BYTES: i16 = UserData::READ as i16 + 1;
/// Places on the stack: the call's number, an argument, and the memory that is read.
const NUMBER: i16 = -4;
const ARGUMENT: i16 = -16;
const DATA: i16 = ARGUMENT - (BYTES + 7) / 8 * 8;

/// The program that makes user memory present. A process has one.
#[derive(Debug)]
pub struct CallPages {
    program: Prog,
    /// By number of the call, a bit for each argument that points to memory.
    wanted: Map,
    counts: Mutex<Counts>,
    /// Byte offsets of the arguments in `struct pt_regs`.
    args: [u32; 6],
    link: Mutex<Weak<OwnedFd>>,
}

impl CallPages {
    /// Loads the program, which is not attached yet and reads nothing.
    ///
    /// # Errors
    /// When the kernel refuses the map or the program, as before 7.2.
    pub fn new(registers: &Registers) -> Result<Self, Cause> {
        let wanted = maps::array(size_of::<u32>(), CALL_NUMBERS, NAME)?;
        let mut function = code(registers);
        load::bind(std::slice::from_mut(&mut function), |_| Some(wanted.as_fd()))?;
        let program = Prog::load_sleepable(ProgKind::RawTracepoint, Purpose::Any, &function.bytes(), NAME)
            .map_err(|error| Cause::Load(ProgKind::RawTracepoint, error))?;
        Ok(Self { program, wanted, counts: Mutex::default(), args: registers.args, link: Mutex::default() })
    }

    /// Reads memory that the values of a program at the entry of the call with this number come from, until the result
    /// is dropped. `None` if no value does.
    pub(crate) fn want(self: &Arc<Self>, number: u32, context: &ProgramContext) -> Option<PageLease> {
        let ProgramContext::RawTracepoint(fields) = context else { return None };
        let is_wanted = |arg: &u32| {
            let mut data = fields.iter().filter_map(|field| match &field.source {
                Source::UserData(data) => Some(data),
                _ => None,
            });
            data.any(|data| data.pointer == *arg)
        };
        let args = self.args.each_ref().map(is_wanted);
        if number >= CALL_NUMBERS || args == [false; 6] {
            return None;
        }
        self.count(number, args, |count| count + 1);
        Some(PageLease { pages: Arc::clone(self), number, args })
    }

    /// Changes the counts of a call's arguments, and tells the program.
    fn count(&self, number: u32, args: [bool; 6], change: impl Fn(u32) -> u32) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = counts.change(number, args, change);
        // The array has this number, so this does not fail.
        let _ = self.wanted.update(&number.to_ne_bytes(), &bits.to_ne_bytes());
    }

    /// Attaches the program, unless it is attached. It stays attached while a caller keeps the link. `None` if the
    /// kernel refuses the link. The other programs then read only memory that is present.
    pub(crate) fn attach(&self) -> Option<Arc<OwnedFd>> {
        let mut known = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = known.upgrade() {
            return Some(link);
        }
        let link = raw_tracepoint::attach(&self.program, TRACEPOINT);
        let link = link.inspect_err(|cause| tracing::debug!("user memory of system calls: {cause}")).ok()?;
        let link = Arc::new(link);
        *known = Arc::downgrade(&link);
        Some(link)
    }
}

/// By number of a call, how many events want each argument's memory.
#[derive(Debug, Default)]
struct Counts(BTreeMap<u32, [u32; 6]>);

impl Counts {
    /// Changes the counts of these arguments. Returns a bit for each argument of the call that an event wants.
    fn change(&mut self, number: u32, args: [bool; 6], change: impl Fn(u32) -> u32) -> u32 {
        let of_call = self.0.entry(number).or_default();
        for (count, _) in of_call.iter_mut().zip(args).filter(|(_, is_wanted)| *is_wanted) {
            *count = change(*count);
        }
        of_call.iter().rev().fold(0, |bits, count| bits << 1 | u32::from(*count > 0))
    }
}

/// What an event wants of the memory of a call's arguments.
#[derive(Debug)]
pub(crate) struct PageLease {
    pages: Arc<CallPages>,
    number: u32,
    args: [bool; 6],
}

impl Drop for PageLease {
    fn drop(&mut self) {
        self.pages.count(self.number, self.args, |count| count.saturating_sub(1));
    }
}

/// The program: reads what each wanted argument points to.
fn code(registers: &Registers) -> Function {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.load(Width::D, Reg::R1, Reg::R6, 8);
    asm.store(Width::W, Reg::R10, NUMBER, Reg::R1);
    asm.map(Reg::R1, MapRef::Prefault);
    asm.address(Reg::R2, Reg::R10, i32::from(NUMBER));
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Cond::Eq, Reg::R0, 0, end);
    asm.load(Width::W, Reg::R7, Reg::R0, 0);
    asm.jump_if(Cond::Eq, Reg::R7, 0, end);
    asm.load(Width::D, Reg::R6, Reg::R6, 0);
    // The numbers of 32-bit calls are others'.
    asm.call(Helper::GetCurrentTask);
    asm.address(Reg::R3, Reg::R0, registers.compat.task_offset.cast_signed());
    read(&mut asm, NUMBER, 4, Helper::ProbeReadKernel);
    asm.jump_if(Cond::Ne, Reg::R0, 0, end);
    asm.load(Width::W, Reg::R1, Reg::R10, NUMBER);
    asm.alu(Alu::And, Reg::R1, registers.compat.mask.cast_signed());
    asm.jump_if(Cond::Ne, Reg::R1, 0, end);
    for (number, offset) in registers.args.iter().enumerate() {
        let next = asm.label();
        asm.mov(Reg::R1, Reg::R7);
        asm.alu(Alu::And, Reg::R1, 1 << number);
        asm.jump_if(Cond::Eq, Reg::R1, 0, next);
        asm.address(Reg::R3, Reg::R6, offset.cast_signed());
        read(&mut asm, ARGUMENT, 8, Helper::ProbeReadKernel);
        asm.jump_if(Cond::Ne, Reg::R0, 0, next);
        asm.load(Width::D, Reg::R3, Reg::R10, ARGUMENT);
        // Of memory that ends within these bytes, the pages before its end are present after this too.
        read(&mut asm, DATA, i32::from(BYTES), Helper::CopyFromUser);
        asm.bind(next);
    }
    asm.bind(end);
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish(NAME)
}

/// Reads bytes at the address in R3 to a place on the stack; R0 is 0 on success.
fn read(asm: &mut Assembler, to: i16, bytes: i32, helper: Helper) {
    asm.address(Reg::R1, Reg::R10, i32::from(to));
    asm.mov(Reg::R2, bytes);
    asm.call(helper);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_read_while_an_event_wants_it() {
        let mut counts = Counts::default();
        let args = |wanted: &[usize]| std::array::from_fn(|arg| wanted.contains(&arg));
        let (more, less) = (|count| count + 1, |count: u32| count - 1);
        assert_eq!(counts.change(257, args(&[1]), more), 0b10);
        assert_eq!(counts.change(257, args(&[1, 3]), more), 0b1010);
        assert_eq!(counts.change(1, args(&[0]), more), 0b1);
        assert_eq!(counts.change(257, args(&[1]), less), 0b1010);
        assert_eq!(counts.change(257, args(&[1, 3]), less), 0);
    }
}
