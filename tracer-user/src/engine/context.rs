//! Finds how programs read the interrupted context on the running kernel ([`Context`]).

use std::sync::Arc;

use super::facts::Facts;
use crate::{
    attach::{self, CallPages, Context, CountLayout, Preempt, PreemptLocation, TaskIds},
    kernel::{Cast, syscalls::Registers},
    sys::bpf::prog::ProgKind,
};

pub(super) fn find(facts: &Facts) -> Context {
    let preempt = preempt(facts);
    tracing::debug!(?preempt, "where the preempt count is");
    let cast = cast(facts);
    tracing::debug!(?cast, "how kernel memory is loaded");
    let guard = facts.preempt_guard();
    tracing::debug!(?guard, "how preemption is disabled");
    let registers = facts.registers();
    Context { preempt, registers, cast, task: task_ids(facts), guard, pages: registers.and_then(pages) }
}

/// Byte offsets of a thread's ids in its `task_struct`.
fn task_ids(facts: &Facts) -> Option<TaskIds> {
    let btf = facts.btf()?;
    let offset = |name| match btf.member("task_struct", name) {
        Ok(Some(member)) if member.ty.size == 4 => Some(member.offset),
        _ => None,
    };
    Some(TaskIds { pid: offset("pid")?, tgid: offset("tgid")? })
}

/// How programs load kernel memory directly. `None` where BTF lacks the needed types, or the kernel refuses such
/// loads.
pub fn cast(facts: &Facts) -> Option<Cast> {
    let cast = Cast::find(facts.btf()?).ok().flatten()?;
    let taken = |kind| cast.try_in(kind).is_ok();
    (taken(ProgKind::RawTracepoint) && taken(ProgKind::Tracepoint)).then_some(cast)
}

/// The program that makes the user memory of system calls present.
fn pages(registers: Registers) -> Option<Arc<CallPages>> {
    let pages = CallPages::new(&registers);
    pages
        .inspect_err(|cause| tracing::debug!("programs at system calls do not sleep: {cause}"))
        .ok()
        .map(Arc::new)
}

fn preempt(facts: &Facts) -> Preempt {
    let Some(btf) = facts.btf() else { return Preempt::Unknown };
    let per_cpu = |name| btf.per_cpu(name).ok().flatten();
    // From 6.2 to 6.14 it was a member of a structure of hot variables.
    let hot = || {
        let (hot, count) = (per_cpu("pcpu_hot")?, btf.member("pcpu_hot", "preempt_count").ok()??);
        let start = hot.start + count.offset;
        Some(start..start + count.ty.size)
    };
    let counter = per_cpu("__preempt_count").or_else(hot);
    // The kernel keeps the state of interrupts here while the count says how often they were disabled.
    let has_irqs = per_cpu("local_interrupt_disable_state").is_some();
    let layout = CountLayout { is_long: counter.as_ref().is_some_and(|count| count.len() == 8), has_irqs };
    let place = match (per_cpu("__perf_regs"), counter) {
        (Some(regs), Some(count)) => {
            PreemptLocation::BehindRegs(i64::from(count.start) - i64::from(regs.start))
        }
        // On other architectures it is in the task, with need-resched in the upper half.
        _ => match btf.member("task_struct", "thread_info.preempt_count") {
            Ok(Some(member)) if member.ty.size == 8 => PreemptLocation::InTask(member.offset),
            _ => return Preempt::Unknown,
        },
    };
    let Ok(Some(id)) = facts.tracefs.id("sched", "sched_process_wait") else { return Preempt::Unknown };
    attach::locate_preempt(id, place, layout, facts.cpus()).unwrap_or_default()
}
