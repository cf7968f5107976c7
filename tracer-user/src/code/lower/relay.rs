//! Relays pass an event's records, without recording them, to the parts of the program that depend on the event.
//!
//! These parts are histograms, and event probes attached to the event. A relay builds the record where the event's own
//! program would: at the hook, or from another event's record, of the kernel or of user space. It lays the record out
//! as a record that user space injects. It then calls the parts with the record and the hook's context, as an emission
//! does ([`super::emission`]).

use tracer_abi::{
    FILTER, INJECT_COMM, INJECT_CPU, INJECT_LENGTH, INJECT_SIZE, MAX_PAYLOAD, RECORD, RECORD_AREA,
};

use super::{filter::filter, output::LowerError, record::record};
use crate::{
    code::asm::{Alu, Assembler, Atomic, Cond, Function, Helper, MapRef, Reg, Width},
    event::Format,
    plan::{filter::Filter, source::ProgramContext},
};

/// Symbol of a relay.
pub const RELAY: &str = "tracer_relay";

/// Size of a map value in which a record is built: an injected record, and a word that marks the value as in use.
pub const AREA_SIZE: usize = INJECT_SIZE + 8;
/// Values per CPU: the number of records in progress where programs are preempted by others of their kind.
pub const ROWS: u32 = 4;

/// Stack offset of the number of the row.
const ROW: i16 = -8;
/// Stack offset of the common word.
const COMMON: i16 = -16;

/// The event and the context of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The event.
    pub format: &'a Format,
    /// The source of its values.
    pub context: &'a ProgramContext,
    /// The relay is itself a part of a program: the context is another event's record, the second argument the hook's
    /// context.
    pub is_part: bool,
    /// The relay is a program that runs for records of user space: the context is another event's record, and its
    /// writer counts as the task of the hit.
    pub is_injected: bool,
    /// Programs at the hook are preempted by others of their kind.
    pub nests: bool,
    /// A process whose hits are not passed on.
    pub but_process: Option<u32>,
}

