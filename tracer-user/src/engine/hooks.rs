//! The choice of the hook for an event.
//!
//! A raw tracepoint is cheaper than a perf tracepoint, because the kernel makes no record for it. It is used if a plan
//! for the event exists. A plan of the table must have produced the kernel's own records on the running kernel; a derived
//! plan follows from the kernel's instructions. Otherwise the perf tracepoint is used.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use super::{
    facts::Facts,
    handlers::NoDerivedPlan,
    verify::{self, TrialError},
};
use crate::{
    attach::{AttachPoint, Session},
    event::{Format, FormatError, dynamic::Target},
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

    /// The perf tracepoint, which works for every event.
    pub fn tracepoint(format: &Format, reason: impl Into<String>) -> Self {
        let point = AttachPoint::Tracepoint(format.id);
        Self { reason: reason.into(), ..Self::new(ProgramContext::Tracepoint, point) }
    }
}

/// Why an event does not use a raw tracepoint.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoRawHook {
    /// The options allow perf tracepoints only.
    #[error("asked for")]
    TracepointsOnly,
    /// The table of plans does not list the event, and none is derived from its handler.
    #[error("there is no raw tracepoint plan for it: {0}")]
    NotDerived(NoDerivedPlan),
    /// The plan needs the kernel's types.
    #[error("the kernel shows no BTF")]
    NoBtf,
    /// The plan does not fit this kernel.
    #[error(transparent)]
    Plan(Arc<Refusal>),
    /// The event that represents the plan was tried, and the plan failed.
    #[error("{event}: {cause}")]
    Trial {
        /// `system:name`.
        event: String,
        /// The failure.
        cause: Arc<StandInError>,
    },
    /// The limit of trials at one start was reached ([`verify::MOST`]).
    #[error("too many plans to check at one start")]
    TooMany,
}

/// Why the event that represents a plan could not prove it.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    /// The kernel has no such event.
    #[error("there is no such event")]
    NoEvent,
    /// Its `format` file could not be read.
    #[error(transparent)]
    Read(kernel::Error),
    /// Its `format` file could not be parsed.
    #[error(transparent)]
    Format(FormatError),
    /// It has no plan on this kernel.
    #[error(transparent)]
    Plan(NoRawHook),
    /// The two programs did not agree.
    #[error(transparent)]
    Trial(TrialError),
}

/// A plan for a raw tracepoint.
enum Planned {
    /// A plan of the table, which is tried, and for a system call's event the call's number.
    Listed(RawPlan, Option<u32>),
    /// A plan that the kernel's handler shows.
    Derived(AttachPlan),
}

/// Results of trials of plans, by system and name of the event that represents the plan.
pub type Verdicts = HashMap<(String, String), Result<(), Arc<StandInError>>>;

