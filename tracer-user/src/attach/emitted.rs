//! Synthetic events: no hook is theirs. Programs of other events emit them in the kernel, and user space by injection; what
//! becomes of a record is decided by the same generated functions in both.

use std::os::fd::{AsFd, AsRawFd};

use tracer_abi::INJECT_SIZE;

use super::{AttachError, Cause, Request, Session, Via, Writer, inject};
use crate::{
    code::{asm::Insn, join, lower},
    event::synthetic::Event,
    sys::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// A part of programs that stands by itself (`code::join`), and the maps that it refers to by descriptor: whoever loads a
/// program with it keeps it until then.
#[derive(Debug)]
pub struct Block {
    insns: Vec<Insn>,
    /// Kept for their descriptors.
    maps: Vec<Map>,
}

impl Block {
    /// A part and what it refers to.
    pub fn new(insns: Vec<Insn>, maps: Vec<Map>) -> Self {
        Self { insns, maps }
    }

    /// What it refers to.
    pub(super) fn into_maps(self) -> Vec<Map> {
        self.maps
    }

    /// Its instructions, the first its entry.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }
}

/// What a program calls to emit a synthetic event, for that program alone: `parts` are what the instances where the event is
/// on do with a record, from [`Session::block`]. The arguments are those of [`lower::emission`]. None when no record can be
/// as long as the event's.
///
/// # Errors
/// When the kernel refuses a map.
pub fn emission(event: &Event, parts: Vec<Block>) -> Result<Option<Block>, AttachError> {
    let area = Map::create(&MapSpec {
        kind: MapKind::PerCpuArray,
        key_size: 4,
        value_size: INJECT_SIZE as u32,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "tracer_emit",
    })
    .map_err(|errno| AttachError::new(&event.name, Cause::Map("array", errno)))?;
    let names: Vec<String> = (0..parts.len()).map(|number| format!("part {number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(function) = lower::emission(event, area.as_fd().as_raw_fd(), &names) else { return Ok(None) };
    let joined: Vec<join::Part<'_>> =
        names.into_iter().zip(&parts).map(|(name, part)| (name, part.insns())).collect();
    let insns = join::join(&[function], &joined);
    let maps = parts.into_iter().flat_map(|part| part.maps).chain([area]).collect();
    Ok(Some(Block::new(insns, maps)))
}

/// A synthetic event that is on in a session.
#[derive(Debug)]
pub struct Emitted {
    /// Row of the counters.
    pub slot: u32,
    program: Prog,
    scratch: Option<Map>,
}

impl Session {
    /// Turns a synthetic event on; the request is [`Via::Inject`].
    ///
    /// # Errors
    /// When its program does not pass the verifier.
    pub fn hang_emitted(&mut self, request: &Request<'_>) -> Result<Emitted, AttachError> {
        debug_assert_eq!(*request.via, Via::Inject);
        let slot = self.take_slot()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        match self.program(request, slot, None) {
            Ok((program, scratch)) => Ok(Emitted { slot, program, scratch }),
            Err(error) => {
                self.gate.give_back(slot);
                Err(error)
            }
        }
    }

    /// Changes what becomes of a synthetic event's records.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one goes on then.
    pub fn change_emitted(
        &mut self,
        emitted: &mut Emitted,
        request: &Request<'_>,
    ) -> Result<(), AttachError> {
        let (program, scratch) = self.program(request, emitted.slot, emitted.scratch.as_ref())?;
        emitted.program = program;
        emitted.scratch = scratch.or(emitted.scratch.take());
        Ok(())
    }

    /// What a program that emits the event does with the record for this session; the request is [`Via::Emitted`].
    ///
    /// # Errors
    /// When there is no code for it, or the kernel refuses a map.
    pub fn block(&self, emitted: &Emitted, request: &Request<'_>) -> Result<Block, AttachError> {
        debug_assert_eq!(*request.via, Via::Emitted);
        let (image, scratch) = self.image(request, emitted.slot, None)?;
        Ok(Block::new(image.insns, image.constants.into_iter().chain(scratch).collect()))
    }

    /// Turns a synthetic event off.
    pub fn unhang_emitted(&mut self, emitted: Emitted) {
        self.gate.give_back(emitted.slot);
        drop(emitted);
    }

    /// Hands a record to a synthetic event; what its triggers ask for ([`tracer_abi::asked`]).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn emit(&self, emitted: &Emitted, record: &[u8], writer: &Writer) -> Result<u64, AttachError> {
        inject::run(&emitted.program, record, writer).map_err(|cause| AttachError::new("inject", cause))
    }
}
