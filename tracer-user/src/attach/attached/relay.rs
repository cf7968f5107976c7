//! Relays: programs that pass an event's records to dependents (`code::lower::relay`). Each is attached behind its
//! own gate, like the programs of dynamic events, so that one word exchanges its dependents.

use std::{os::fd::AsFd, sync::Arc};

use tracer_abi::SCRATCH_SIZE;

use super::{
    emission::{self, Block},
    entry::OwnGate,
    lifecycle::{Attached, Dispatch},
};
use crate::{
    attach::{
        AttachError, AttachPoint, Cause, Session, maps,
        program::{builder::LoadedProgram, load},
    },
    code::{
        asm::MapRef,
        lower::relay::{self, AREA_SIZE, ROWS},
    },
    event::Format,
    plan::source::ProgramContext,
};

/// Parameters of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Relayed<'a> {
    /// The event.
    pub format: &'a Format,
    /// How its values are read: from another event's record if the relay is a part.
    pub context: &'a ProgramContext,
    /// Programs at its hook can be preempted by others of their kind.
    pub nests: bool,
    /// It is a part of a program that already has records of another event.
    pub is_part: bool,
    /// A process whose hits are not relayed.
    pub but_process: Option<u32>,
    /// User space runs records through it.
    pub is_injected: bool,
}

/// Builds a relay together with the parts that receive its records.
///
/// # Errors
/// When the hook does not provide the record, or the kernel refuses a map.
pub fn relayed(relayed: &Relayed<'_>, cpus: u32, parts: &[Block]) -> Result<Block, AttachError> {
    let Relayed { format, context, nests, is_part, but_process, is_injected } = *relayed;
    let failed = |cause| AttachError::new(format.full_name(), cause);
    let make = |size| maps::array(size, cpus * ROWS, "tracer_relay").map_err(failed);
    let (area, scratch) = (make(AREA_SIZE)?, make(SCRATCH_SIZE)?);
    let request = relay::Request { format, context, is_part, is_injected, nests, but_process };
    let names = emission::names(parts);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut functions = relay::relay(&request, &names).map_err(|error| failed(Cause::Lower(error)))?;
    load::bind(&mut functions, |map| match map {
        MapRef::RelayArea => Some(area.as_fd()),
        MapRef::RelayScratch => Some(scratch.as_fd()),
        _ => None,
    })
    .map_err(failed)?;
    Ok(Block::joined(&functions, parts, vec![Arc::new(area), Arc::new(scratch)]))
}

impl Session {
    /// Attaches a relay to a hook, or to none ([`AttachPoint::Inject`]).
    ///
    /// # Errors
    /// When a program does not pass the verifier or the kernel refuses the hook.
    pub fn attach_relay(
        &mut self,
        format: &Format,
        context: &ProgramContext,
        point: &AttachPoint,
        parts: &[Block],
    ) -> Result<Attached, AttachError> {
        let failed = |cause| AttachError::new(format.full_name(), cause);
        let program = self.relay(format, context, point, parts)?;
        let mut attached = Attached::new(point.clone(), Dispatch::Gate, Arc::clone(&program));
        if *point != AttachPoint::Inject {
            let gate = OwnGate::new(point.kind(), point.purpose(), false, "tracer_relay").map_err(failed)?;
            (attached.gate, attached.entry) = (Some(gate.0), Some(gate.1));
            attached.chain = self.join(point, Dispatch::Gate).map_err(failed)?;
            attached.set_program(program).map_err(failed)?;
            self.connect(&mut attached).map_err(failed)?;
        }
        Ok(attached)
    }

    /// Replaces the parts of a relay: every hit runs either the old parts or the new ones, exactly once.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one stays.
    pub fn replace_relay(
        &self,
        relay: &mut Attached,
        format: &Format,
        context: &ProgramContext,
        parts: &[Block],
    ) -> Result<(), AttachError> {
        let program = self.relay(format, context, relay.point(), parts)?;
        relay.set_program(program).map_err(|cause| AttachError::new(format.full_name(), cause))
    }

    fn relay(
        &self,
        format: &Format,
        context: &ProgramContext,
        point: &AttachPoint,
        parts: &[Block],
    ) -> Result<Arc<LoadedProgram>, AttachError> {
        let own = self.maps.excluded_tgid();
        let but_process = (own != 0 && *point != AttachPoint::Inject).then_some(own);
        let is_injected = *point == AttachPoint::Inject;
        let relay = Relayed {
            format,
            context,
            nests: self.context().nests(point),
            is_part: false,
            but_process,
            is_injected,
        };
        let block = relayed(&relay, self.maps.options().cpus, parts)?;
        let guarded = self.context().guarded(point, block.insns().to_vec());
        let program = guarded
            .and_then(|insns| load::load(point.kind(), point.purpose(), &insns, &format.name))
            .map_err(|cause| AttachError::new(format.full_name(), cause))?;
        Ok(Arc::new(LoadedProgram { program: Arc::new(program), scratch: None }))
    }
}
