//! Relays: programs that pass an event's records to dependents (`code::lower::relay`). Each is attached through a swap
//! point, as the programs of dynamic events are, so that its dependents are exchanged by one word.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use tracer_abi::SCRATCH_SIZE;

use super::swap_point::SwapPoint;
use crate::{
    attach::{
        AttachError, AttachPoint, Block, Cause, Session, Writer, close::unlink, link::Link, program::inject,
    },
    code::{
        asm::{self, MapRef},
        lower::relay::{self, AREA_SIZE, ROWS},
    },
    event::Format,
    plan::source::ProgramContext,
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// An attached relay.
#[derive(Debug)]
pub struct Relay {
    via: AttachPoint,
    /// The program's attachment; `None` if the relay has no hook.
    attached: Option<RelayProgram>,
    program: Prog,
}

#[derive(Debug)]
struct RelayProgram {
    // The link comes first, so that it closes before what it refers to.
    link: Link,
    jump: SwapPoint,
}

impl Drop for Relay {
    fn drop(&mut self) {
        let Some(attached) = self.attached.take() else { return };
        attached.jump.clear();
        if attached.link.has_perf_event() {
            unlink::close_later(attached);
        }
    }
}

/// Parameters of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Relayed<'a> {
    /// The event.
    pub format: &'a Format,
    /// How its values are read: from another event's record if the relay is a part.
    pub hook: &'a ProgramContext,
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
    let Relayed { format, hook, nests, is_part, but_process, is_injected } = *relayed;
    let failed = |cause| AttachError::new(format.full_name(), cause);
    let make = |value_size: usize| {
        Map::create(&MapSpec {
            kind: MapKind::Array,
            key_size: 4,
            value_size: value_size as u32,
            max_entries: cpus * ROWS,
            flags: 0,
            inner: None,
            name: "tracer_relay",
        })
        .map_err(|errno| failed(Cause::Map("array", errno)))
    };
    let (area, scratch) = (make(AREA_SIZE)?, make(SCRATCH_SIZE)?);
    let request = relay::Request { format, hook, is_part, is_injected, nests, but_process };
    let mut functions =
        relay::relay(&request, &names(parts).each()).map_err(|error| failed(Cause::Lower(error)))?;
    for function in &mut functions {
        let bound = asm::bind(&mut function.insns, |map| match map {
            MapRef::RelayArea => Some(area.as_fd().as_raw_fd()),
            MapRef::RelayScratch => Some(scratch.as_fd().as_raw_fd()),
            _ => None,
        });
        bound.map_err(|map| failed(Cause::NoHook(format!("there is no map {map}"))))?;
    }
    Ok(Block::joined(&functions, parts, vec![Arc::new(area), Arc::new(scratch)]))
}

/// Names of the parts.
pub(in crate::attach) fn names(parts: &[Block]) -> Names {
    Names((0..parts.len()).map(|number| format!("part {number}")).collect())
}

/// Owned names, to be borrowed.
pub(in crate::attach) struct Names(Vec<String>);

impl Names {
    pub(in crate::attach) fn each(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl Session {
    /// Attaches a relay to a hook.
    ///
    /// # Errors
    /// When a program does not pass the verifier or the kernel refuses the hook.
    pub fn attach_relay(
        &mut self,
        format: &Format,
        hook: &ProgramContext,
        via: &AttachPoint,
        parts: &[Block],
    ) -> Result<Relay, AttachError> {
        let failed = |cause| AttachError::new(format.full_name(), cause);
        let program = self.relay(format, hook, via, parts)?;
        if *via == AttachPoint::Inject {
            return Ok(Relay { via: via.clone(), attached: None, program });
        }
        let jump =
            SwapPoint::to(&program, via.kind(), via.purpose(), "tracer_relay", |_| ()).map_err(failed)?;
        let link = self.hook(jump.gate(), via).map_err(failed)?;
        let attached = Some(RelayProgram { link, jump });
        Ok(Relay { via: via.clone(), attached, program })
    }

    /// Exchanges the parts of a relay: every hit runs either the old or the new ones, exactly once.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one stays.
    pub fn change_relay(
        &self,
        relay: &mut Relay,
        format: &Format,
        hook: &ProgramContext,
        parts: &[Block],
    ) -> Result<(), AttachError> {
        let program = self.relay(format, hook, &relay.via, parts)?;
        if let Some(RelayProgram { jump, .. }) = &relay.attached {
            jump.exchange(&program).map_err(|cause| AttachError::new(format.full_name(), cause))?;
        }
        relay.program = program;
        Ok(())
    }

    /// Runs a record of user space through a relay without a hook.
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn run_relay(&self, relay: &Relay, record: &[u8], writer: &Writer) -> Result<(), AttachError> {
        let done = inject::run(&relay.program, record, writer);
        done.map(drop).map_err(|cause| AttachError::new("a record of user space", cause))
    }

    fn relay(
        &self,
        format: &Format,
        hook: &ProgramContext,
        via: &AttachPoint,
        parts: &[Block],
    ) -> Result<Prog, AttachError> {
        let own = self.shared.excluded_tgid();
        let but_process = (own != 0 && *via != AttachPoint::Inject).then_some(own);
        let is_injected = *via == AttachPoint::Inject;
        let what = Relayed { format, hook, nests: via.nests(), is_part: false, but_process, is_injected };
        let block = relayed(&what, self.shared.cpus(), parts)?;
        let kind = via.kind();
        Prog::load_for(kind, via.purpose(), &block.bytes(), &format.name)
            .map_err(|error| AttachError::new(format.full_name(), Cause::Load(kind, error)))
    }
}
