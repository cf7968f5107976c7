//! perf_event_open(2), as far as a tracepoint needs it.

use std::{
    ffi::CStr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{Errno, check};

/// `PERF_TYPE_TRACEPOINT`.
const TYPE_TRACEPOINT: u32 = 2;
/// `perf_event_attr.disabled`.
const DISABLED: u64 = 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: libc::c_ulong = 1 << 3;

/// `PERF_EVENT_IOC_SET_FILTER`, `_IOW('$', 6, char *)`.
const SET_FILTER: libc::Ioctl = 0x4008_2406;

/// `struct perf_event_attr` as its first version had it (64 bytes).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attr>() == 64);

/// Opens the perf event of a trace event by its id, for all tasks. A program linked to it runs on every CPU; the
/// CPU named here is only where perf would sample, which it never does: the event stays disabled. Programs run all the
/// same (`trace_call_bpf()` is called for the tracepoint, not for the event), and the kernel need not reschedule all events
/// of that CPU whenever one comes or goes.
///
/// # Errors
/// `EINVAL` or `ENOENT` for an unknown id, `EACCES` or `EPERM` without `CAP_PERFMON`, `EMFILE`.
pub fn open_tracepoint(id: u16, cpu: u32) -> Result<OwnedFd, Errno> {
    let attr = Attr {
        kind: TYPE_TRACEPOINT,
        size: size_of::<Attr>() as u32,
        config: u64::from(id),
        flags: DISABLED,
        ..Attr::default()
    };
    // SAFETY: the attribute block is valid for its size; the kernel only reads it.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu as libc::c_int, -1, FLAG_CLOEXEC)
    })?;
    // SAFETY: the kernel just gave us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets an event filter on a tracepoint's perf event, which may have none yet.
///
/// # Errors
/// `EINVAL` for a filter that the kernel's parser refuses, `EEXIST` where there is one.
pub fn set_filter(event: BorrowedFd<'_>, filter: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel copies the string, which ends with a NUL.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), SET_FILTER, filter.as_ptr()) })).map(drop)
}
