//! The choice of the hook for an event.
//!
//! A raw tracepoint is cheaper than a perf tracepoint, because the kernel makes no record for it. It is used if a plan
//! for the event exists. A plan of the table must have produced the kernel's own records on the running kernel; a
//! derived plan follows from the kernel's instructions. Otherwise the perf tracepoint is used.

use std::{collections::HashMap, sync::Arc};

use super::{
    facts::Facts,
    handlers::NoDerivedPlan,
    verify::{self, TrialError},
};
use crate::{
    attach::{AttachPoint, Session},
    event::{Format, FormatError, dynamic::Target, irqs_off},
    kernel::{self, syscalls::Registers},
    lang::define::Probe,
    plan::{
        raw::{self, RawPlan, Refusal},
        source::{Other, ProgramContext, Source},
    },
    ring::Drain,
};

/// Up to this many events are attached one by one, each with its own program on the cheapest hook. Larger sets share
/// programs where possible.
pub const BULK_THRESHOLD: usize = 32;

/// A hook, and the sources of values there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlan {
    /// The sources of values.
    pub context: ProgramContext,
    /// Where the program is attached.
    pub point: AttachPoint,
    /// Whether hits of a probe occur only with interrupts off.
    pub irqs_off: bool,
    /// Why the raw tracepoint is not used; empty if it is used.
    pub reason: String,
}

impl AttachPlan {
    /// A plan that needs no reason, for hits that may occur with interrupts on.
    pub fn new(context: ProgramContext, point: AttachPoint) -> Self {
        Self { context, point, irqs_off: false, reason: String::new() }
    }

    /// The hook's name.
    pub fn name(&self) -> &'static str {
        self.point.name()
    }

    /// The perf tracepoint, which works for every event. It lacks the data of system calls.
    pub fn tracepoint(format: &Format, reason: impl Into<String>) -> Self {
        let point = AttachPoint::tracepoint(format);
        let context =
            if has_user_data(format) { ProgramContext::CallTracepoint } else { ProgramContext::Tracepoint };
        Self { reason: reason.into(), ..Self::new(context, point) }
    }
}

/// Why an event does not use a raw tracepoint.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum NoRawHook {
    /// The options allow perf tracepoints only.
    #[error("asked for")]
    TracepointsOnly,
    /// The table of plans does not list the event, and none is derived from its handler.
    #[error("there is no raw tracepoint plan for it: {0}")]
    NotDerived(NoDerivedPlan),
    #[error("the kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    #[error(transparent)]
    Plan(Arc<Refusal>),
    /// The event that represents the plan was tried, and the plan failed.
    #[error("{event}: {cause}")]
    Trial { event: String, cause: Arc<StandInError> },
    /// The limit of trials at one start was reached ([`verify::MOST`]).
    #[error("too many plans to check at one start")]
    TooMany,
}

/// Why the event that represents a plan could not prove it.
#[derive(Debug, thiserror::Error)]
pub(super) enum StandInError {
    #[error("there is no such event")]
    NoEvent,
    #[error(transparent)]
    Read(#[from] kernel::Error),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Plan(#[from] NoRawHook),
    #[error(transparent)]
    Trial(TrialError),
}

/// Results of trials of plans, by system and name of the event that represents the plan.
pub(super) type Verdicts = HashMap<(String, String), Result<(), Arc<StandInError>>>;

/// Chooses the hooks of events. Plans without a result yet are tried all at once, in a session that does not trace yet.
pub(super) fn choose(
    formats: &[&Format],
    tracepoints_only: bool,
    facts: &Facts,
    trial: &mut Trial<'_>,
    verdicts: &mut Verdicts,
) -> Vec<AttachPlan> {
    let planned: Vec<Result<(AttachPlan, Option<RawPlan>), NoRawHook>> = formats
        .iter()
        .map(|format| if tracepoints_only { Err(NoRawHook::TracepointsOnly) } else { plan(format, facts) })
        .collect();
    let mut untried = Vec::new();
    for (format, planned) in formats.iter().zip(&planned) {
        let Ok((_, Some(plan))) = planned else { continue };
        let known = untried.iter().any(|(name, _): &((String, String), _)| *name == plan.stand_in);
        if known || verdicts.contains_key(&plan.stand_in) || untried.len() == verify::MOST {
            continue;
        }
        let (system, name) = &plan.stand_in;
        let itself = (system, name) == (&format.system, &format.name);
        let stand_in =
            if itself { Ok(((*format).clone(), plan.clone())) } else { stand_in(system, name, facts) };
        untried.push((plan.stand_in.clone(), stand_in));
    }
    let on_trial: Vec<_> = untried.iter().filter_map(|(_, plan)| plan.as_ref().ok()).cloned().collect();
    let mut outcomes = verify::hold(&on_trial, trial.own_thread, trial.session, trial.drain).into_iter();
    verdicts.extend(untried.into_iter().map(|(name, plan)| {
        let verdict = plan.and_then(|_| outcomes.next().unwrap_or(Ok(())).map_err(StandInError::Trial));
        let verdict = verdict.map_err(Arc::new);
        tracing::debug!(?name, ?verdict, "raw tracepoint plan");
        (name, verdict)
    }));
    formats
        .iter()
        .zip(planned)
        .map(|(format, planned)| {
            let usable = planned.and_then(|(plan, listed)| {
                let Some(listed) = listed else { return Ok(plan) };
                match verdicts.get(&listed.stand_in) {
                    Some(Ok(())) => Ok(plan),
                    Some(Err(cause)) => {
                        let (system, name) = &listed.stand_in;
                        Err(NoRawHook::Trial { event: format!("{system}:{name}"), cause: cause.clone() })
                    }
                    None => Err(NoRawHook::TooMany),
                }
            });
            usable.unwrap_or_else(|why| AttachPlan::tracepoint(format, why.to_string()))
        })
        .collect()
}

/// The session in which plans are tried.
#[derive(Debug)]
pub struct Trial<'a> {
    /// A session that traces nothing yet, with two free counters for each event.
    pub session: &'a mut Session,
    /// Its rings.
    pub drain: &'a mut Drain,
    /// The calling thread in the initial pid namespace.
    pub own_thread: u32,
}

