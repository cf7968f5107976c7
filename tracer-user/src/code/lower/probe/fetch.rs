//! The values of a dynamic event's record: stores one after the other at R7 and appends texts to the fixed part.
//!
//! R6 is the context, R7 the record, R8 the offset of the next text, R9 the current value. A value that cannot be read
//! is 0. A text that cannot be read is an empty location, which prints as `(fault)`. The values that a filter reads are
//! fetched in the same way ([`image`](crate::code::lower::image)).

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD};

use super::{
    entry_args,
    value::{AddressSpace, Fetch, call_words, steps},
};
use crate::{
    code::{
        asm::{Alu, Cond, Helper, MapRef, Reg, Width},
        lower::{emitter::Emitter, output::LowerError},
    },
    lang::fetch::Store,
    plan::probe::{ArgPlan, BitShifts, Origin, ProbeContext, ProbePlan},
};

/// Longest text, its NUL included: `MAX_STRING_SIZE`, kernel/trace/trace_probe.h.
const TEXT_MAX: i32 = 4096;
/// Bytes for the name of a symbol: more than `KSYM_SYMBOL_LEN`, include/linux/kallsyms.h.
const SYMBOL_MAX: i32 = 640;

/// Fetches the whole record; returns the register with its length if that varies.
pub(crate) fn fetch_record(emit: &mut Emitter, plan: &ProbePlan) -> Result<Option<Reg>, LowerError> {
    fetch_all(emit, plan, true, |_, _| true)?;
    if !plan.is_variable() {
        return Ok(None);
    }
    emit.note("whole length");
    // R8 never exceeds it; the check is for the verifier.
    emit.limit(Reg::R8, MAX_PAYLOAD);
    Ok(Some(Reg::R8))
}

