//! Programs beside a probe's own: what keeps a function's arguments at its entry for its return, and what brings memory of user
//! space in before it is read.

use std::os::fd::{AsFd, AsRawFd};

use super::{AttachPoint, Cause, Link, Request, Session};
use crate::{
    code::{
        asm::{Function, KEPT, LD_IMM64, TOUCHED},
        lower::{entry_args, prefault},
    },
    plan::{probe::ProbePlan, source::ProgramContext},
    sys::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// Calls that can be under way at once; behind that the oldest are forgotten.
const CALLS: u32 = 8192;

/// What stands beside the program of a probe, and goes with it.
#[derive(Debug, Default)]
pub(super) struct Companions {
    // The links first: they go before what they refer to.
    links: Vec<Link>,
    keep: Option<(Prog, Map)>,
    touch: Option<(Prog, Map)>,
}

impl Companions {
    /// Loads what a request's program wants beside it.
    pub(super) fn load(request: &Request<'_>) -> Result<Self, Cause> {
        let ProgramContext::Probe(plan) = request.hook else { return Ok(Self::default()) };
        Ok(Self { links: Vec::new(), keep: keeper(plan, request.via)?, touch: toucher(plan, request)? })
    }

    /// The table of what was kept.
    pub(super) fn kept(&self) -> Option<&Map> {
        self.keep.as_ref().map(|(_, map)| map)
    }

    /// Hangs up what has to be there before the probe's own program: an entry that was not seen has nothing for its return.
    pub(super) fn attach_before(&mut self, session: &mut Session, via: &AttachPoint) -> Result<(), Cause> {
        if let (Some((program, _)), Some(entry)) = (&self.keep, via.entry()) {
            self.links.push(session.hook(program, &entry)?);
        }
        Ok(())
    }

    /// Hangs up what has to be asked before it: of the programs at an instruction of a file the youngest is run first.
    pub(super) fn attach_shared_program(&mut self, session: &mut Session, via: &AttachPoint) {
        let Some((program, _)) = &self.touch else { return };
        match session.hook(program, via) {
            Ok(link) => self.links.push(link),
            Err(error) => tracing::debug!("pages are not waited for: {error}"),
        }
    }
}

impl Companions {
    /// The same where the probe is a file's: its link is made with the probe's own.
    pub(super) fn behind(&self) -> Option<&Prog> {
        self.touch.as_ref().map(|(program, _)| program)
    }

    /// Takes such a link.
    pub(super) fn take(&mut self, link: Link) {
        self.links.push(link);
    }
}

fn keeper(plan: &ProbePlan, via: &AttachPoint) -> Result<Option<(Prog, Map)>, Cause> {
    let (Some(function), Some(entry)) = (entry_args::keep(plan).map_err(Cause::Lower)?, via.entry()) else {
        return Ok(None);
    };
    let map = Map::create(&MapSpec {
        kind: MapKind::LruHash,
        key_size: 8,
        value_size: 8 * plan.kept.len() as u32,
        max_entries: CALLS,
        flags: 0,
        inner: None,
        name: "tracer_kept",
    })
    .map_err(|errno| Cause::Map("hash", errno))?;
    let kind = entry.kind();
    let program = Prog::load_for(kind, entry.purpose(), &bytes(&function, KEPT, &map), entry_args::PROGRAM)
        .map_err(|error| Cause::Load(kind, error))?;
    Ok(Some((program, map)))
}

/// Where the kernel does not take it, pages that are not in memory are not waited for.
fn toucher(plan: &ProbePlan, request: &Request<'_>) -> Result<Option<(Prog, Map)>, Cause> {
    let Some(function) = prefault::touch(plan).map_err(Cause::Lower)? else { return Ok(None) };
    let map = Map::create(&MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: prefault::ROOM as u32,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "tracer_touched",
    })
    .map_err(|errno| Cause::Map("array", errno))?;
    let insns = bytes(&function, TOUCHED, &map);
    match Prog::load_sleepable(request.via.kind(), request.purpose(), &insns, prefault::PROGRAM) {
        Ok(program) => Ok(Some((program, map))),
        Err(error) => {
            tracing::debug!("pages are not waited for: {error}: {}", error.log);
            Ok(None)
        }
    }
}

/// A function's instructions, `name` replaced by a map.
fn bytes(function: &Function, name: i32, map: &Map) -> Vec<u8> {
    let mut insns = function.insns.clone();
    for insn in insns.iter_mut().filter(|insn| insn.op == LD_IMM64 && insn.imm == name) {
        insn.imm = map.as_fd().as_raw_fd();
    }
    insns.iter().flat_map(|insn| insn.encode()).collect()
}
