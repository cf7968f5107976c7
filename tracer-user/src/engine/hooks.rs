//! Which hook an event's program hangs on.
//!
//! A raw tracepoint is cheaper than a perf tracepoint, because the kernel makes no record for it; it is taken where a
//! plan for the event exists and was seen to make the kernel's own records on this very kernel. In all other cases the
//! perf tracepoint serves.

use std::{collections::HashMap, sync::LazyLock};

use super::{facts::Facts, verify};
use crate::{
    attach::{AttachPoint, Session},
    event::{Format, dynamic::Target},
    kernel::syscalls::Registers,
    lang::define::Probe,
    plan::{
        raw::{self, RawPlan},
        source::{Other, ProgramContext, Source},
    },
    ring::Drain,
};

/// So many events at once are few: each has a program of its own, on the hook that costs least. More of them share programs where
/// they can.
pub const BULK_THRESHOLD: usize = 32;

/// A hook and how values are had there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlan {
    /// How values are had.
    pub hook: ProgramContext,
    /// Where the program hangs.
    pub via: AttachPoint,
    /// Why the raw tracepoint is not used; empty when it is.
    pub reason: String,
}

impl AttachPlan {
    /// The perf tracepoint, which serves every event.
    pub fn tracepoint(format: &Format, reason: impl Into<String>) -> Self {
        Self {
            hook: ProgramContext::Tracepoint,
            via: AttachPoint::Tracepoint(format.id),
            reason: reason.into(),
        }
    }
}

/// What came of the trials of plans, by system and name of the event that stood for others.
pub type Verdicts = HashMap<(String, String), Result<(), String>>;

/// Chooses the hooks of events. Plans that there is no verdict on are put to the test all at once, in a session that
/// traces nothing.
pub fn choose(
    formats: &[&Format],
    tracepoints_only: bool,
    facts: &Facts,
    trial: &mut Trial<'_>,
    verdicts: &mut Verdicts,
) -> Vec<AttachPlan> {
    let planned: Vec<Result<(RawPlan, Option<u32>), String>> = formats
        .iter()
        .map(|format| if tracepoints_only { Err("asked for".to_owned()) } else { plan(format, facts) })
        .collect();
    let mut names: Vec<(String, String)> = Vec::new();
    let mut plans: Vec<Result<(Format, RawPlan), String>> = Vec::new();
    for (format, planned) in formats.iter().zip(&planned) {
        let Ok((plan, _)) = planned else { continue };
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
        let verdict = plan.and_then(|_| outcomes.next().unwrap_or(Ok(())));
        let verdict = verdict.map_err(|why| format!("{}:{}: {why}", name.0, name.1));
        tracing::debug!(?name, ?verdict, "raw tracepoint plan");
        (name, verdict)
    }));
    formats
        .iter()
        .zip(planned)
        .map(|(format, planned)| {
            let usable = planned.and_then(|(plan, number)| {
                match verdicts.get(&plan.stand_in) {
                    Some(verdict) => verdict.clone(),
                    None => Err("too many plans to check at one start".to_owned()),
                }
                .map(|()| (plan, number))
            });
            match usable {
                Ok((plan, number)) => raw_chosen(format, plan, number),
                Err(why) => AttachPlan::tracepoint(format, why),
            }
        })
        .collect()
}

/// Where plans are put to the test.
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
    let via = match (number, format.name.starts_with("sys_enter_")) {
        (Some(number), true) => AttachPoint::SysEnter(number),
        (Some(number), false) => AttachPoint::SysExit(number),
        (None, _) => AttachPoint::RawTracepoint(plan.tracepoint),
    };
    AttachPlan { hook: ProgramContext::RawTracepoint(plan.fields), via, reason: String::new() }
}

/// Lets the program of a system call's event serve all calls of its shape.
pub fn for_any_call(chosen: &mut AttachPlan, registers: &Registers) {
    let entering = matches!(chosen.via, AttachPoint::SysEnter(_));
    if let (true, ProgramContext::RawTracepoint(fields)) =
        (entering || matches!(chosen.via, AttachPoint::SysExit(_)), &mut chosen.hook)
    {
        raw::for_any_call(fields, entering, registers);
    }
}

/// The plan of an event and, for a syscall event, the call's number; or why there is none.
fn plan(format: &Format, facts: &Facts) -> Result<(RawPlan, Option<u32>), String> {
    let syscall = format.system == "syscalls";
    if !syscall && !raw::listed().any(|(system, name)| system == format.system && name == format.name) {
        return Err("there is no raw tracepoint plan for it".to_owned());
    }
    let btf = facts.btf().ok_or_else(|| "the kernel shows no BTF".to_owned())?;
    let number = if syscall { facts.syscall_number(&format.name) } else { None };
    let plan = raw::plan(format, btf, number).map_err(|refusal| refusal.to_string())?;
    Ok((plan, number))
}

/// Format and plan of an event that stands for others.
fn stand_in(system: &str, name: &str, facts: &Facts) -> Result<(Format, RawPlan), String> {
    let text = facts
        .tracefs
        .format(system, name)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| "there is no such event".to_owned())?;
    let format = Format::parse(system, &text).map_err(|error| error.to_string())?;
    let btf = facts.btf().ok_or_else(|| "the kernel shows no BTF".to_owned())?;
    let plan = raw::plan(&format, btf, None).map_err(|refusal| refusal.to_string())?;
    Ok((format, plan))
}

/// The other thread that an event is about, as tracefs's pid filters have it: who is switched in, and who is woken
/// (`event_filter_pid_sched_switch_probe_pre()` and its neighbours, kernel/trace/trace_events.c).
pub fn other(format: &Format, hook: &ProgramContext) -> Option<Other> {
    let name = match (format.system.as_str(), format.name.as_str()) {
        ("sched", "sched_switch") => "next_pid",
        ("sched", "sched_wakeup" | "sched_wakeup_new" | "sched_waking") => "pid",
        _ => return None,
    };
    let offset = format.fields.iter().find(|field| field.name == name)?.offset;
    match hook {
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

/// Events that only ever happen with interrupts off, where BPF cannot see it: the scheduler's, under the run queue's
/// or the task's lock (kernel/sched/core.c), those of timers and work queues, under the lock of their base or pool, and
/// faults on x86, at whose entry the processor turned interrupts off.
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

/// The same under locks that leave interrupts on in a real-time kernel: of signals, of a mapping's pages, of the lists of
/// pages, and of the memory of CPUs.
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

/// Whether this event only ever happens with interrupts off.
pub fn irqs_off(format: &Format) -> bool {
    is_locked(|(system, name)| *system == format.system && *name == format.name)
}

/// The same of a dynamic event.
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

/// The entry of a system call that no other stands beside needs no dispatcher.
pub fn alone(chosen: &mut [AttachPlan]) {
    let mut entries = chosen.iter_mut().filter(|one| matches!(one.via, AttachPoint::SysEnter(_)));
    if let (Some(only), None) = (entries.next(), entries.next())
        && let AttachPoint::SysEnter(number) = only.via
    {
        only.via = AttachPoint::SysEnterAlone(number);
    }
}
