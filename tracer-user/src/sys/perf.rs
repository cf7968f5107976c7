//! perf_event_open(2), as far as tracepoints, kprobes and uprobes need it.

use std::{
    ffi::CStr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{Errno, check, cpus::Cpus, event_mutex};

/// `PERF_TYPE_TRACEPOINT`.
const TYPE_TRACEPOINT: u32 = 2;
/// `perf_event_attr.disabled`.
const DISABLED: u64 = 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: libc::c_ulong = 1 << 3;

/// `PERF_EVENT_IOC_SET_FILTER`, `_IOW('$', 6, char *)`.
const SET_FILTER: libc::Ioctl = 0x4008_2406;

/// `struct perf_event_attr` as its second version had it (72 bytes).
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
    config2: u64,
}

const _: () = assert!(size_of::<Attr>() == 72);

/// Opens the perf event of a trace event by its id, for all tasks. A program linked to it runs on every CPU; the
/// CPU that it is opened on (one that is on) is only where perf would sample, which it never does: the event stays disabled. Programs run all the
/// same (`trace_call_bpf()` is called for the tracepoint, not for the event), and the kernel need not reschedule all events
/// of that CPU whenever one comes or goes.
///
/// # Errors
/// `EINVAL` or `ENOENT` for an unknown id, `EACCES` or `EPERM` without `CAP_PERFMON`, `EMFILE`; that of [`event_mutex::enter`].
pub fn open_tracepoint(id: u16) -> Result<OwnedFd, Errno> {
    let _entered = event_mutex::enter()?;
    open(&Attr { kind: TYPE_TRACEPOINT, config: u64::from(id), ..Attr::default() })
}

/// Opens the perf event of an instruction of a file (`kind` and `config` as the kernel's `uprobe` unit wants them), for all
/// tasks; as for [`open_tracepoint`], the event stays disabled and programs run all the same. May block without a limit.
///
/// # Errors
/// `ENOENT` for a file that is gone, `EINVAL` for an offset that cannot be probed, `EACCES` or `EPERM` without
/// `CAP_PERFMON`.
pub fn open_uprobe(kind: u32, config: u64, path: &CStr, offset: u64) -> Result<OwnedFd, Errno> {
    let _held = event_mutex::hold();
    open(&Attr { kind, config, config1: path.as_ptr() as u64, config2: offset, ..Attr::default() })
}

/// Opens the perf event of an instruction of the kernel (`kind` and `config` as its `kprobe` unit wants them): so many
/// bytes behind a symbol, or at that address without one.
///
/// # Errors
/// `ENOENT` for an unknown symbol, `EINVAL` or `EILSEQ` for a place that cannot be probed, `EADDRNOTAVAIL` for a symbol
/// that is not the only one of its name; that of [`event_mutex::enter`].
pub fn open_kprobe(kind: u32, config: u64, symbol: Option<&CStr>, offset: u64) -> Result<OwnedFd, Errno> {
    let _entered = event_mutex::enter()?;
    let config1 = symbol.map_or(0, |symbol| symbol.as_ptr() as u64);
    open(&Attr { kind, config, config1, config2: offset, ..Attr::default() })
}

/// The CPU that events are opened on: one that was on when it was last looked for.
static CPU: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = u32::MAX;

/// Opens an event, disabled, for all tasks.
fn open(attr: &Attr) -> Result<OwnedFd, Errno> {
    open_near(attr, &CPU)
}

/// Opens an event on the CPU that is known, or on the first one that is on where that one has gone off: events outlive the CPU
/// that they were opened on, and CPU 0 may be off like any other.
fn open_near(attr: &Attr, known: &AtomicU32) -> Result<OwnedFd, Errno> {
    let cpu = known.load(Ordering::Relaxed);
    let errno = if cpu == UNKNOWN {
        Errno::NODEV
    } else {
        match open_on(attr, cpu) {
            Ok(event) => return Ok(event),
            // `ENODEV` for a CPU that is off, `EINVAL` for one that cannot be; both may be about something else.
            Err(errno @ (Errno::NODEV | Errno::INVAL)) => errno,
            Err(errno) => return Err(errno),
        }
    };
    let online = Cpus::online()?;
    if cpu != UNKNOWN && online.has(cpu) {
        return Err(errno);
    }
    known.store(online.first(), Ordering::Relaxed);
    open_on(attr, online.first())
}

fn open_on(attr: &Attr, cpu: u32) -> Result<OwnedFd, Errno> {
    let attr = Attr { size: size_of::<Attr>() as u32, flags: DISABLED, ..*attr };
    // SAFETY: the attribute block is valid for its size, and strings it points to outlive the call; the kernel only
    // reads them.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu as libc::c_int, -1, FLAG_CLOEXEC)
    })?;
    // SAFETY: the kernel just gave us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets an event filter on a tracepoint's perf event, which may have none yet.
///
/// # Errors
/// `EINVAL` for a filter that the kernel's parser refuses, `EEXIST` where there is one; that of [`event_mutex::enter`].
pub fn set_filter(event: BorrowedFd<'_>, filter: &CStr) -> Result<(), Errno> {
    let _entered = event_mutex::enter()?;
    // SAFETY: the kernel copies the string, which ends with a NUL.
    check(i64::from(unsafe { libc::ioctl(event.as_raw_fd(), SET_FILTER, filter.as_ptr()) })).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_DUMMY`.
    const DUMMY: (u32, u64) = (1, 9);

    #[test]
    fn an_event_is_opened_on_a_cpu_that_is_on() {
        let dummy = || Attr { kind: DUMMY.0, config: DUMMY.1, ..Attr::default() };
        let online = Cpus::online().unwrap();
        let off = Cpus::possible().unwrap().ids();
        match open_on(&dummy(), online.first()) {
            Err(Errno::PERM | Errno::ACCESS) => return eprintln!("skipped: perf events want CAP_PERFMON"),
            opened => drop(opened.unwrap()),
        }
        assert!(open_on(&dummy(), off).is_err(), "there is no such CPU");
        for known in [UNKNOWN, off] {
            let known = AtomicU32::new(known);
            open_near(&dummy(), &known).unwrap();
            assert_eq!(known.into_inner(), online.first());
        }
        // What is refused for another reason stays refused.
        let wrong = Attr { kind: u32::MAX, ..Attr::default() };
        assert!(open_near(&wrong, &AtomicU32::new(online.first())).is_err());
    }
}
