//! The hooks of the kernel, one file for each kind: how a program is attached there.

pub(crate) mod call_pages;
pub(crate) mod calls;
pub(crate) mod fentry;
pub(crate) mod kprobe;
pub(crate) mod kprobe_multi;
pub(crate) mod opened;
pub(crate) mod raw_tracepoint;
pub(crate) mod syscalls;
pub(crate) mod tracepoint;
mod trial;
pub(crate) mod uprobe;

use super::{AttachPoint, Cause, close::perf_event::PerfEvent, link::Link};
use crate::sys::bpf::prog::Prog;

/// Opens the perf event for programs at an attach point. This can take long while the kernel closes other perf events.
/// Returns `None` if the attach point has no perf event, or is in a file.
pub fn open_perf_event(point: &AttachPoint) -> Option<Result<PerfEvent, Cause>> {
    match point {
        AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id) => Some(tracepoint::open(*id)),
        AttachPoint::Kprobe(place) => Some(kprobe::open(place, false).map(PerfEvent::new)),
        AttachPoint::Kretprobe(place) => Some(kprobe::open(place, true).map(PerfEvent::new)),
        _ => None,
    }
}

/// Attaches a program to a hook that is not behind a system call dispatcher; `opened` is its perf event, if it is open.
pub(crate) fn attach(
    program: &Prog,
    point: &AttachPoint,
    opened: Option<Result<PerfEvent, Cause>>,
) -> Result<Link, Cause> {
    match point {
        AttachPoint::Tracepoint(_)
        | AttachPoint::CallTracepoint(_)
        | AttachPoint::Kprobe(_)
        | AttachPoint::Kretprobe(_) => {
            let opened = opened.or_else(|| open_perf_event(point));
            opened.map_or(Ok(Link::None), |event| Link::perf(program, event?))
        }
        AttachPoint::RawTracepoint(name) => Ok(Link::Fd { _fd: raw_tracepoint::attach(program, name)? }),
        AttachPoint::SysEnterAlone(_) => Ok(Link::Fd { _fd: raw_tracepoint::attach(program, "sys_enter")? }),
        AttachPoint::SysEnter(_) | AttachPoint::SysExit(_) => {
            Err(Cause::Misplaced("system calls have a dispatcher"))
        }
        AttachPoint::Uprobe(place) => uprobe::attach(program, place, false),
        AttachPoint::Uretprobe(place) => uprobe::attach(program, place, true),
        AttachPoint::Fentry(_) | AttachPoint::Fexit(_) => fentry::attach(program, point.name()),
        AttachPoint::KprobeMulti { addresses, exit } => kprobe_multi::attach(program, addresses, *exit),
        AttachPoint::Shared { address, exit } => kprobe_multi::attach(program, &[*address], *exit),
        AttachPoint::SharedExit(_) => Err(Cause::Misplaced("only a gate is linked to many exits")),
        AttachPoint::Inject | AttachPoint::Emitted => Ok(Link::None),
    }
}
