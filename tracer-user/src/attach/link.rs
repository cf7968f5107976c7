//! What keeps a program attached: dropping it detaches the program.

use std::os::fd::{AsFd, OwnedFd};

use super::{
    Cause,
    close::{perf_event::PerfEvent, unlink::FileHook},
    hooks::calls::Place,
};
use crate::sys::bpf::prog::{Prog, link_missed};

/// What keeps a program attached.
#[derive(Debug)]
pub(super) enum Link {
    /// A link or raw tracepoint descriptor.
    Fd { _fd: OwnedFd },
    /// A perf event, and the link of a program to it.
    Perf { _link: OwnedFd, _event: OwnedFd },
    /// The descriptors of a file's probe.
    File(FileHook),
    /// A slot in a syscall dispatcher's table.
    Syscall { enter: bool, number: u32 },
    /// A histogram's slot in such a dispatcher.
    Call { _place: Place },
    /// No hook: user space runs the program.
    None,
}

impl Link {
    /// Links a program to a perf event.
    pub(super) fn perf(program: &Prog, event: PerfEvent) -> Result<Self, Cause> {
        let hook = "link to the perf event (5.15 and later)";
        let link = event.fd().and_then(|event| program.link_perf_event(event, 0));
        let link = link.map_err(|errno| Cause::Hook(hook, errno))?;
        let event = event.take().map_err(|errno| Cause::Hook(hook, errno))?;
        Ok(Self::Perf { _link: link, _event: event })
    }

    /// Whether a perf event is closed with it, for which the kernel takes long.
    pub(super) fn has_perf_event(&self) -> bool {
        matches!(self, Self::Perf { .. })
    }

    /// Hits that the kernel counts as missed at the hook itself (6.7 and later; 0 before).
    pub(super) fn missed(&self) -> u64 {
        match self {
            Self::Fd { _fd: link } | Self::Perf { _link: link, .. } => link_missed(link.as_fd()).unwrap_or(0),
            Self::File(hook) => hook.link().and_then(link_missed).unwrap_or(0),
            Self::Syscall { .. } | Self::Call { .. } | Self::None => 0,
        }
    }
}
