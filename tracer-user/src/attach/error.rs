//! Errors of attaching, in words a user can act on.

use std::fmt;

use crate::{
    code::lower::LowerError,
    sys::{
        Errno,
        bpf::prog::{LoadError, ProgKind},
    },
};

/// The refused event or map, and the cause.
#[derive(Debug)]
pub struct AttachError {
    what: String,
    cause: Cause,
}

/// The reason of an [`AttachError`].
#[derive(Debug)]
pub enum Cause {
    /// The template and the generated functions do not fit together; an internal error.
    Link(String),
    /// No code can be generated for the plan.
    Lower(LowerError),
    /// The kernel did not create a map.
    Map(&'static str, Errno),
    /// The kernel did not load a program.
    Load(ProgKind, LoadError),
    /// The kernel did not attach the program.
    Hook(&'static str, Errno),
    /// A call to the kernel failed.
    System(&'static str, Errno),
    /// The kernel is built without a feature: its name, and the config option that adds it.
    NotBuilt(&'static str, &'static str),
    /// BTF does not show where a system call's number is.
    NoRegisters,
    /// The kernel's BTF lacks a type or member, or there is no BTF.
    NoType(&'static str),
    /// More events than the counters have rows for.
    TooMany(u32),
    /// A request that does not fit its hook; an internal error.
    Misplaced(&'static str),
    /// No usable hook: each candidate, and why not.
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

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl std::error::Error for AttachError {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(why) => write!(f, "the eBPF program could not be linked: {why}"),
            Self::Lower(error) => write!(f, "{error}"),
            Self::Map(kind, errno) => write!(f, "no {kind} map: {}", explain(*errno)),
            Self::Load(kind, error) => {
                let last = error.log.lines().rev().find(|line| !line.starts_with("processed "));
                match last {
                    Some(line) if error.errno != Errno::PERM => {
                        write!(f, "the verifier refused the program: {line}")
                    }
                    _ => write!(f, "no program of type {kind:?}: {}", explain(error.errno)),
                }
            }
            Self::Hook(hook, errno) => write!(f, "no {hook}: {}", explain(*errno)),
            Self::System(call, errno) => write!(f, "{call}: {}", explain(*errno)),
            Self::NotBuilt(what, option) => write!(f, "the kernel is built without {what} ({option})"),
            Self::NoRegisters => {
                f.write_str("BTF lacks the member of struct pt_regs that has the call's number")
            }
            Self::NoType(name) => write!(f, "the kernel's BTF lacks {name}"),
            Self::NoHook(why) => write!(f, "no hook: {why}"),
            Self::Misplaced(what) => write!(f, "a fault of tracer itself: {what}"),
            Self::TooMany(slots) => write!(f, "more than {slots} events"),
        }
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
