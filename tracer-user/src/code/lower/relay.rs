//! Relays pass an event's records, without recording them, to the parts of the program that depend on the event.
//!
//! These parts are histograms, and event probes attached to the event. A relay builds the record where the event's own
//! program would: at the hook, or from another event's record, of the kernel or of user space. It lays the record out
//! as a record that user space injects. It then calls the parts with the record and the hook's context, as an emission
//! does ([`super::emission`]).

use tracer_abi::{
    FILTER, INJECT_COMM, INJECT_CPU, INJECT_LENGTH, INJECT_SIZE, MAX_PAYLOAD, RECORD, RECORD_AREA,
};

use super::{emitter::Emitter, filter::filter, output::LowerError, record::record};
use crate::{
    code::asm::{Alu, Atomic, Cond, Function, Helper, MapRef, Reg, Width},
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
    let mut emit = Emitter::with_calls();
    let [out, free, taken] = emit.labels();
    // R6: the source of the record; R7: the hook's context; R8: the record.
    emit.mov(Reg::R6, Reg::R1);
    emit.mov(Reg::R7, if request.is_part { Reg::R2 } else { Reg::R1 });
    if request.is_injected {
        emit.load(Width::W, Reg::R0, Reg::R6, 4);
    } else {
        emit.call(Helper::GetCurrentPidTgid);
    }
    emit.leave_process(request.but_process, out);
    emit.alu(Alu::Lsh, Reg::R0, 32);
    emit.alu(Alu::Or, Reg::R0, i32::from(request.format.id));
    emit.store(Width::D, Reg::R10, COMMON, Reg::R0);
    emit.call(Helper::GetSmpProcessorId);
    emit.mov(Reg::R9, Reg::R0);
    emit.alu(Alu::Mul, Reg::R0, ROWS as i32);
    emit.store(Width::W, Reg::R10, ROW, Reg::R0);
    for row in 0..if request.nests { ROWS } else { 1 } {
        let next = emit.label();
        if row > 0 {
            emit.load(Width::W, Reg::R0, Reg::R10, ROW);
            emit.alu(Alu::Add, Reg::R0, 1);
            emit.store(Width::W, Reg::R10, ROW, Reg::R0);
        }
        emit.look_up(MapRef::RelayArea, ROW);
        emit.jump_if(Cond::Eq, Reg::R0, 0, out);
        emit.mov(Reg::R8, Reg::R0);
        if request.nests {
            emit.mov(Reg::R1, 1);
            emit.atomic(Width::D, Atomic::Exchange, Reg::R8, INJECT_SIZE as i16, Reg::R1);
            emit.jump_if(Cond::Ne, Reg::R1, 0, next);
        }
        emit.jump(taken);
        emit.bind(next);
    }
    emit.jump(out);
    emit.bind(taken);
    emit.load(Width::D, Reg::R0, Reg::R10, COMMON);
    emit.store(Width::D, Reg::R8, 0, Reg::R0);
    if request.is_injected {
        let at = INJECT_LENGTH as i16;
        emit.copy_words((Reg::R8, at), (Reg::R6, at), 24);
    } else {
        emit.store(Width::W, Reg::R8, INJECT_CPU as i16, Reg::R9);
        emit.read_comm((Reg::R8, INJECT_COMM as i16));
    }
    if code.size.is_none() || when.is_some() {
        emit.look_up(MapRef::RelayScratch, ROW);
        emit.jump_if(Cond::Eq, Reg::R0, 0, free);
        emit.mov(Reg::R9, Reg::R0);
    }
    if when.is_some() {
        emit.mov(Reg::R1, Reg::R6);
        emit.address(Reg::R2, Reg::R9, RECORD_AREA as i32);
        emit.load(Width::D, Reg::R3, Reg::R10, COMMON);
        emit.call_function(FILTER);
        emit.jump_if(Cond::Eq, Reg::R0, 0, free);
    }
    emit.mov(Reg::R1, Reg::R6);
    emit.mov(Reg::R2, if code.size.is_some() { Reg::R8 } else { Reg::R9 });
    emit.call_function(RECORD);
    if code.size.is_none() {
        emit.mov(Reg::R6, Reg::R0);
        emit.limit(Reg::R6, MAX_PAYLOAD);
        emit.load(Width::D, Reg::R0, Reg::R10, COMMON);
        emit.store(Width::D, Reg::R9, 0, Reg::R0);
        emit.mov(Reg::R1, Reg::R8);
        emit.mov(Reg::R2, Reg::R6);
        emit.mov(Reg::R3, Reg::R9);
        emit.call(Helper::ProbeReadKernel);
        emit.mov(Reg::R0, Reg::R6);
    }
    emit.store(Width::W, Reg::R8, INJECT_LENGTH as i16, Reg::R0);
    for part in parts {
        emit.mov(Reg::R1, Reg::R8);
        emit.mov(Reg::R2, Reg::R7);
        emit.call_function(*part);
    }
    emit.bind(free);
    if request.nests {
        emit.store(Width::D, Reg::R8, INJECT_SIZE as i16, 0);
    }
    emit.bind(out);
    emit.mov(Reg::R0, 0);
    emit.exit();
    let when = when.into_iter().flat_map(|code| code.functions);
    Ok(std::iter::once(emit.finish(RELAY)).chain(code.functions).chain(when).collect())
}
