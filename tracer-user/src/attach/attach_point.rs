//! Hooks that programs attach to, and how a program must be loaded for each.

use super::hooks::{
    fentry::{self, Function},
    kprobe::KernelPlace,
    uprobe::FilePlace,
};
use crate::{
    event::Format,
    sys::bpf::prog::{ProgKind, Purpose},
};

/// The hook of an event's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// The perf tracepoint of this event id.
    Tracepoint(u16),
    /// The perf tracepoint of a system call's event, by its id. From 7.2 on, programs there may be preempted, and the
    /// kernel runs them beside programs at other perf tracepoints (`trace_call_bpf_faultable()`,
    /// kernel/trace/bpf_trace.c).
    CallTracepoint(u16),
    /// The raw tracepoint of this name.
    RawTracepoint(String),
    /// The entry of the system call with this number.
    SysEnter(u32),
    /// The entry of the system call with this number, without a dispatcher. For a session that traces the entry of no
    /// other system call.
    SysEnterAlone(u32),
    /// The exit of the system call with this number.
    SysExit(u32),
    /// An instruction of the kernel.
    Kprobe(KernelPlace),
    /// The return of a kernel function.
    Kretprobe(KernelPlace),
    /// An instruction of a file.
    Uprobe(FilePlace),
    /// The return of a function of a file.
    Uretprobe(FilePlace),
    /// The entry of a kernel function.
    Fentry(Function),
    /// The exit of a kernel function.
    Fexit(Function),
    /// The entries of kernel functions at these addresses, or their returns.
    KprobeMulti {
        /// Addresses.
        addresses: Vec<u64>,
        /// Whether the program runs at the returns.
        exit: bool,
    },
    /// The entry of a kernel function, or its return, through a kprobe.multi link that many events share
    /// (`Session::plan_functions`).
    Shared {
        /// Address of the function's first instruction.
        address: u64,
        /// Whether the program runs at the return.
        exit: bool,
    },
    /// The exit of the kernel function with this id in the kernel's BTF, through an fexit.multi link that many events
    /// share (`Session::plan_functions`).
    SharedExit(u32),
    /// No hook: user space injects records.
    Inject,
    /// No hook: the code is linked into programs of other events.
    Emitted,
}

impl AttachPoint {
    /// The perf tracepoint of an event.
    pub fn tracepoint(format: &Format) -> Self {
        if format.system == "syscalls" {
            Self::CallTracepoint(format.id)
        } else {
            Self::Tracepoint(format.id)
        }
    }

    /// Whether this is a perf tracepoint.
    pub fn is_tracepoint(&self) -> bool {
        matches!(self, Self::Tracepoint(_) | Self::CallTracepoint(_))
    }

    /// The name of the kind of hook.
    pub fn name(&self) -> &'static str {
        self.parts().0
    }

    /// The template of `tracer-ebpf` for this hook.
    pub(super) fn template(&self) -> &'static str {
        self.parts().1
    }

    /// The program type for this hook.
    pub(super) fn kind(&self) -> ProgKind {
        self.parts().2
    }

    /// Name, template and program type.
    fn parts(&self) -> (&'static str, &'static str, ProgKind) {
        match self {
            Self::Tracepoint(_) | Self::CallTracepoint(_) => {
                ("perf tracepoint", "trace_event", ProgKind::Tracepoint)
            }
            Self::RawTracepoint(_) | Self::SysEnter(_) | Self::SysEnterAlone(_) | Self::SysExit(_) => {
                ("raw tracepoint", "raw_event", ProgKind::RawTracepoint)
            }
            Self::Kprobe(_) => ("kprobe", "kprobe_event", ProgKind::Kprobe),
            Self::Kretprobe(_) => ("kretprobe", "kretprobe_event", ProgKind::Kprobe),
            Self::Uprobe(_) => ("uprobe", "uprobe_event", ProgKind::Kprobe),
            Self::Uretprobe(_) => ("uretprobe", "uretprobe_event", ProgKind::Kprobe),
            Self::Fentry(_) => ("fentry", "fentry_event", ProgKind::Tracing),
            Self::Fexit(_) => ("fexit", "fexit_event", ProgKind::Tracing),
            Self::KprobeMulti { .. } | Self::Shared { .. } => {
                ("kprobe.multi", "kprobe_multi_event", ProgKind::Kprobe)
            }
            Self::SharedExit(_) => ("fexit.multi", "fexit_event", ProgKind::Tracing),
            Self::Inject => ("injection", "inject", ProgKind::Syscall),
            // Emission code is linked into programs of any type.
            Self::Emitted => ("emission", "synthetic_event", ProgKind::RawTracepoint),
        }
    }

    /// Whether this is the entry of a system call behind a dispatcher, and the call's number. `None` for all other
    /// hooks.
    pub(super) fn call(&self) -> Option<(bool, u32)> {
        match self {
            Self::SysEnter(number) => Some((true, *number)),
            Self::SysExit(number) => Some((false, *number)),
            _ => None,
        }
    }

    /// The number of the system call, if this is a call's entry.
    pub(super) fn entered_call(&self) -> Option<u32> {
        match self {
            Self::SysEnter(number) | Self::SysEnterAlone(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether events with the same code share a program at this hook.
    pub fn shares(&self) -> bool {
        self.is_tracepoint() || self.is_call()
    }

    /// Whether a system call dispatcher calls the program.
    pub fn is_call(&self) -> bool {
        self.call().is_some()
    }

    /// The expected attach type, or the function, that the program is loaded for.
    pub(super) fn purpose(&self) -> Purpose<'_> {
        match self {
            Self::Fentry(function) => fentry::purpose(function, false),
            Self::Fexit(function) => fentry::purpose(function, true),
            Self::KprobeMulti { .. } | Self::Shared { .. } => Purpose::Multi,
            Self::SharedExit(_) => Purpose::Exits,
            _ => Purpose::Any,
        }
    }

    /// The entry hook at which arguments are stored for this return hook. `None` where the return hook has the
    /// arguments itself, and for files.
    pub(super) fn entry(&self) -> Option<Self> {
        match self {
            Self::Kretprobe(place) => Some(Self::Kprobe(place.clone())),
            Self::KprobeMulti { addresses, exit: true } => {
                Some(Self::KprobeMulti { addresses: addresses.clone(), exit: false })
            }
            _ => None,
        }
    }

    /// By how much the preempt depth in the kernel's record of a dynamic event exceeds the depth that a program at this
    /// hook computes with the bias of a tracepoint. The kernel makes the record elsewhere: in an fprobe, or while it
    /// records another event (seen on 6.12).
    pub(super) fn kernels_depth(&self) -> u32 {
        match self {
            Self::RawTracepoint(_) | Self::Uprobe(_) | Self::Uretprobe(_) => 1,
            Self::Fentry(_)
            | Self::Fexit(_)
            | Self::SharedExit(_)
            | Self::Tracepoint(_)
            | Self::CallTracepoint(_) => 2,
            _ => 0,
        }
    }

    /// Whether a program at this hook can be preempted by itself, unless it disables preemption.
    pub(super) fn nests(&self) -> bool {
        matches!(self, Self::Uprobe(_) | Self::Uretprobe(_) | Self::CallTracepoint(_))
    }

    /// Whether only one program at hooks of this sort runs at a time on a CPU (`bpf_prog_active`). Such programs can
    /// share memory.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(
            self,
            Self::Tracepoint(_)
                | Self::Kprobe(_)
                | Self::Kretprobe(_)
                | Self::KprobeMulti { .. }
                | Self::Shared { .. }
        )
    }
}
