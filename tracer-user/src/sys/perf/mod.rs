//! perf_event_open(2) for tracepoints, kprobes and uprobes.

use std::{
    ffi::CStr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use aya_obj::generated::{PERF_EVENT_IOC_SET_FILTER, PERF_FLAG_FD_CLOEXEC, perf_event_attr, perf_type_id};

use super::{Errno, check, cpus::Cpus};

pub mod event_mutex;

/// The fields of `struct perf_event_attr` that differ between events.
#[derive(Clone, Copy, Default)]
struct Attr {
    kind: u32,
    config: u64,
    config1: u64,
    config2: u64,
}

/// Opens the perf event of a trace event by its id, for all tasks. The event stays disabled.
///
/// A program linked to it runs on every CPU, although the event is opened on one: the kernel calls `trace_call_bpf()`
/// for the tracepoint, not for the event. A disabled event takes no samples, and the kernel need not reschedule all
/// events of its CPU when it is opened or closed.
///
/// # Errors
/// `EINVAL` or `ENOENT` for an unknown id, `EACCES` or `EPERM` without `CAP_PERFMON`, `EMFILE`; the errors of
/// [`event_mutex::enter`].
pub fn open_tracepoint(id: u16) -> Result<OwnedFd, Errno> {
    let _entered = event_mutex::enter()?;
    open(&Attr { kind: perf_type_id::PERF_TYPE_TRACEPOINT as u32, config: u64::from(id), ..Attr::default() })
}

/// Opens the perf event of an instruction in a file, for all tasks. The caller builds `kind` and `config` for the
/// kernel's `uprobe` unit. As with [`open_tracepoint`], the event stays disabled and programs run nevertheless. May
/// block without a limit.
///
/// # Errors
/// `ENOENT` if the file no longer exists, `EINVAL` for an offset that cannot be probed, `EACCES` or `EPERM` without
/// `CAP_PERFMON`.
pub fn open_uprobe(kind: u32, config: u64, path: &CStr, offset: u64) -> Result<OwnedFd, Errno> {
    let _held = event_mutex::hold();
    open(&Attr { kind, config, config1: path.as_ptr() as u64, config2: offset })
}

/// Opens the perf event of a kernel instruction. The caller builds `kind` and `config` for the kernel's `kprobe`
/// unit. `offset` is in bytes from the symbol; without a symbol it is the address.
///
/// # Errors
/// `ENOENT` for an unknown symbol, `EINVAL` or `EILSEQ` for an address that cannot be probed, `EADDRNOTAVAIL` for a
/// symbol whose name is not unique; the errors of [`event_mutex::enter`].
pub fn open_kprobe(kind: u32, config: u64, symbol: Option<&CStr>, offset: u64) -> Result<OwnedFd, Errno> {
    let _entered = event_mutex::enter()?;
    let config1 = symbol.map_or(0, |symbol| symbol.as_ptr() as u64);
    open(&Attr { kind, config, config1, config2: offset })
}

/// The CPU that events are opened on: the first online CPU when the list was last read.
static CPU: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = u32::MAX;

/// Opens a disabled event for all tasks.
fn open(attr: &Attr) -> Result<OwnedFd, Errno> {
    open_near(attr, &CPU)
}

/// Opens an event on the known CPU. If that CPU is offline by now, opens it on the first online one. Events outlive
/// their CPU, and CPU 0 may be offline like any other.
fn open_near(attr: &Attr, known: &AtomicU32) -> Result<OwnedFd, Errno> {
    let cpu = known.load(Ordering::Relaxed);
    let errno = if cpu == UNKNOWN {
        Errno::NODEV
    } else {
        match open_on(attr, cpu) {
            Ok(event) => return Ok(event),
            // `ENODEV` means that the CPU is offline, `EINVAL` that it cannot exist; both may have other reasons.
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
    // SAFETY: the structure and its unions are plain integers, for which zero is valid.
    let mut block: perf_event_attr = unsafe { std::mem::zeroed() };
    block.size = size_of::<perf_event_attr>() as u32;
    block.type_ = attr.kind;
    block.config = attr.config;
    block.__bindgen_anon_3.config1 = attr.config1;
    block.__bindgen_anon_4.config2 = attr.config2;
    block.set_disabled(1);
    // SAFETY: the attribute block is valid for its size, and the strings it points to outlive the call; the kernel
    // only reads them.
    let fd = check(unsafe {
        let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
        libc::syscall(libc::SYS_perf_event_open, &raw const block, -1, cpu as libc::c_int, -1, flags)
    })?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets an event filter on a tracepoint's perf event that has none yet.
///
/// # Errors
/// `EINVAL` for a filter that the kernel's parser refuses, `EEXIST` if the event has a filter; the errors of
/// [`event_mutex::enter`].
pub fn set_filter(event: BorrowedFd<'_>, filter: &CStr) -> Result<(), Errno> {
    let _entered = event_mutex::enter()?;
    // SAFETY: the kernel copies the string, which ends with a NUL.
    check(unsafe {
        libc::ioctl(event.as_raw_fd(), libc::c_ulong::from(PERF_EVENT_IOC_SET_FILTER) as _, filter.as_ptr())
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use aya_obj::generated::perf_sw_ids;

    use super::*;

    const DUMMY: (u32, u64) =
        (perf_type_id::PERF_TYPE_SOFTWARE as u32, perf_sw_ids::PERF_COUNT_SW_DUMMY as u64);

    #[test]
    fn an_event_is_opened_on_an_online_cpu() {
        let dummy = || Attr { kind: DUMMY.0, config: DUMMY.1, ..Attr::default() };
        let online = Cpus::online().unwrap();
        let off = Cpus::possible().unwrap().ids();
        match open_on(&dummy(), online.first()) {
            Err(Errno::PERM | Errno::ACCESS) => {
                return eprintln!("skipped: cap_perfmon: perf events want CAP_PERFMON");
            }
            opened => drop(opened.unwrap()),
        }
        assert!(open_on(&dummy(), off).is_err(), "there is no such CPU");
        for known in [UNKNOWN, off] {
            let known = AtomicU32::new(known);
            open_near(&dummy(), &known).unwrap();
            assert_eq!(known.into_inner(), online.first());
        }
        // An event that the kernel refuses for another reason still fails.
        let wrong = Attr { kind: u32::MAX, ..Attr::default() };
        assert!(open_near(&wrong, &AtomicU32::new(online.first())).is_err());
    }
}