/// Whether an event's records have data of user memory, as those of system calls have from 7.2 on.
pub(super) fn has_user_data(format: &Format) -> bool {
    format.system == "syscalls" && format.is_variable()
}

/// Changes the plan of a system call's event so that its program serves all calls of the same shape.
pub fn for_any_call(chosen: &mut AttachPlan, registers: &Registers) {
    let entering = matches!(chosen.point, AttachPoint::SysEnter(_));
    if let (true, ProgramContext::RawTracepoint(fields)) =
        (entering || matches!(chosen.point, AttachPoint::SysExit(_)), &mut chosen.context)
    {
        raw::for_any_call(fields, entering, registers);
    }
}

/// The plan of an event, and the plan of the table that it comes from: that one must be tried. A plan that the kernel's
/// handler shows needs no trial.
fn plan(format: &Format, facts: &Facts) -> Result<(AttachPlan, Option<RawPlan>), NoRawHook> {
    let syscall = format.system == "syscalls";
    if !syscall && !raw::listed().any(|(system, name)| system == format.system && name == format.name) {
        let fields = facts.derived_plan(format).map_err(NoRawHook::NotDerived)?;
        let point = AttachPoint::RawTracepoint(format.name.clone());
        return Ok((AttachPlan::new(ProgramContext::RawTracepoint(fields), point), None));
    }
    let number = if syscall { facts.syscall_number(&format.name) } else { None };
    let listed = listed_plan(format, number, facts)?;
    let point = match number {
        Some(number) if format.name.starts_with("sys_enter_") => AttachPoint::SysEnter(number),
        Some(number) => AttachPoint::SysExit(number),
        None => AttachPoint::RawTracepoint(listed.tracepoint.clone()),
    };
    Ok((AttachPlan::new(ProgramContext::RawTracepoint(listed.fields.clone()), point), Some(listed)))
}

/// The plan of the table for an event.
fn listed_plan(format: &Format, number: Option<u32>, facts: &Facts) -> Result<RawPlan, NoRawHook> {
    let btf = facts.btf().ok_or(NoRawHook::NoBtf)?;
    raw::plan(format, btf, number).map_err(|refusal| NoRawHook::Plan(Arc::new(refusal)))
}

/// Format and plan of the event that represents the plan of another event.
fn stand_in(system: &str, name: &str, facts: &Facts) -> Result<(Format, RawPlan), StandInError> {
    let text = facts.tracefs.format(system, name)?.ok_or(StandInError::NoEvent)?;
    let format = Format::parse(system, &text)?;
    let plan = listed_plan(&format, None, facts)?;
    Ok((format, plan))
}

/// The other thread of an event that tracefs's pid filters also check: the thread that is switched in or woken
/// (`event_filter_pid_sched_switch_probe_pre()` and its neighbours, kernel/trace/trace_events.c).
pub fn other(format: &Format, context: &ProgramContext) -> Option<Other> {
    let name = match (format.system.as_str(), format.name.as_str()) {
        ("sched", "sched_switch") => "next_pid",
        ("sched", "sched_wakeup" | "sched_wakeup_new" | "sched_waking") => "pid",
        _ => return None,
    };
    let offset = format.field(name)?.offset;
    match context {
        ProgramContext::Tracepoint | ProgramContext::Inject => Some(Other::InRecord(offset as u32)),
        ProgramContext::CallTracepoint | ProgramContext::Probe(_) | ProgramContext::UserRecord(_) => None,
        ProgramContext::RawTracepoint(fields) => {
            let field = fields.iter().find(|field| usize::from(field.offset) == offset)?;
            let Source::Memory { arg, path } = &field.source else { return None };
            let [offset] = path[..] else { return None };
            Some(Other::InTask { arg: *arg, offset })
        }
    }
}

/// Whether a dynamic event always happens with interrupts off.
pub fn probe_irqs_off(probe: &Probe) -> bool {
    matches!(&probe.event.target, Target::Tracepoint { name } if irqs_off::holds_at_tracepoint(name))
}

/// Attaches the entry of a lone system call directly, without a dispatcher.
pub fn alone(chosen: &mut [AttachPlan]) {
    let mut entries = chosen.iter_mut().filter(|one| matches!(one.point, AttachPoint::SysEnter(_)));
    if let (Some(only), None) = (entries.next(), entries.next())
        && let AttachPoint::SysEnter(number) = only.point
    {
        only.point = AttachPoint::SysEnterAlone(number);
    }
}
