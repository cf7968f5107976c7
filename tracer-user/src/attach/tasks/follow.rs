//! Following tasks in the kernel: programs add children of traced threads to the pid table and remove threads that end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tracer_abi::PIDS;

use crate::{
    attach::{Cause, hooks::raw_tracepoint, maps::ThreadTable, program::object},
    kernel::Cast,
    sys::bpf::prog::{Prog, ProgKind},
};

#[derive(Debug)]
pub(crate) struct Follow {
    _hooks: Vec<(Prog, OwnedFd)>,
}

impl Follow {
    /// Attaches the programs. `task_pid` is the byte offset of `pid` in `struct task_struct`; `cast` as in
    /// [`Context`](crate::attach::Context).
    pub(crate) fn new(threads: &ThreadTable, task_pid: u32, cast: Option<Cast>) -> Result<Self, Cause> {
        let offset = task_pid.to_ne_bytes();
        let templates = [("pids_fork", "sched_process_fork"), ("pids_free", "sched_process_free")];
        let pids = |map: &str| (map == PIDS).then(|| threads.as_fd());
        let hooks = attach_hook(&templates, &[("TASK_PID", &offset)], cast, pids)?;
        Ok(Self { _hooks: hooks })
    }
}

/// Attaches templates without generated functions to raw tracepoints.
pub(crate) fn attach_hook<'a>(
    templates: &[(&str, &str)],
    constants: &[(&str, &[u8])],
    cast: Option<Cast>,
    map: impl Fn(&str) -> Option<BorrowedFd<'a>>,
) -> Result<Vec<(Prog, OwnedFd)>, Cause> {
    let attach_hook = |(template, name): &(&str, &str)| {
        let program = object::load_plain(ProgKind::RawTracepoint, template, constants, cast, &map)?;
        let link = raw_tracepoint::attach(&program, name)?;
        Ok((program, link))
    };
    templates.iter().map(attach_hook).collect()
}
