//! Following tasks in the kernel: programs add children of traced threads to the pid table and remove threads that end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tracer_abi::PIDS;

use crate::{
    attach::{Cause, Context, hooks::raw_tracepoint, maps::ThreadTable, program::object},
    kernel::{Cast, PreemptGuard},
    sys::bpf::prog::{Prog, ProgKind},
};

#[derive(Debug)]
pub(crate) struct Follow {
    _hooks: Vec<(Prog, OwnedFd)>,
}

impl Follow {
    /// Attaches the programs. `task_pid` is the byte offset of `pid` in `struct task_struct`.
    pub(crate) fn new(threads: &ThreadTable, task_pid: u32, context: &Context) -> Result<Self, Cause> {
        let offset = task_pid.to_ne_bytes();
        let templates = [("pids_fork", "sched_process_fork"), ("pids_free", "sched_process_free")];
        let pids = |map: &str| (map == PIDS).then(|| threads.as_fd());
        let hooks = attach_hook(&templates, &[("TASK_PID", &offset)], context.cast, context.guard, pids)?;
        Ok(Self { _hooks: hooks })
    }
}

/// Attaches templates without generated functions to raw tracepoints. A hit that is skipped would leave a wrong state, so
/// the programs disable preemption where the kernel lets them.
pub(crate) fn attach_hook<'a>(
    templates: &[(&str, &str)],
    constants: &[(&str, &[u8])],
    cast: Option<Cast>,
    guard: Option<PreemptGuard>,
    map: impl Fn(&str) -> Option<BorrowedFd<'a>>,
) -> Result<Vec<(Prog, OwnedFd)>, Cause> {
    let guard = guard.and_then(PreemptGuard::of_skipped);
    let attach_hook = |(template, name): &(&str, &str)| {
        let program = object::load_plain(ProgKind::RawTracepoint, template, constants, cast, guard, &map)?;
        let link = raw_tracepoint::attach(&program, name)?;
        Ok((program, link))
    };
    templates.iter().map(attach_hook).collect()
}
