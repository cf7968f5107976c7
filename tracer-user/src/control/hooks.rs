//! Which hook an event's program hangs on.
//!
//! A raw tracepoint is cheaper than a perf tracepoint, because the kernel makes no record for it; it is taken where a
//! plan for the event exists and was seen to make the kernel's own records on this very kernel. In all other cases the
//! perf tracepoint serves.

use std::collections::HashMap;

use super::{facts::Facts, verify};
use crate::{
    attach::Via,
    event::Format,
    plan::{
        raw::{self, RawPlan},
        source::Hook,
    },
};

/// A hook and how values are had there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// How values are had.
    pub hook: Hook,
    /// Where the program hangs.
    pub via: Via,
    /// Why the raw tracepoint is not used; empty when it is.
    pub reason: String,
}

impl Chosen {
    /// The perf tracepoint, which serves every event.
    pub fn tracepoint(format: &Format, reason: impl Into<String>) -> Self {
        Self { hook: Hook::Tracepoint, via: Via::Tracepoint(format.id), reason: reason.into() }
    }
}

/// Chooses hooks, and remembers what was found out about plans.
#[derive(Debug)]
pub struct Chooser {
    checked: HashMap<(String, String), Result<(), String>>,
    tracepoints_only: bool,
}

impl Chooser {
    /// Knows nothing yet. `tracepoints_only`: never the raw tracepoint.
    pub fn new(tracepoints_only: bool) -> Self {
        Self { checked: HashMap::new(), tracepoints_only }
    }

    /// The hook for an event.
    pub fn choose(&mut self, format: &Format, facts: &Facts) -> Chosen {
        if self.tracepoints_only {
            return Chosen::tracepoint(format, "asked for");
        }
        let listed = format.system == "syscalls"
            || raw::listed().any(|(system, name)| system == format.system && name == format.name);
        if !listed {
            return Chosen::tracepoint(format, "no raw tracepoint plan");
        }
        let Some(btf) = facts.btf() else { return Chosen::tracepoint(format, "the kernel shows no BTF") };
        let number = if format.system == "syscalls" { facts.syscall_number(&format.name) } else { None };
        let plan = match raw::plan(format, btf, number) {
            Ok(plan) => plan,
            Err(refusal) => return Chosen::tracepoint(format, refusal.to_string()),
        };
        if let Err(why) = self.check(format, &plan, facts) {
            return Chosen::tracepoint(format, why);
        }
        let via = match (number, format.name.starts_with("sys_enter_")) {
            (Some(number), true) => Via::SysEnter(number),
            (Some(number), false) => Via::SysExit(number),
            (None, _) => Via::RawTracepoint(plan.tracepoint),
        };
        Chosen { hook: Hook::RawTracepoint(plan.fields), via, reason: String::new() }
    }

    /// Checks the plan's stand-in against the real event, once.
    fn check(&mut self, format: &Format, plan: &RawPlan, facts: &Facts) -> Result<(), String> {
        if let Some(known) = self.checked.get(&plan.stand_in) {
            return known.clone();
        }
        let (system, name) = &plan.stand_in;
        let result = if (system, name) == (&format.system, &format.name) {
            verify::holds(format, plan, facts)
        } else {
            stand_in(system, name, facts).and_then(|(format, plan)| verify::holds(&format, &plan, facts))
        };
        let result = result.map_err(|why| format!("{system}:{name}: {why}"));
        tracing::debug!(?result, system, name, "raw tracepoint plan");
        self.checked.insert(plan.stand_in.clone(), result.clone());
        result
    }
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

/// Events that only ever happen with interrupts off, where BPF cannot see it: the scheduler's, under the run queue's
/// or the task's lock (kernel/sched/core.c).
pub fn irqs_off(format: &Format) -> bool {
    format.system == "sched"
        && matches!(
            format.name.as_str(),
            "sched_switch" | "sched_waking" | "sched_wakeup" | "sched_wakeup_new" | "sched_migrate_task"
        )
}
