//! Links: the descriptors that keep a program attached. Dropping a link detaches the program.

use std::{
    collections::HashSet,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Cause,
    close::{
        perf_event::PerfEvent,
        unlink::{self, FileHook},
    },
    hooks::{calls::Place, syscalls::Dispatcher},
    slots::SlotLease,
};
use crate::sys::{
    Errno,
    bpf::{link::link_missed, prog::Prog, quiesce::wait_for_programs},
};

/// The descriptors that keep a program attached.
#[derive(Debug)]
pub(crate) enum Link {
    /// A link or raw tracepoint descriptor.
    Fd { _fd: OwnedFd },
    /// The raw tracepoint descriptor of a program before which another one makes user memory present.
    AfterPages { link: OwnedFd, _pages: Arc<OwnedFd> },
    /// A link of a program to a perf event, and the event.
    Perf { link: OwnedFd, event: OwnedFd },
    /// The descriptors of a file's probe.
    File(FileHook),
    /// A link to functions of many events.
    Functions { _link: Arc<FunctionsLink> },
    /// A dispatcher of system calls, which is attached while one of its events is.
    Dispatcher { _dispatcher: Arc<Dispatcher> },
    /// A histogram's entry in a dispatcher of system calls.
    Call { place: Place },
    /// No descriptor: user space runs the program, or the program is in the array of a dispatcher.
    None,
}

/// A link to functions of many events. Their slots stay in use until it is closed, because hits can use them until
/// then.
#[derive(Debug)]
pub(crate) struct FunctionsLink {
    // The link closes first.
    link: Option<OwnedFd>,
    /// Of a link to exits: the functions, and those of all such links.
    exits: Option<(Vec<u64>, LinkedExits)>,
    _leases: Vec<Arc<SlotLease>>,
}

/// The functions whose exits are linked.
pub(crate) type LinkedExits = Arc<Mutex<HashSet<u64>>>;

impl FunctionsLink {
    pub(super) fn new(
        link: OwnedFd,
        exits: Option<(Vec<u64>, LinkedExits)>,
        leases: Vec<Arc<SlotLease>>,
    ) -> Self {
        if let Some((functions, linked)) = &exits {
            linked.lock().unwrap_or_else(PoisonError::into_inner).extend(functions);
        }
        Self { link: Some(link), exits, _leases: leases }
    }
}

impl Drop for FunctionsLink {
    fn drop(&mut self) {
        drop(self.link.take());
        let Some((functions, linked)) = &self.exits else { return };
        // The kernel does not wait for programs at exits, which may be preempted.
        if let Err(errno) = wait_for_programs() {
            tracing::debug!("programs at closed exits: {errno}");
        }
        let mut linked = linked.lock().unwrap_or_else(PoisonError::into_inner);
        for function in functions {
            linked.remove(function);
        }
    }
}

pub(super) fn not_linked(errno: Errno) -> Cause {
    Cause::Hook("link to the perf event (5.15 and later)", errno)
}

impl Link {
    pub(super) fn perf(program: &Prog, event: PerfEvent) -> Result<Self, Cause> {
        let link = event.fd().and_then(|event| program.link_perf_event(event, 0)).map_err(not_linked)?;
        let (event, held) = event.take().map_err(not_linked)?;
        // The guard gets no link of this sort. It may not answer soon.
        if held.is_some() {
            unlink::close_later(held);
        }
        Ok(Self::Perf { link, event })
    }

    /// Keeps the link of a program that runs before this one's.
    pub(super) fn after(self, pages: Option<Arc<OwnedFd>>) -> Self {
        match (self, pages) {
            (Self::Fd { _fd: link }, Some(pages)) => Self::AfterPages { link, _pages: pages },
            (link, _) => link,
        }
    }

    /// Closes the link. Returns its perf event, which has no effect any more.
    pub(super) fn into_event(mut self) -> Option<OwnedFd> {
        self.take_perf().map(|[_link, event]| event)
    }

    /// The link and its perf event, which the caller closes in this order; `None` for a link without one.
    pub(super) fn take_perf(&mut self) -> Option<[OwnedFd; 2]> {
        match std::mem::replace(self, Self::None) {
            Self::Perf { link, event } => Some([link, event]),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Hits that the kernel counts as missed at the hook itself (6.7 and later; 0 before).
    pub(super) fn missed(&self) -> u64 {
        match self {
            Self::Fd { _fd: link } | Self::Perf { link, .. } | Self::AfterPages { link, .. } => {
                link_missed(link.as_fd()).unwrap_or(0)
            }
            Self::File(hook) => hook.link().and_then(link_missed).unwrap_or(0),
            Self::Functions { .. } | Self::Dispatcher { .. } | Self::Call { .. } | Self::None => 0,
        }
    }
}
