//! The emission of a synthetic event: a function of the emitting program, `fn(values: *const u64, ctx: *mut c_void)`.
//!
//! The function builds the event's record in its own memory, laid out as a record that user space injects
//! ([`tracer_abi::INJECT_SIZE`]). It then calls one part of the program for each instance that has the event enabled.
//! Filters, triggers and histograms of these parts are lowered for
//! [`ProgramContext::Inject`](crate::plan::source::ProgramContext::Inject). A value is a number, or the address of a
//! text or of a stack (a word with the number of addresses, then the addresses). `ctx` is the context of the hook.

use tracer_abi::{COMMON_SIZE, INJECT_COMM, INJECT_CPU, INJECT_LENGTH, MAX_PAYLOAD};

use crate::{
    code::asm::{Alu, Assembler, Cond, Function, Helper, Label, MapRef, Reg, Width},
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

/// Lowers the emission of an event with this id.
///
/// [`MapRef::Emission`] is a per-CPU array with a value of [`tracer_abi::INJECT_SIZE`] bytes. `parts` are the names of
/// the functions that receive the record and the hook's context. Returns None if the record would be too long.
pub fn emission(event: &Event, id: u16, parts: &[&str]) -> Option<Function> {
    let fixed = event.fixed_size();
    if fixed > MAX_PAYLOAD {
        return None;
    }
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(VALUES, Reg::R1);
    asm.mov(HOOK, Reg::R2);
    asm.store(Width::D, Reg::R10, -8, 0);
    asm.map(Reg::R1, MapRef::Emission);
    asm.address(Reg::R2, Reg::R10, -8);
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Cond::Eq, Reg::R0, 0, out);
    asm.mov(RECORD, Reg::R0);
    // The common fields for histograms; records have their own.
    asm.call(Helper::GetCurrentPidTgid);
    asm.alu(Alu::Lsh, Reg::R0, 32);
    asm.alu(Alu::Or, Reg::R0, i32::from(id));
    asm.store(Width::D, RECORD, 0, Reg::R0);
    asm.call(Helper::GetSmpProcessorId);
    asm.store(Width::W, RECORD, INJECT_CPU as i16, Reg::R0);
    asm.address(Reg::R1, RECORD, INJECT_COMM as i32);
    asm.mov(Reg::R2, 16);
    asm.call(Helper::GetCurrentComm);
    asm.mov(END, fixed as i32);
    let mut at = COMMON_SIZE;
    for (number, member) in event.fields.iter().enumerate() {
        asm.note(&member.name);
        field(&mut asm, member, number, at as i16, out);
        at += 8 * member.words();
    }
    asm.store(Width::W, RECORD, INJECT_LENGTH as i16, END);
    for part in parts {
        asm.mov(Reg::R1, RECORD);
        asm.mov(Reg::R2, HOOK);
        asm.call_function(*part);
    }
    asm.bind(out);
    asm.mov(Reg::R0, 0);
    asm.exit();
    Some(asm.finish(EMIT))
}

/// Stores a value in its field.
fn field(asm: &mut Assembler, member: &Member, number: usize, at: i16, out: Label) {
    let value = 8 * number as i16;
    if member.is_text() && !member.is_dynamic() {
        let read = asm.label();
        for word in 0..TEXT_SIZE as i16 / 8 {
            asm.store(Width::D, RECORD, at + 8 * word, 0);
        }
        asm.address(Reg::R1, RECORD, i32::from(at));
        asm.mov(Reg::R2, TEXT_SIZE as i32);
        asm.load(Width::D, Reg::R3, VALUES, value);
        asm.call(Helper::ProbeReadKernelStr);
        asm.jump_if(Cond::SGe, Reg::R0, 0, read);
        asm.constant(Reg::R1, u64::from_ne_bytes(FAULT));
        asm.store(Width::D, RECORD, at, Reg::R1);
        asm.bind(read);
    } else if member.is_text() {
        let read = asm.label();
        asm.jump_if(Cond::Gt, END, MAX_PAYLOAD as i32 - DATA_MAX, out);
        data(asm);
        asm.mov(Reg::R2, DATA_MAX);
        asm.load(Width::D, Reg::R3, VALUES, value);
        asm.call(Helper::ProbeReadKernelStr);
        asm.jump_if(Cond::SGt, Reg::R0, 0, read);
        data(asm);
        asm.constant(Reg::R2, u64::from_ne_bytes(FAULT));
        asm.store(Width::D, Reg::R1, 0, Reg::R2);
        asm.mov(Reg::R0, FAULT.len() as i32);
        asm.bind(read);
        appended(asm, at, out);
    } else if member.is_stack() {
        let fits = asm.label();
        asm.jump_if(Cond::Gt, END, MAX_PAYLOAD as i32 - DATA_MAX, out);
        asm.address(Reg::R1, Reg::R10, -16);
        asm.mov(Reg::R2, 8);
        asm.load(Width::D, Reg::R3, VALUES, value);
        asm.call(Helper::ProbeReadKernel);
        asm.load(Width::D, Reg::R2, Reg::R10, -16);
        asm.jump_if(Cond::Lt, Reg::R2, DATA_MAX / 8, fits);
        asm.mov(Reg::R2, DATA_MAX / 8 - 1);
        asm.bind(fits);
        // The copy includes the word with the number of addresses.
        asm.alu(Alu::Add, Reg::R2, 1);
        asm.alu(Alu::Lsh, Reg::R2, 3);
        asm.store(Width::D, Reg::R10, -24, Reg::R2);
        data(asm);
        asm.load(Width::D, Reg::R3, VALUES, value);
        asm.call(Helper::ProbeReadKernel);
        asm.load(Width::D, Reg::R0, Reg::R10, -24);
        appended(asm, at, out);
    } else {
        asm.load(Width::D, Reg::R0, VALUES, value);
        match member.size() {
            8 => {}
            4 => asm.alu32(Alu::Mov, Reg::R0, Reg::R0),
            size => asm.alu(Alu::And, Reg::R0, (1 << (8 * size)) - 1),
        }
        asm.store(Width::D, RECORD, at, Reg::R0);
    }
}

/// R1 = address of the end of the record's data.
fn data(asm: &mut Assembler) {
    asm.mov(Reg::R1, RECORD);
    asm.alu(Alu::Add, Reg::R1, END);
}

/// Stores at `at` the location of the R0 bytes that were appended to the record.
fn appended(asm: &mut Assembler, at: i16, out: Label) {
    asm.jump_if(Cond::Gt, Reg::R0, DATA_MAX, out);
    asm.mov(Reg::R1, Reg::R0);
    asm.alu(Alu::Lsh, Reg::R1, 16);
    asm.alu(Alu::Or, Reg::R1, END);
    asm.store(Width::D, RECORD, at, Reg::R1);
    asm.alu(Alu::Add, END, Reg::R0);
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
