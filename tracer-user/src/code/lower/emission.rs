//! The emission of a synthetic event: a function of the emitting program, `fn(values: *const u64, ctx: *mut c_void)`.
//!
//! The function builds the event's record in its own memory, laid out as a record that user space injects
//! ([`tracer_abi::INJECT_SIZE`]). It then calls one part of the program for each instance that has the event enabled.
//! Filters, triggers and histograms of these parts are lowered for
//! [`ProgramContext::Inject`](crate::plan::source::ProgramContext::Inject). A value is a number, or the address of a
//! text or of a stack (a word with the number of addresses, then the addresses). `ctx` is the context of the hook.

use tracer_abi::{COMMON_SIZE, INJECT_COMM, INJECT_CPU, INJECT_LENGTH, MAX_PAYLOAD};

use super::emitter::Emitter;
use crate::{
    code::asm::{Alu, Cond, Function, Helper, Label, MapRef, Reg, Width},
    event::synthetic::{Event, Member, TEXT_SIZE},
};

/// Symbol of the function.
pub const EMIT: &str = "tracer_emit";

/// Largest size in bytes of a text or stack after the record (`STR_VAR_LEN_MAX`; `HIST_STACKTRACE_SIZE` is the same).
const DATA_MAX: i32 = TEXT_SIZE as i32;
/// Replacement for a text that cannot be read (`FAULT_STRING`).
const FAULT: [u8; 8] = *b"(fault)\0";

/// Registers that survive calls: values, context of the hook, record, and the offset where its data ends.
const VALUES: Reg = Reg::R6;
const HOOK: Reg = Reg::R7;
const RECORD: Reg = Reg::R8;
const END: Reg = Reg::R9;

/// Stack offsets of the key of the map, and of the depth of a stack or then its size.
const KEY: i16 = -8;
const DEPTH: i16 = -16;

/// Lowers the emission of an event with this id.
///
/// [`MapRef::Emission`] is a per-CPU array with a value of [`tracer_abi::INJECT_SIZE`] bytes. `parts` are the names of
/// the functions that receive the record and the hook's context. Returns None if the record would be too long.
pub fn emission(event: &Event, id: u16, parts: &[&str]) -> Option<Function> {
    let fixed = event.fixed_size();
    if fixed > MAX_PAYLOAD {
        return None;
    }
    let mut emit = Emitter::with_calls();
    let out = emit.label();
    emit.mov(VALUES, Reg::R1);
    emit.mov(HOOK, Reg::R2);
    emit.store(Width::D, Reg::R10, KEY, 0);
    emit.look_up(MapRef::Emission, KEY);
    emit.jump_if(Cond::Eq, Reg::R0, 0, out);
    emit.mov(RECORD, Reg::R0);
    // The common fields for histograms; records have their own.
    emit.call(Helper::GetCurrentPidTgid);
    emit.alu(Alu::Lsh, Reg::R0, 32);
    emit.alu(Alu::Or, Reg::R0, i32::from(id));
    emit.store(Width::D, RECORD, 0, Reg::R0);
    emit.call(Helper::GetSmpProcessorId);
    emit.store(Width::W, RECORD, INJECT_CPU as i16, Reg::R0);
    emit.read_comm((RECORD, INJECT_COMM as i16));
    emit.mov(END, fixed as i32);
    let mut at = COMMON_SIZE;
    for (number, member) in event.fields.iter().enumerate() {
        emit.note(&member.name);
        field(&mut emit, member, number, at as i16, out);
        at += 8 * member.words();
    }
    emit.store(Width::W, RECORD, INJECT_LENGTH as i16, END);
    for part in parts {
        emit.mov(Reg::R1, RECORD);
        emit.mov(Reg::R2, HOOK);
        emit.call_function(*part);
    }
    emit.bind(out);
    emit.mov(Reg::R0, 0);
    emit.exit();
    Some(emit.finish(EMIT))
}