/// Chooses the hooks of events. Plans without a result yet are tried all at once, in a session that does not trace yet.
pub fn choose(
    formats: &[&Format],
    tracepoints_only: bool,
    facts: &Facts,
    trial: &mut Trial<'_>,
    verdicts: &mut Verdicts,
) -> Vec<AttachPlan> {
    let planned: Vec<Result<Planned, NoRawHook>> = formats
        .iter()
        .map(|format| if tracepoints_only { Err(NoRawHook::TracepointsOnly) } else { plan(format, facts) })
        .collect();
    let mut names: Vec<(String, String)> = Vec::new();
    let mut plans: Vec<Result<(Format, RawPlan), StandInError>> = Vec::new();
    for (format, planned) in formats.iter().zip(&planned) {
        let Ok(Planned::Listed(plan, _)) = planned else { continue };
        let known = names.contains(&plan.stand_in) || verdicts.contains_key(&plan.stand_in);
        if known || names.len() == verify::MOST {
            continue;
        }
        let (system, name) = &plan.stand_in;
        let itself = (system, name) == (&format.system, &format.name);
        plans.push(if itself {
            Ok(((*format).clone(), plan.clone()))
        } else {
            stand_in(system, name, facts)
        });
        names.push(plan.stand_in.clone());
    }
    let on_trial: Vec<_> = plans.iter().filter_map(|plan| plan.as_ref().ok()).cloned().collect();
    let mut outcomes = if on_trial.is_empty() {
        Vec::new()
    } else {
        verify::hold(&on_trial, trial.own_thread, trial.session, trial.drain)
    }
    .into_iter();
    verdicts.extend(names.into_iter().zip(plans).map(|(name, plan)| {
        let verdict = plan.and_then(|_| outcomes.next().unwrap_or(Ok(())).map_err(StandInError::Trial));
        let verdict = verdict.map_err(Arc::new);
        tracing::debug!(?name, ?verdict, "raw tracepoint plan");
        (name, verdict)
    }));
    formats
        .iter()
        .zip(planned)
        .map(|(format, planned)| {
            let usable = planned.and_then(|planned| {
                let (plan, number) = match planned {
                    Planned::Listed(plan, number) => (plan, number),
                    Planned::Derived(plan) => return Ok(plan),
                };
                match verdicts.get(&plan.stand_in) {
                    Some(Ok(())) => Ok(raw_chosen(format, plan, number)),
                    Some(Err(cause)) => {
                        let (system, name) = &plan.stand_in;
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

fn raw_chosen(format: &Format, plan: RawPlan, number: Option<u32>) -> AttachPlan {
    let point = match (number, format.name.starts_with("sys_enter_")) {
        (Some(number), true) => AttachPoint::SysEnter(number),
        (Some(number), false) => AttachPoint::SysExit(number),
        (None, _) => AttachPoint::RawTracepoint(plan.tracepoint),
    };
    AttachPlan::new(ProgramContext::RawTracepoint(plan.fields), point)
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

/// The plan of an event, or the reason why there is none.
fn plan(format: &Format, facts: &Facts) -> Result<Planned, NoRawHook> {
    let syscall = format.system == "syscalls";
    if !syscall && !raw::listed().any(|(system, name)| system == format.system && name == format.name) {
        let fields = facts.derived_plan(format).map_err(NoRawHook::NotDerived)?;
        let point = AttachPoint::RawTracepoint(format.name.clone());
        return Ok(Planned::Derived(AttachPlan::new(ProgramContext::RawTracepoint(fields), point)));
    }
    let btf = facts.btf().ok_or(NoRawHook::NoBtf)?;
    let number = if syscall { facts.syscall_number(&format.name) } else { None };
    let plan = raw::plan(format, btf, number).map_err(|refusal| NoRawHook::Plan(Arc::new(refusal)))?;
    Ok(Planned::Listed(plan, number))
}

/// Format and plan of the event that represents the plan of another event.
fn stand_in(system: &str, name: &str, facts: &Facts) -> Result<(Format, RawPlan), StandInError> {
    let text = facts.tracefs.format(system, name).map_err(StandInError::Read)?;
    let format = Format::parse(system, &text.ok_or(StandInError::NoEvent)?).map_err(StandInError::Format)?;
    let btf = facts.btf().ok_or(StandInError::Plan(NoRawHook::NoBtf))?;
    let plan = raw::plan(&format, btf, None);
    let plan = plan.map_err(|refusal| StandInError::Plan(NoRawHook::Plan(Arc::new(refusal))))?;
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
    let offset = format.fields.iter().find(|field| field.name == name)?.offset;
    match context {
        ProgramContext::Tracepoint | ProgramContext::Inject => Some(Other::InRecord(offset as u32)),
        ProgramContext::Probe(_) | ProgramContext::UserRecord(_) => None,
        ProgramContext::RawTracepoint(fields) => {
            match &fields.iter().find(|field| usize::from(field.offset) == offset)?.source {
                Source::Memory { arg, path } => match path[..] {
                    [offset] => Some(Other::InTask { arg: *arg, offset }),
                    _ => None,
                },
                _ => None,
            }
        }
    }
}

/// Events that always happen with interrupts off. BPF cannot see this state. They are events of the scheduler under
/// the lock of a run queue or task (kernel/sched/core.c), events of timers and work queues under the lock of their
/// base or pool, soft interrupts that are raised, calls from other CPUs, and page faults on x86, whose entry disables
/// interrupts.
const LOCKED: &[(&str, &str)] = &[
    ("sched", "sched_switch"),
    ("sched", "sched_waking"),
    ("sched", "sched_wakeup"),
    ("sched", "sched_wakeup_new"),
    ("sched", "sched_migrate_task"),
    ("sched", "sched_stat_runtime"),
    ("timer", "timer_start"),
    ("timer", "timer_cancel"),
    ("timer", "hrtimer_start"),
    ("timer", "hrtimer_cancel"),
    ("workqueue", "workqueue_queue_work"),
    ("workqueue", "workqueue_activate_work"),
    ("irq", "softirq_raise"),
    ("csd", "csd_function_entry"),
    ("csd", "csd_function_exit"),
    #[cfg(target_arch = "x86_64")]
    ("exceptions", "page_fault_user"),
    #[cfg(target_arch = "x86_64")]
    ("exceptions", "page_fault_kernel"),
];

/// Events that happen with interrupts off except in a real-time kernel, where their locks leave interrupts on: locks
/// of signals, of a mapping's pages, of the lists of pages, and of per-CPU memory.
const SPINNING: &[(&str, &str)] = &[
    ("signal", "signal_generate"),
    ("signal", "signal_deliver"),
    ("timer", "itimer_state"),
    ("filemap", "mm_filemap_delete_from_page_cache"),
    ("writeback", "writeback_dirty_folio"),
    ("writeback", "track_foreign_dirty"),
    ("writeback", "sb_mark_inode_writeback"),
    ("pagemap", "mm_lru_insertion"),
    ("pagemap", "mm_lru_activate"),
    ("percpu", "percpu_free_percpu"),
];

/// Whether an event always happens with interrupts off.
pub fn irqs_off(format: &Format) -> bool {
    is_locked(|(system, name)| *system == format.system && *name == format.name)
}

/// Whether a dynamic event always happens with interrupts off.
pub fn probe_irqs_off(probe: &Probe) -> bool {
    matches!(&probe.event.target, Target::Tracepoint { name } if is_locked(|(_, locked)| locked == name))
}

fn is_locked(is: impl Fn(&(&'static str, &'static str)) -> bool) -> bool {
    LOCKED.iter().any(&is) || (SPINNING.iter().any(&is) && !is_real_time())
}

/// Whether this kernel's spin locks leave interrupts on.
fn is_real_time() -> bool {
    static REAL_TIME: LazyLock<bool> =
        LazyLock::new(|| rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT"));
    *REAL_TIME
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
