//! Synthetic events, which have no hook of their own. Programs of other events emit them in the kernel, and user space
//! injects them. The same generated functions process the record in both cases.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use tracer_abi::INJECT_SIZE;

use super::relay;
use crate::{
    attach::{
        AttachError, AttachPoint, Cause, Request, Session, Writer,
        program::{companions::Companions, inject},
    },
    code::{
        asm::{self, Function, Insn, MapRef},
        join, lower,
    },
    event::{Slot, synthetic::Event},
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// A self-contained part of a program (`code::join`), and the maps that it refers to by descriptor. The block must live
/// until the program is loaded.
#[derive(Debug)]
pub struct Block {
    insns: Vec<Insn>,
    /// Owned so that their descriptors stay open.
    maps: Vec<Arc<Map>>,
}

impl Block {
    /// A part and the maps it refers to.
    pub(in crate::attach) fn new(insns: Vec<Insn>, maps: Vec<Arc<Map>>) -> Self {
        Self { insns, maps }
    }

    /// Joins functions, the first of which is the entry, with the parts that they call by the names `part 0`, `part 1`
    /// and so on.
    pub(in crate::attach) fn joined(functions: &[Function], parts: &[Self], mut maps: Vec<Arc<Map>>) -> Self {
        let names = relay::names(parts);
        let joined: Vec<join::Part<'_>> =
            names.each().into_iter().zip(parts).map(|(name, part)| (name, part.insns())).collect();
        let insns = join::join(functions, &joined);
        maps.extend(parts.iter().flat_map(|part| part.maps.iter().cloned()));
        Self { insns, maps }
    }

    /// The maps it refers to.
    pub(in crate::attach) fn into_maps(self) -> Vec<Arc<Map>> {
        self.maps
    }

    /// Its instructions; the first is the entry.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// The encoded instructions for the kernel.
    pub(in crate::attach) fn bytes(&self) -> Vec<u8> {
        self.insns.iter().flat_map(|insn| insn.encode()).collect()
    }
}

/// The code that one program calls to emit the synthetic event with this id. `parts` process the record in the
/// instances where the event is on, from [`Session::block`]. [`lower::emission`] defines the arguments. Returns `None`
/// if the event's record is too long.
///
/// # Errors
/// When the kernel refuses a map.
pub fn emission(event: &Event, id: u16, parts: &[Block]) -> Result<Option<Block>, AttachError> {
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
    let names = relay::names(parts);
    let Some(mut function) = lower::emission(event, id, &names.each()) else { return Ok(None) };
    asm::bind(&mut function.insns, |map| (map == MapRef::Emission).then_some(area.as_fd().as_raw_fd()))
        .map_err(|map| AttachError::new(&event.name, Cause::NoHook(format!("there is no map {map}"))))?;
    Ok(Some(Block::joined(&[function], parts, vec![Arc::new(area)])))
}

/// An event without a hook that is on in a session: a synthetic event, or a probe on one.
#[derive(Debug)]
pub struct Emitted {
    /// Row of the counters.
    pub slot: Slot,
    program: Prog,
    scratch: Option<Map>,
}

impl Session {
    /// Turns a synthetic event on; the request is [`AttachPoint::Inject`].
    ///
    /// # Errors
    /// When its program does not pass the verifier.
    pub fn attach_emitted(&mut self, request: &Request<'_>) -> Result<Emitted, AttachError> {
        debug_assert_eq!(*request.via, AttachPoint::Inject);
        let slot = self.take_slot()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        match self.program(request, slot, None, &Companions::default()) {
            Ok((program, scratch)) => Ok(Emitted { slot, program, scratch }),
            Err(error) => {
                self.gate.give_back(slot);
                Err(error)
            }
        }
    }

    /// Replaces the program that processes a synthetic event's records.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one stays.
    pub fn change_emitted(
        &mut self,
        emitted: &mut Emitted,
        request: &Request<'_>,
    ) -> Result<(), AttachError> {
        let (program, scratch) =
            self.program(request, emitted.slot, emitted.scratch.as_ref(), &Companions::default())?;
        emitted.program = program;
        emitted.scratch = scratch.or(emitted.scratch.take());
        Ok(())
    }

    /// The code that processes the record for this session in a program that emits the event; the request is
    /// [`AttachPoint::Emitted`].
    ///
    /// # Errors
    /// When no code can be generated, or the kernel refuses a map.
    pub fn block(&self, emitted: &Emitted, request: &Request<'_>) -> Result<Block, AttachError> {
        debug_assert_eq!(*request.via, AttachPoint::Emitted);
        let (image, scratch) = self.image(request, emitted.slot, None, &Companions::default())?;
        Ok(Block::new(image.insns, image.constants.into_iter().chain(scratch).map(Arc::new).collect()))
    }

    /// Turns a synthetic event off.
    pub fn detach_emitted(&mut self, emitted: Emitted) {
        self.gate.give_back(emitted.slot);
        drop(emitted);
    }

    /// Injects a record into a synthetic event. Returns what its triggers ask for ([`tracer_abi::asked`]).
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn emit(&self, emitted: &Emitted, record: &[u8], writer: &Writer) -> Result<u64, AttachError> {
        inject::run(&emitted.program, record, writer).map_err(|cause| AttachError::new("inject", cause))
    }
}