/// Stores a value in its field.
fn field(emit: &mut Emitter, member: &Member, number: usize, at: i16, out: Label) {
    let value = 8 * number as i16;
    if member.is_text() && !member.is_dynamic() {
        let read = emit.label();
        for word in 0..TEXT_SIZE as i16 / 8 {
            emit.store(Width::D, RECORD, at + 8 * word, 0);
        }
        emit.address(Reg::R1, RECORD, i32::from(at));
        emit.mov(Reg::R2, TEXT_SIZE as i32);
        emit.load(Width::D, Reg::R3, VALUES, value);
        emit.call(Helper::ProbeReadKernelStr);
        emit.jump_if(Cond::SGe, Reg::R0, 0, read);
        emit.constant(Reg::R1, u64::from_ne_bytes(FAULT));
        emit.store(Width::D, RECORD, at, Reg::R1);
        emit.bind(read);
    } else if member.is_text() {
        let read = emit.label();
        emit.jump_if(Cond::Gt, END, MAX_PAYLOAD as i32 - DATA_MAX, out);
        data(emit);
        emit.mov(Reg::R2, DATA_MAX);
        emit.load(Width::D, Reg::R3, VALUES, value);
        emit.call(Helper::ProbeReadKernelStr);
        emit.jump_if(Cond::SGt, Reg::R0, 0, read);
        data(emit);
        emit.constant(Reg::R2, u64::from_ne_bytes(FAULT));
        emit.store(Width::D, Reg::R1, 0, Reg::R2);
        emit.mov(Reg::R0, FAULT.len() as i32);
        emit.bind(read);
        appended(emit, at, out);
    } else if member.is_stack() {
        emit.jump_if(Cond::Gt, END, MAX_PAYLOAD as i32 - DATA_MAX, out);
        emit.load(Width::D, Reg::R3, VALUES, value);
        emit.read_kernel((Reg::R10, DEPTH), 8);
        emit.load(Width::D, Reg::R2, Reg::R10, DEPTH);
        emit.limit(Reg::R2, DATA_MAX as usize / 8 - 1);
        // The copy includes the word with the number of addresses.
        emit.alu(Alu::Add, Reg::R2, 1);
        emit.alu(Alu::Lsh, Reg::R2, 3);
        emit.store(Width::D, Reg::R10, DEPTH, Reg::R2);
        data(emit);
        emit.load(Width::D, Reg::R3, VALUES, value);
        emit.call(Helper::ProbeReadKernel);
        emit.load(Width::D, Reg::R0, Reg::R10, DEPTH);
        appended(emit, at, out);
    } else {
        emit.load(Width::D, Reg::R0, VALUES, value);
        emit.truncate(member.size());
        emit.store(Width::D, RECORD, at, Reg::R0);
    }
}

/// R1 = address of the end of the record's data.
fn data(emit: &mut Emitter) {
    emit.mov(Reg::R1, RECORD);
    emit.alu(Alu::Add, Reg::R1, END);
}

/// Stores at `at` the location of the R0 bytes that were appended to the record.
fn appended(emit: &mut Emitter, at: i16, out: Label) {
    emit.jump_if(Cond::Gt, Reg::R0, DATA_MAX, out);
    emit.mov(Reg::R1, Reg::R0);
    emit.alu(Alu::Lsh, Reg::R1, 16);
    emit.alu(Alu::Or, Reg::R1, END);
    emit.store(Width::D, RECORD, at, Reg::R1);
    emit.alu(Alu::Add, END, Reg::R0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_too_long_for_a_buffer_are_not_built() {
        let member = |ty: &str, n: usize| {
            Member::new(format!("f{n}"), ty.to_owned(), |digits| digits.parse().ok()).unwrap()
        };
        let event = |count| Event {
            name: "e".to_owned(),
            fields: (0..count).map(|n| member("char[16]", n)).collect(),
        };
        assert!(emission(&event(31), 1, &["a"]).is_some());
        assert!(emission(&event(32), 1, &["a"]).is_none());
        let dynamic = Event { name: "d".to_owned(), fields: (0..64).map(|n| member("char[]", n)).collect() };
        let function = emission(&dynamic, 1, &["a", "b"]).unwrap();
        assert_eq!(function.addresses.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