/// Fetches the values whose bytes (first, end) are `wanted`. `whole` removes the arguments saved at the entry, because
/// nothing reads them after the whole record.
pub(crate) fn fetch_all(
    emit: &mut Emitter,
    plan: &ProbePlan,
    whole: bool,
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<(), LowerError> {
    let head = (0..).map(|n| COMMON_SIZE + 8 * n).zip(&plan.head);
    let head: Vec<_> = head.filter(|(offset, _)| wanted(*offset, offset + 8)).collect();
    let args: Vec<_> = plan.args.iter().filter(|arg| wanted(arg.offset, arg.offset + arg.bytes())).collect();
    let origins = || head.iter().map(|(_, value)| &value.from).chain(args.iter().map(|arg| &arg.value.from));
    let call = origins().filter_map(last_word).max().map(|last| call_words(emit, last));
    let saved = origins().any(|from| matches!(from, Origin::EntryArg(_)));
    let entry_args = match plan.context {
        ProbeContext::Registers(arch) if saved => {
            Some(entry_args::load(emit, arch, plan.entry_args.len(), whole))
        }
        _ => None,
    };
    let mut fetch = Fetch::new(plan);
    (fetch.call, fetch.entry_args) = (call, entry_args);
    for (offset, value) in head {
        emit.note(format!("bytes {offset}: {value}"));
        fetch.value(emit, value);
        emit.store(Width::D, Reg::R7, offset as i16, Reg::R9);
    }
    if args.iter().any(|arg| arg.is_text()) {
        emit.mov(Reg::R8, plan.fixed as i32);
    }
    for arg in args {
        fetch_arg(emit, &mut fetch, arg)?;
    }
    Ok(())
}

fn fetch_arg(emit: &mut Emitter, fetch: &mut Fetch<'_>, arg: &ArgPlan) -> Result<(), LowerError> {
    emit.note(format!("{}: {}", arg.name, arg.value));
    let [fault, done] = emit.labels();
    let user = fetch.plan.user;
    fetch.value(emit, &arg.value);
    let (last, before) = steps(arg);
    for step in before {
        fetch.step(emit, step, fault);
    }
    let faults = !before.is_empty();
    if arg.is_text() {
        let from = match arg.store {
            _ if arg.value.is_own() => AddressSpace::Kernel,
            store => AddressSpace::of(user, store == Store::UserText),
        };
        for element in 0..arg.count {
            let to = (arg.offset + (element * arg.size) as usize) as i16;
            if let Some(last) = last {
                let [skip, next] = emit.labels();
                let at = last.offset.wrapping_add(8 * element.cast_signed());
                fetch.deref(emit, AddressSpace::of(user, last.user), at);
                emit.jump_if(Cond::Ne, Reg::R0, 0, skip);
                let slot = fetch.slot(emit);
                emit.load(Width::D, Reg::R3, Reg::R10, slot);
                fetch_text(emit, arg, to, from, user);
                emit.jump(next);
                emit.bind(skip);
                empty_text(emit, to);
                emit.bind(next);
            } else {
                emit.mov(Reg::R3, Reg::R9);
                fetch_text(emit, arg, to, from, user);
            }
        }
    } else {
        fetch_number(emit, arg, AddressSpace::of(user, arg.store == Store::UserMemory))?;
    }
    if faults {
        emit.jump(done);
        emit.bind(fault);
        for element in 0..arg.count {
            let to = arg.offset + (element * arg.size) as usize;
            if arg.is_text() {
                empty_text(emit, to as i16);
            } else {
                for byte in to..to + arg.size as usize {
                    emit.store(Width::B, Reg::R7, byte as i16, 0);
                }
            }
        }
        emit.bind(done);
    }
    Ok(())
}

/// Stores the number in R9, or the numbers at the address in R9.
fn fetch_number(emit: &mut Emitter, arg: &ArgPlan, memory: AddressSpace) -> Result<(), LowerError> {
    let size = arg.size as usize;
    let width = Width::of(size).ok_or(LowerError::NumberSize(size))?;
    if arg.store == Store::Raw {
        emit.store(width, Reg::R7, arg.offset as i16, Reg::R9);
    } else {
        emit.address(Reg::R3, Reg::R9, arg.store_offset);
        memory.read(emit, (Reg::R7, arg.offset as i16), arg.bytes());
    }
    if let Some(BitShifts { left, right, size }) = arg.bits {
        for element in 0..arg.count {
            let at = (arg.offset + (element * arg.size) as usize) as i16;
            emit.load(width, Reg::R0, Reg::R7, at);
            emit.alu(Alu::Lsh, Reg::R0, i32::from(left));
            emit.truncate(size.into());
            emit.alu(Alu::Rsh, Reg::R0, i32::from(right));
            emit.store(width, Reg::R7, at, Reg::R0);
        }
    }
    Ok(())
}

/// Appends the text at R3, or the name of the symbol at R3, to the record and stores its location.
fn fetch_text(emit: &mut Emitter, arg: &ArgPlan, to: i16, memory: AddressSpace, in_file: bool) {
    let [empty, done] = emit.labels();
    // R8 never exceeds it; the check is for the verifier.
    emit.limit(Reg::R8, MAX_PAYLOAD);
    if arg.store == Store::SymbolText {
        symbol_name(emit);
    } else {
        if arg.store_offset != 0 {
            emit.alu(Alu::Add, Reg::R3, arg.store_offset);
        }
        emit.mov(Reg::R2, MAX_PAYLOAD as i32);
        emit.alu(Alu::Sub, Reg::R2, Reg::R8);
        emit.limit(Reg::R2, TEXT_MAX as usize);
        emit.mov(Reg::R1, Reg::R7);
        emit.alu(Alu::Add, Reg::R1, Reg::R8);
        memory.read_text(emit);
        if memory == AddressSpace::User && in_file {
            count_nothing(emit);
        }
    }
    emit.jump_if(Cond::SLe, Reg::R0, 0, empty);
    emit.jump_if(Cond::SGt, Reg::R0, TEXT_MAX, empty);
    emit.mov(Reg::R1, Reg::R0);
    emit.alu(Alu::Lsh, Reg::R1, 16);
    emit.alu(Alu::Or, Reg::R1, Reg::R8);
    emit.store(Width::W, Reg::R7, to, Reg::R1);
    emit.alu(Alu::Add, Reg::R8, Reg::R0);
    emit.jump(done);
    emit.bind(empty);
    empty_text(emit, to);
    emit.bind(done);
}

/// For an empty text in user space, the helper of some kernels returns 0 and does not count the NUL
/// (`strncpy_from_user_nofault()`, seen on 6.12). The kernel's own uprobes count it.
fn count_nothing(emit: &mut Emitter) {
    let counted = emit.label();
    emit.jump_if(Cond::Ne, Reg::R0, 0, counted);
    emit.mov(Reg::R1, Reg::R7);
    emit.alu(Alu::Add, Reg::R1, Reg::R8);
    emit.store(Width::B, Reg::R1, 0, 0);
    emit.mov(Reg::R0, 1);
    emit.bind(counted);
}

/// Appends the name and place of the symbol that contains R3 to the record; R0 = their length in bytes.
fn symbol_name(emit: &mut Emitter) {
    let slot = emit.alloc(8);
    emit.store(Width::D, Reg::R10, slot, Reg::R3);
    emit.mov(Reg::R1, Reg::R7);
    emit.alu(Alu::Add, Reg::R1, Reg::R8);
    emit.mov(Reg::R2, SYMBOL_MAX);
    emit.map_value(Reg::R3, MapRef::SymbolFormat);
    emit.address(Reg::R4, Reg::R10, i32::from(slot));
    emit.mov(Reg::R5, 8);
    emit.call(Helper::Snprintf);
    let fits = emit.label();
    emit.jump_if(Cond::SLe, Reg::R0, SYMBOL_MAX, fits);
    emit.mov(Reg::R0, SYMBOL_MAX);
    emit.bind(fits);
}

/// Stores the location of a missing text.
fn empty_text(emit: &mut Emitter, to: i16) {
    emit.store(Width::W, Reg::R7, to, Reg::R8);
}

/// The last of a call's words that a value needs.
fn last_word(from: &Origin) -> Option<u8> {
    match from {
        Origin::Call(word) => Some(*word),
        Origin::CallReturn { inside, outside, .. } => Some(*inside.max(outside)),
        _ => None,
    }
}