/// Lowers a relay; `parts` are the names of the functions that receive the records.
///
/// # Errors
/// If the hook does not provide the record.
pub fn relay(request: &Request<'_>, parts: &[&str]) -> Result<Vec<Function>, LowerError> {
    let code = record(request.format, request.context)?;
    let when = match request.context {
        ProgramContext::Probe(plan) if plan.when.is_some() => {
            Some(filter(&Filter::Const(true), request.context)?)
        }
        _ => None,
    };
    let mut asm = Assembler::new();
    let (out, free) = (asm.label(), asm.label());
    // R6: the source of the record; R7: the hook's context; R8: the record.
    asm.mov(Reg::R6, Reg::R1);
    asm.mov(Reg::R7, if request.is_part { Reg::R2 } else { Reg::R1 });
    if request.is_injected {
        asm.load(Width::W, Reg::R0, Reg::R6, 4);
    } else {
        asm.call(Helper::GetCurrentPidTgid);
    }
    if let Some(process) = request.but_process {
        asm.mov(Reg::R1, Reg::R0);
        asm.alu(Alu::Rsh, Reg::R1, 32);
        asm.jump_if(Cond::Eq, Reg::R1, process.cast_signed(), out);
    }
    asm.alu(Alu::Lsh, Reg::R0, 32);
    asm.alu(Alu::Or, Reg::R0, i32::from(request.format.id));
    asm.store(Width::D, Reg::R10, COMMON, Reg::R0);
    asm.call(Helper::GetSmpProcessorId);
    asm.mov(Reg::R9, Reg::R0);
    asm.alu(Alu::Mul, Reg::R0, ROWS as i32);
    asm.store(Width::W, Reg::R10, ROW, Reg::R0);
    let taken = asm.label();
    for row in 0..if request.nests { ROWS } else { 1 } {
        let next = asm.label();
        if row > 0 {
            asm.load(Width::W, Reg::R0, Reg::R10, ROW);
            asm.alu(Alu::Add, Reg::R0, 1);
            asm.store(Width::W, Reg::R10, ROW, Reg::R0);
        }
        look_up(&mut asm, MapRef::RelayArea);
        asm.jump_if(Cond::Eq, Reg::R0, 0, out);
        asm.mov(Reg::R8, Reg::R0);
        if request.nests {
            asm.mov(Reg::R1, 1);
            asm.atomic(Width::D, Atomic::Exchange, Reg::R8, INJECT_SIZE as i16, Reg::R1);
            asm.jump_if(Cond::Ne, Reg::R1, 0, next);
        }
        asm.jump(taken);
        asm.bind(next);
    }
    asm.jump(out);
    asm.bind(taken);
    asm.load(Width::D, Reg::R0, Reg::R10, COMMON);
    asm.store(Width::D, Reg::R8, 0, Reg::R0);
    if request.is_injected {
        for word in (0..24).step_by(8) {
            let at = INJECT_LENGTH as i16 + word;
            asm.load(Width::D, Reg::R0, Reg::R6, at);
            asm.store(Width::D, Reg::R8, at, Reg::R0);
        }
    } else {
        asm.store(Width::W, Reg::R8, INJECT_CPU as i16, Reg::R9);
        asm.address(Reg::R1, Reg::R8, INJECT_COMM as i32);
        asm.mov(Reg::R2, 16);
        asm.call(Helper::GetCurrentComm);
    }
    if code.size.is_none() || when.is_some() {
        look_up(&mut asm, MapRef::RelayScratch);
        asm.jump_if(Cond::Eq, Reg::R0, 0, free);
        asm.mov(Reg::R9, Reg::R0);
    }
    if when.is_some() {
        asm.mov(Reg::R1, Reg::R6);
        asm.address(Reg::R2, Reg::R9, RECORD_AREA as i32);
        asm.load(Width::D, Reg::R3, Reg::R10, COMMON);
        asm.call_function(FILTER);
        asm.jump_if(Cond::Eq, Reg::R0, 0, free);
    }
    asm.mov(Reg::R1, Reg::R6);
    if code.size.is_some() {
        asm.mov(Reg::R2, Reg::R8);
        asm.call_function(RECORD);
    } else {
        asm.mov(Reg::R2, Reg::R9);
        asm.call_function(RECORD);
        let fits = asm.label();
        asm.mov(Reg::R6, Reg::R0);
        asm.jump_if(Cond::Le, Reg::R6, MAX_PAYLOAD as i32, fits);
        asm.mov(Reg::R6, MAX_PAYLOAD as i32);
        asm.bind(fits);
        asm.load(Width::D, Reg::R0, Reg::R10, COMMON);
        asm.store(Width::D, Reg::R9, 0, Reg::R0);
        asm.mov(Reg::R1, Reg::R8);
        asm.mov(Reg::R2, Reg::R6);
        asm.mov(Reg::R3, Reg::R9);
        asm.call(Helper::ProbeReadKernel);
        asm.mov(Reg::R0, Reg::R6);
    }
    asm.store(Width::W, Reg::R8, INJECT_LENGTH as i16, Reg::R0);
    for part in parts {
        asm.mov(Reg::R1, Reg::R8);
        asm.mov(Reg::R2, Reg::R7);
        asm.call_function(*part);
    }
    asm.bind(free);
    if request.nests {
        asm.store(Width::D, Reg::R8, INJECT_SIZE as i16, 0);
    }
    asm.bind(out);
    asm.mov(Reg::R0, 0);
    asm.exit();
    let when = when.into_iter().flat_map(|code| code.functions);
    Ok(std::iter::once(asm.finish(RELAY)).chain(code.functions).chain(when).collect())
}

/// R0 = the value of the row in a map.
fn look_up(asm: &mut Assembler, map: MapRef) {
    asm.map(Reg::R1, map);
    asm.address(Reg::R2, Reg::R10, i32::from(ROW));
    asm.call(Helper::MapLookupElem);
}
