//! Raw tracepoints, where a program sees the tracepoint's arguments.

use std::os::fd::OwnedFd;

use crate::{attach::Cause, sys::bpf::prog::Prog};

pub(crate) fn attach(program: &Prog, tracepoint: &str) -> Result<OwnedFd, Cause> {
    program.attach_raw_tracepoint(tracepoint).map_err(|errno| Cause::Hook("raw tracepoint", errno))
}
