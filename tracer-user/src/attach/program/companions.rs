//! Companion programs of a probe. One stores a function's arguments at its entry for its return. Another faults in
//! user memory before the probe reads it.

use std::os::fd::AsFd;

use crate::{
    attach::{AttachPoint, Cause, Request, hooks, link::Link, maps, program::load},
    code::{
        asm::Function,
        lower::{entry_args, prefault},
    },
    plan::{probe::ProbePlan, source::ProgramContext},
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// Calls in progress whose arguments are stored; beyond this number the oldest are evicted.
const CALLS: u32 = 8192;

/// The companions of a probe's program, with its lifetime.
#[derive(Debug, Default)]
pub(crate) struct Companions {
    // The links come first, so that they close before the programs they refer to.
    links: Vec<Link>,
    entry_args: Option<(Prog, Map)>,
    prefault: Option<(Prog, Map)>,
}

impl Companions {
    pub(crate) fn load(request: &Request<'_>) -> Result<Self, Cause> {
        let ProgramContext::Probe(plan) = request.context else { return Ok(Self::default()) };
        Ok(Self {
            links: Vec::new(),
            entry_args: entry_args_program(plan, request.point)?,
            prefault: prefault_program(plan, request)?,
        })
    }

    /// The map of stored arguments.
    pub(crate) fn entry_args(&self) -> Option<&Map> {
        self.entry_args.as_ref().map(|(_, map)| map)
    }

    /// Attaches the entry program before the probe's own program, because a return finds no arguments if its entry
    /// was not seen.
    pub(crate) fn attach_before(&mut self, point: &AttachPoint) -> Result<(), Cause> {
        if let (Some((program, _)), Some(entry)) = (&self.entry_args, point.entry()) {
            self.links.push(hooks::attach(program, &entry, None)?);
        }
        Ok(())
    }

    /// The prefault program of a probe at a file; its link is made together with the probe's own.
    pub(crate) fn prefault(&self) -> Option<&Prog> {
        self.prefault.as_ref().map(|(program, _)| program)
    }

    /// Adds the link of the prefault program, made after the probe's own. At an instruction of a file, the kernel runs
    /// the program attached last first. Without it, the probe does not wait for pages.
    pub(crate) fn add_prefault(&mut self, link: impl FnOnce(&Prog) -> Result<Link, Cause>) {
        match self.prefault().map(link) {
            Some(Ok(link)) => self.links.push(link),
            Some(Err(error)) => tracing::debug!("no prefault program: {error}"),
            None => {}
        }
    }
}

fn entry_args_program(plan: &ProbePlan, point: &AttachPoint) -> Result<Option<(Prog, Map)>, Cause> {
    let (Some(mut function), Some(entry)) = (entry_args::program(plan), point.entry()) else {
        return Ok(None);
    };
    let spec = maps::spec(MapKind::LruHash, 8 * plan.entry_args.len(), CALLS, "tracer_args");
    let map = maps::create(&MapSpec { key_size: 8, ..spec })?;
    bind(&mut function, &map)?;
    let program = load::load(entry.kind(), entry.purpose(), &function.insns, entry_args::PROGRAM)?;
    Ok(Some((program, map)))
}

/// Returns `None` if the kernel refuses the program. The probe then does not wait for pages that are not in memory.
fn prefault_program(plan: &ProbePlan, request: &Request<'_>) -> Result<Option<(Prog, Map)>, Cause> {
    let Some(mut function) = prefault::program(plan) else { return Ok(None) };
    let map = maps::array(prefault::TEXT_SIZE, 1, "tracer_text")?;
    bind(&mut function, &map)?;
    match Prog::load_sleepable(request.point.kind(), request.purpose(), &function.bytes(), prefault::PROGRAM)
    {
        Ok(program) => Ok(Some((program, map))),
        Err(error) => {
            tracing::debug!("no prefault program: {error}: {}", error.log);
            Ok(None)
        }
    }
}

/// Replaces all references of a function to maps, which are to this one.
fn bind(function: &mut Function, map: &Map) -> Result<(), Cause> {
    load::bind(std::slice::from_mut(function), |_| Some(map.as_fd()))
}
