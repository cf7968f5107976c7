//! Dynamic events on their hooks, each with its own gate.
//!
//! Every probe has a [`SwapPoint`]. Its gate first counts every hit, also of threads that are not traced, as the
//! kernel's probe profiles do.

use std::os::fd::{AsFd, AsRawFd};

use super::swap_point::SwapPoint;
use crate::{
    attach::{
        AttachError, AttachPoint, Cause, FilePlace, Request, Session,
        close::unlink,
        hooks::uprobe::{self, Hooks, Job, Planned},
        link::Link,
        program::companions::Companions,
    },
    code::asm::{Assembler, Atomic, Cond, Helper, Reg, Width},
    event::Slot,
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// A dynamic event with its gate. It stays attached while this lives.
#[derive(Debug)]
pub struct Gated {
    /// Row of the counters.
    pub slot: Slot,
    via: AttachPoint,
    // The link comes first, so that it closes before what it refers to.
    link: Link,
    jump: SwapPoint,
    program: Prog,
    scratch: Option<Map>,
    beside: Companions,
    /// Hits of the hook by CPU, of all threads.
    hits: Map,
}

/// A dynamic event at a file, complete except for its links.
#[derive(Debug)]
pub struct PlannedGated {
    /// Row of the counters.
    pub slot: Slot,
    via: AttachPoint,
    jump: SwapPoint,
    program: Prog,
    scratch: Option<Map>,
    beside: Companions,
    hits: Map,
}

impl Gated {
    /// Hits of the hook since it was attached, including threads that are not traced.
    pub fn hits(&self) -> u64 {
        let counts = self.hits.lookup_per_cpu(&[0; 4]).ok().flatten().unwrap_or_default();
        counts
            .iter()
            .filter_map(|count| count.first_chunk())
            .copied()
            .map(u64::from_ne_bytes)
            .fold(0, u64::wrapping_add)
    }

    /// Hits for which the kernel ran no program: another program of the same sort was running on that CPU, or more
    /// calls were in progress than the kernel tracks to their returns.
    pub fn missed(&self) -> u64 {
        self.jump.gate().info().map_or(0, |info| info.misses).saturating_add(self.link.missed())
    }

    /// The hook.
    pub fn via(&self) -> &AttachPoint {
        &self.via
    }
}

impl Session {
    /// Attaches a dynamic event to its hook.
    ///
    /// # Errors
    /// When a program does not pass the verifier or the kernel refuses the hook.
    pub fn attach_gated(&mut self, request: &Request<'_>) -> Result<Gated, AttachError> {
        let planned = self.plan(request)?;
        let slot = planned.slot;
        let attached = self.attach_planned(planned);
        if attached.is_err() {
            self.gate.give_back(slot);
        }
        attached.map_err(|cause| AttachError::new(request.format.full_name(), cause))
    }

    /// Creates an event completely except for its links.
    fn plan(&mut self, request: &Request<'_>) -> Result<PlannedGated, AttachError> {
        let slot = self.take_slot()?;
        if request.extras.soft_slot.is_none() {
            self.shared.set_soft(slot, request.extras.begins_off);
        }
        let planned = self.planned(request, slot);
        if planned.is_err() {
            self.gate.give_back(slot);
        }
        planned.map_err(|cause| match cause {
            Failed::Attach(error) => error,
            Failed::Cause(cause) => AttachError::new(request.format.full_name(), cause),
        })
    }

    fn planned(&mut self, request: &Request<'_>, slot: Slot) -> Result<PlannedGated, Failed> {
        let beside = Companions::load(request)?;
        let (program, scratch) = self.program(request, slot, None, &beside)?;
        let hits = Map::create(&MapSpec {
            kind: MapKind::PerCpuArray,
            key_size: 4,
            value_size: 8,
            max_entries: 1,
            flags: 0,
            inner: None,
            name: "tracer_hits",
        })
        .map_err(|errno| Cause::Map("array", errno))?;
        let kind = request.via.kind();
        let jump = SwapPoint::to(&program, kind, request.purpose(), "tracer_probe", |asm| count(asm, &hits))?;
        Ok(PlannedGated { slot, via: request.via.clone(), jump, program, scratch, beside, hits })
    }

    fn attach_planned(&mut self, planned: PlannedGated) -> Result<Gated, Cause> {
        let PlannedGated { slot, via, jump, program, scratch, mut beside, hits } = planned;
        beside.attach_before(&via)?;
        let link = self.hook(jump.gate(), &via)?;
        beside.attach_prefault(&via);
        Ok(Gated { slot, via, link, jump, program, scratch, beside, hits })
    }

    /// Plans a dynamic event at a file: everything except its links.
    ///
    /// # Errors
    /// As [`Session::attach_gated`], and for an event that is not at a file.
    pub fn plan_gated(&mut self, request: &Request<'_>) -> Result<(PlannedGated, Job), AttachError> {
        let planned = self.plan(request)?;
        let links = match &planned.via {
            AttachPoint::Uprobe(place) => links(&planned, place, false),
            AttachPoint::Uretprobe(place) => links(&planned, place, true),
            _ => Err(Cause::Misplaced("a link of a file is for files")),
        };
        match links {
            Ok(links) => Ok((planned, Job::new(links))),
            Err(cause) => {
                self.gate.give_back(planned.slot);
                Err(AttachError::new(request.format.full_name(), cause))
            }
        }
    }

    /// Completes an event of a file with its links.
    ///
    /// # Errors
    /// When the first link could not be made.
    pub fn finish_gated(&mut self, planned: PlannedGated, made: Hooks) -> Result<Gated, Cause> {
        let PlannedGated { slot, via, jump, program, scratch, mut beside, hits } = planned;
        let link = made.and_then(|made| {
            let mut made = made.into_iter();
            let first = made.next().ok_or(Cause::Misplaced("no link"))?;
            let link = uprobe::finish(jump.gate(), first)?;
            for hook in made {
                let linked = beside.behind().map(|program| uprobe::finish(program, hook));
                match linked {
                    Some(Ok(link)) => beside.take(link),
                    Some(Err(error)) => tracing::debug!("pages are not waited for: {error}"),
                    None => {}
                }
            }
            Ok(link)
        });
        match link {
            Ok(link) => Ok(Gated { slot, via, link, jump, program, scratch, beside, hits }),
            Err(cause) => {
                // A link that still exists finds an empty slot.
                jump.clear();
                self.gate.give_back(slot);
                Err(cause)
            }
        }
    }

    /// Replaces the program of a dynamic event: every hit runs either the old or the new one, exactly once.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one stays.
    pub fn change_gated(&mut self, gated: &mut Gated, request: &Request<'_>) -> Result<(), AttachError> {
        let (program, scratch) = self.program(request, gated.slot, gated.scratch.as_ref(), &gated.beside)?;
        gated.jump.exchange(&program).map_err(|cause| AttachError::new(request.format.full_name(), cause))?;
        gated.program = program;
        gated.scratch = scratch.or(gated.scratch.take());
        Ok(())
    }

    /// Detaches a dynamic event: hits stop at once. A background thread closes its perf event, if it has one
    /// ([`closed_since`](crate::attach::closed_since)), and then frees its slot.
    pub fn detach_gated(&mut self, gated: Gated) {
        gated.jump.clear();
        let slot = self.gate.held(gated.slot);
        if gated.link.has_perf_event() {
            unlink::close_later((gated, slot));
        }
    }
}

/// The links of an event at a file. The prefault program's link comes after the probe's own, because the kernel runs
/// the program attached last first.
fn links(planned: &PlannedGated, place: &FilePlace, exit: bool) -> Result<Vec<Planned>, Cause> {
    let mut links = vec![Planned::new(planned.jump.gate(), place, exit, 0)?];
    links.extend(planned.beside.behind().and_then(|program| Planned::new(program, place, exit, 0).ok()));
    Ok(links)
}

/// An error with or without the event's name.
enum Failed {
    Attach(AttachError),
    Cause(Cause),
}

impl From<AttachError> for Failed {
    fn from(error: AttachError) -> Self {
        Self::Attach(error)
    }
}

impl From<Cause> for Failed {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}

/// Emits how a probe's gate counts a hit.
fn count(asm: &mut Assembler, hits: &Map) {
    let uncounted = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.store(Width::W, Reg::R10, -4, 0);
    asm.map_fd(Reg::R1, hits.as_fd().as_raw_fd());
    asm.address(Reg::R2, Reg::R10, -4);
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Cond::Eq, Reg::R0, 0, uncounted);
    asm.mov(Reg::R1, 1);
    asm.atomic(Width::D, Atomic::AddOnly, Reg::R0, 0, Reg::R1);
    asm.bind(uncounted);
    asm.mov(Reg::R1, Reg::R6);
}
