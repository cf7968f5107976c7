//! Relays: programs that hand an event's records to what follows the event (`code::lower::relay`), behind a gate each as the
//! programs of dynamic events are, so that what follows is exchanged by one word.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use tracer_abi::SCRATCH_SIZE;

use super::{
    AttachError, AttachPoint, Block, Cause, Link, Session, Writer, inject, swap_point::SwapPoint, unlink,
};
use crate::{
    code::lower::relay::{self, AREA_SIZE, ROWS},
    event::Format,
    plan::source::ProgramContext,
    sys::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// A relay on its hook.
#[derive(Debug)]
pub struct Relay {
    via: AttachPoint,
    /// What it hangs on its hook by; nothing where it has none.
    attached: Option<RelayProgram>,
    program: Prog,
}

#[derive(Debug)]
struct RelayProgram {
    // The link first: it goes before what it refers to.
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

/// What a relay is made for.
#[derive(Clone, Copy, Debug)]
pub struct Relayed<'a> {
    /// The event.
    pub format: &'a Format,
    /// How its values are had: from another event's record where the relay is a part.
    pub hook: &'a ProgramContext,
    /// Programs at its hook are preempted by others of their kind.
    pub nests: bool,
    /// It is a part of a program that has records of another event.
    pub is_part: bool,
    /// A process whose hits are not handed on.
    pub but_process: Option<u32>,
    /// Records of user space are run through it.
    pub is_injected: bool,
}

/// A relay with what it hands records to.
///
/// # Errors
/// When the hook cannot give the record, or the kernel refuses a map.
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
    let request = relay::Request {
        format,
        hook,
        is_part,
        is_injected,
        nests,
        but_process,
        area: area.as_fd().as_raw_fd(),
        scratch: scratch.as_fd().as_raw_fd(),
    };
    let functions =
        relay::relay(&request, &names(parts).each()).map_err(|error| failed(Cause::Lower(error)))?;
    Ok(Block::joined(&functions, parts, vec![Arc::new(area), Arc::new(scratch)]))
}

/// Names for parts.
pub(super) fn names(parts: &[Block]) -> Names {
    Names((0..parts.len()).map(|number| format!("part {number}")).collect())
}

/// Names that are owned.
pub(super) struct Names(Vec<String>);

impl Names {
    pub(super) fn each(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl Session {
    /// Hangs a relay on a hook.
    ///
    /// # Errors
    /// When a program does not pass the verifier or the hook is refused.
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
        let jump = SwapPoint::to(&program, via.kind(), via.purpose(), "tracer_relay", &[]).map_err(failed)?;
        let link = self.hook(jump.gate(), via).map_err(failed)?;
        let attached = Some(RelayProgram { link, jump });
        Ok(Relay { via: via.clone(), attached, program })
    }

    /// Gives a relay other parts: every hit is seen by the old or by the new ones, and once.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one goes on then.
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

    /// Runs a record of user space through a relay that hangs nowhere.
    ///
    /// # Errors
    /// What the kernel says.
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
