//! Errors of attaching, in words a user can act on.

use crate::{
    code::lower::LowerError,
    sys::{
        Errno,
        bpf::prog::{LoadError, ProgKind},
    },
};

/// The refused event or map, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct AttachError {
    what: String,
    cause: Cause,
}

/// The reason of an [`AttachError`].
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The template and the generated functions do not fit together; an internal error.
    #[error("the eBPF program could not be linked: {0}")]
    Link(String),
    /// No code can be generated for the plan.
    #[error("{0}")]
    Lower(LowerError),
    /// The kernel did not create a map.
    #[error("no {0} map: {why}", why = explain(*.1))]
    Map(&'static str, Errno),
    /// The kernel did not load a program.
    #[error("{}", not_loaded(*.0, .1))]
    Load(ProgKind, LoadError),
    /// The kernel did not attach the program.
    #[error("no {0}: {why}", why = explain(*.1))]
    Hook(&'static str, Errno),
    /// A call to the kernel failed.
    #[error("{0}: {why}", why = explain(*.1))]
    System(&'static str, Errno),
    /// The kernel is built without a feature: its name, and the config option that adds it.
    #[error("the kernel is built without {0} ({1})")]
    NotBuilt(&'static str, &'static str),
    /// BTF does not show where a system call's number is.
    #[error("BTF lacks the member of struct pt_regs that has the call's number")]
    NoRegisters,
    /// The kernel's BTF lacks a type or member, or there is no BTF.
    #[error("the kernel's BTF lacks {0}")]
    NoType(&'static str),
    /// More events than the counters have rows for.
    #[error("more than {0} events")]
    TooMany(u32),
    /// A request that does not fit its hook; an internal error.
    #[error("a fault of tracer itself: {0}")]
    Misplaced(&'static str),
    /// No usable hook: each candidate, and why not.
    #[error("no hook: {0}")]
    NoHook(String),
}

impl AttachError {
    /// Adds the name of the refused event or map.
    pub(crate) fn new(what: impl Into<String>, cause: Cause) -> Self {
        Self { what: what.into(), cause }
    }

    /// The reason.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The verifier's log, if the verifier refused the program.
    pub fn verifier_log(&self) -> Option<&str> {
        match &self.cause {
            Cause::Load(_, error) if !error.log.is_empty() => Some(&error.log),
            _ => None,
        }
    }
}

fn not_loaded(kind: ProgKind, error: &LoadError) -> String {
    match error.log.lines().rev().find(|line| !line.starts_with("processed ")) {
        Some(line) if error.errno != Errno::PERM => format!("the verifier refused the program: {line}"),
        _ => format!("no program of type {kind:?}: {}", explain(error.errno)),
    }
}

/// An error number with its usual meaning here.
fn explain(errno: Errno) -> String {
    let hint = match errno {
        Errno::PERM | Errno::ACCESS => {
            " (tracing needs CAP_BPF and CAP_PERFMON, or root; a security module or lockdown may refuse it too: \
             see `tracer doctor`)"
        }
        Errno::MFILE => " (raise the limit on open files: ulimit -n)",
        Errno::NOMEM => " (or RLIMIT_MEMLOCK on kernels before 5.11)",
        Errno::NOSYS => " (the kernel is built without it)",
        _ => "",
    };
    format!("{errno}{hint}")
}
