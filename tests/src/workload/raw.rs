//! Operations that the standard library and rustix do not offer without `unsafe`: mappings, signal handlers, old
//! timers, and system calls that are made only to be traced. In this library, only this file and `user_events.rs`
//! contain unsafe blocks.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_long, c_void};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags};

use super::provoked::{Count, Provoked, syscalls};

/// System calls that take only numbers and change nothing that outlives the process: name in tracefs, number,
/// arguments. Calls with descriptor -1 fail, but a tracer records them all the same.
const PLAIN: &[(&str, c_long, [c_long; 3])] = &[
    ("getppid", libc::SYS_getppid, [0; 3]),
    ("getuid", libc::SYS_getuid, [0; 3]),
    ("geteuid", libc::SYS_geteuid, [0; 3]),
    ("getgid", libc::SYS_getgid, [0; 3]),
    ("getegid", libc::SYS_getegid, [0; 3]),
    ("getsid", libc::SYS_getsid, [0; 3]),
    ("getpgid", libc::SYS_getpgid, [0; 3]),
    ("getpriority", libc::SYS_getpriority, [0, 0, 0]),
    ("sched_getscheduler", libc::SYS_sched_getscheduler, [0; 3]),
    ("sched_get_priority_max", libc::SYS_sched_get_priority_max, [1, 0, 0]),
    ("sched_get_priority_min", libc::SYS_sched_get_priority_min, [2, 0, 0]),
    ("ioprio_get", libc::SYS_ioprio_get, [1, 0, 0]),
    ("personality", libc::SYS_personality, [0xffff_ffff, 0, 0]),
    ("membarrier", libc::SYS_membarrier, [0; 3]),
    ("setfsuid", libc::SYS_setfsuid, [-1, 0, 0]),
    ("setfsgid", libc::SYS_setfsgid, [-1, 0, 0]),
    ("fchdir", libc::SYS_fchdir, [-1, 0, 0]),
    ("fchmod", libc::SYS_fchmod, [-1, 0o644, 0]),
    ("fchown", libc::SYS_fchown, [-1, 12, 34]),
    ("fsync", libc::SYS_fsync, [-1, 0, 0]),
    ("syncfs", libc::SYS_syncfs, [-1, 0, 0]),
    ("ftruncate", libc::SYS_ftruncate, [-1, 4096, 0]),
    ("lseek", libc::SYS_lseek, [-1, 123_456, 2]),
    ("listen", libc::SYS_listen, [-1, 5, 0]),
    ("shutdown", libc::SYS_shutdown, [-1, 2, 0]),
    ("tee", libc::SYS_tee, [-1, -1, 77]),
    ("setns", libc::SYS_setns, [-1, 0, 0]),
    ("inotify_rm_watch", libc::SYS_inotify_rm_watch, [-1, 3, 0]),
    ("timer_getoverrun", libc::SYS_timer_getoverrun, [-1, 0, 0]),
    ("pkey_free", libc::SYS_pkey_free, [-1, 0, 0]),
    ("io_cancel", libc::SYS_io_cancel, [0; 3]),
    ("vhangup_not", -1, [11, 22, 33]),
];

/// Calls that fail without an effect: their names are relative to a descriptor that does not exist, or to a directory
/// that does not. Each has an argument of -1, and eleven are traced as `openat` (five), `write` (two), `renameat2`,
/// `symlinkat`, `mount` and `close`.
pub fn failing_calls(names: &[CString; 3], buffer: &[u8]) {
    const NONE: c_long = -1;
    const ZERO: c_long = 0;
    const MODE: c_long = 0o640;
    let [a, b, c] = names.each_ref().map(|name| name.as_ptr());
    let flags = [
        0,
        libc::O_CLOEXEC,
        libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
        libc::O_DIRECTORY | libc::O_NOATIME,
    ];
    // In memory that is present.
    let directory = CString::from(c"tracer-absent");
    // SAFETY: the pointers are valid for the calls, which only read there, or null.
    unsafe {
        for flags in flags {
            libc::syscall(libc::SYS_openat, NONE, a, c_long::from(flags), MODE);
        }
        libc::syscall(libc::SYS_openat, NONE, ptr::null::<u8>(), ZERO, ZERO);
        libc::syscall(libc::SYS_write, NONE, buffer.as_ptr(), buffer.len());
        libc::syscall(libc::SYS_write, NONE, ptr::null::<u8>(), buffer.len());
        libc::syscall(libc::SYS_renameat2, NONE, a, NONE, b, ZERO);
        libc::syscall(libc::SYS_symlinkat, a, NONE, b);
        libc::syscall(libc::SYS_mount, c, directory.as_ptr(), b, ZERO, NONE);
        libc::syscall(libc::SYS_close, NONE);
    }
}

/// Calls `openat` with an argument of -1 this often, each time with a name that begins in the page of a file that this
/// process does not have in memory. The file is one page, with a relative name at `offset` that ends with NUL.
///
/// # Errors
/// When the page cannot be mapped or taken away.
pub fn absent_names(file: &File, offset: usize, calls: u32) -> io::Result<()> {
    const PAGE: usize = 4096;
    // SAFETY: a new mapping, which nothing else uses. Its second half is after the file's end, and nothing reads it.
    let page =
        unsafe { rustix::mm::mmap(ptr::null_mut(), 2 * PAGE, ProtFlags::READ, MapFlags::PRIVATE, file, 0)? };
    let call = || {
        // SAFETY: the page is mapped and never written, so its content is the file's after this. The call only reads.
        unsafe {
            rustix::mm::madvise(page, PAGE, Advice::LinuxDontNeed)?;
            libc::syscall(libc::SYS_openat, -1_i64, page.byte_add(offset), 0, 0);
        }
        Ok(())
    };
    let done = (0..calls).try_for_each(|_| call());
    // SAFETY: the mapping of above, which nothing uses any more.
    unsafe { rustix::mm::munmap(page, 2 * PAGE)? };
    done
}

/// Makes each call of [`PLAIN`] once.
pub(super) fn plain_calls() {
    for (_, number, arguments) in PLAIN {
        // SAFETY: every call of the table takes numbers, or null where a pointer could stand.
        unsafe { libc::syscall(*number, arguments[0], arguments[1], arguments[2]) };
    }
}

/// A pseudo-terminal with this many lines: the master end, and the slave end for the program to run.
///
/// # Errors
/// The errors of openpty(3) and fcntl(2).
pub fn terminal(lines: u16) -> io::Result<(File, File)> {
    let size = libc::winsize { ws_row: lines, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both places take a descriptor, the name and the settings are null, and the size is only read.
    let done = unsafe {
        libc::openpty(&raw mut master, &raw mut slave, ptr::null_mut(), ptr::null(), &raw const size)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are open, and nothing else owns them.
    let (master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
    for end in [&master, &slave] {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((master, slave))
}

/// `getpgid(2)` of a process that may or may not exist.
pub fn getpgid(pid: i32) {
    // SAFETY: a number only.
    unsafe { libc::syscall(libc::SYS_getpgid, c_long::from(pid)) };
}

/// Gives the calling thread a real-time priority (`SCHED_FIFO`).
///
/// # Errors
/// When this process may not.
pub fn be_real_time(priority: c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the structure, which outlives the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `getsid(2)` of a process that may or may not exist.
pub fn getsid(pid: i32) {
    // SAFETY: a number only.
    unsafe { libc::syscall(libc::SYS_getsid, c_long::from(pid)) };
}

/// `getpriority(2)` of a process that may or may not exist.
pub fn getpriority(who: i32) {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_getpriority, 0, c_long::from(who)) };
}

/// The events that [`plain_calls`] provokes.
pub(super) fn plain_events() -> Vec<Provoked> {
    let named: Vec<_> =
        PLAIN.iter().filter(|call| call.1 >= 0).map(|call| (call.0, Count::Exactly(1))).collect();
    let mut events = syscalls(&named);
    // The nonexistent system call has no separate event.
    let all = PLAIN.len() as u64;
    events.push(Provoked { event: "raw_syscalls:sys_enter".into(), count: Count::AtLeast(all) });
    events.push(Provoked { event: "raw_syscalls:sys_exit".into(), count: Count::AtLeast(all) });
    events
}

/// `getppid` as a direct system call.
#[inline]
pub fn getppid() -> i64 {
    // SAFETY: takes nothing and changes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) }
}

/// `lseek` on descriptor -1: it fails, and is traced with any offset and origin.
pub(super) fn seek_nowhere(offset: i64, whence: u32) {
    // SAFETY: numbers only; there is no descriptor -1.
    unsafe { libc::syscall(libc::SYS_lseek, -1, offset, whence) };
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The errors of sched_setaffinity(2), `EINVAL` when there is no such CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// A mapping that is unmapped when dropped.
pub(super) struct Mapping {
    at: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Private zeroed memory without any page present.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Ok(Self { at, len })
    }

    /// The first `len` bytes of a file, shared.
    pub(super) fn file(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: as above; no other process changes the file's length while the mapping exists.
        let at = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Ok(Self { at, len })
    }

    /// Writes a byte to every page.
    pub(super) fn touch(&mut self) {
        for offset in (0..self.len).step_by(4096) {
            // SAFETY: inside the mapping, which this struct owns and which is writable whenever this is called.
            unsafe { self.at.cast::<u8>().add(offset).write_volatile(1) };
        }
    }

    /// Removes the write permission and restores it.
    pub(super) fn protect_and_back(&mut self) -> io::Result<()> {
        // SAFETY: the range is the mapping; nothing refers into it.
        unsafe {
            rustix::mm::mprotect(self.at, self.len, MprotectFlags::READ)?;
            rustix::mm::mprotect(self.at, self.len, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        Ok(())
    }

    /// Drops the pages; they read as zero afterwards.
    pub(super) fn drop_pages(&mut self) -> io::Result<()> {
        // SAFETY: the range is the mapping; nothing refers into it.
        unsafe { rustix::mm::madvise(self.at, self.len, Advice::LinuxDontNeed)? };
        Ok(())
    }

    /// Writes a shared mapping back to its file.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        // SAFETY: the range is the mapping.
        unsafe { rustix::mm::msync(self.at, self.len, MsyncFlags::SYNC)? };
        Ok(())
    }

    /// Locks the pages in memory and unlocks them.
    pub(super) fn lock_and_unlock(&mut self) -> io::Result<()> {
        // SAFETY: the range is the mapping.
        unsafe {
            rustix::mm::mlock(self.at, self.len)?;
            rustix::mm::munlock(self.at, self.len)?;
        }
        Ok(())
    }

    /// Grows the mapping, which may move to another address.
    pub(super) fn grow(&mut self, len: usize) -> io::Result<()> {
        // SAFETY: nothing refers into the mapping, so it may move.
        self.at = unsafe { rustix::mm::mremap(self.at, self.len, len, MremapFlags::MAYMOVE)? };
        self.len = len;
        Ok(())
    }

    /// Queries which pages are present; the result is ignored.
    pub(super) fn residence(&self) {
        let mut pages = vec![0_u8; self.len.div_ceil(4096)];
        // SAFETY: the buffer has one byte for each page of the mapping.
        unsafe { libc::mincore(self.at, self.len, pages.as_mut_ptr().cast()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this struct owns the mapping, and nothing refers into it.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

/// Queries the end of the heap.
pub(super) fn heap_end() {
    // SAFETY: 0 is below every heap, so nothing moves.
    unsafe { libc::syscall(libc::SYS_brk, 0) };
}

extern "C" fn nothing(_: c_int) {}

/// Installs a signal handler that does nothing, so that the signal is delivered without effect.
pub(super) fn handle(signal: c_int) -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler touches nothing.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Blocks a signal, sends it to this process, queries the pending signals, and unblocks it.
pub(super) fn block_and_deliver(signal: c_int) {
    // SAFETY: all sets are initialised by sigemptyset before use; the signal has a handler.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        libc::kill(libc::getpid(), signal);
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
}

/// Sends a queued signal with a value to this process.
pub(super) fn queue_signal(signal: c_int, value: usize) {
    let value = libc::sigval { sival_ptr: value as *mut c_void };
    // SAFETY: the value is a number that nothing dereferences.
    unsafe { libc::sigqueue(libc::getpid(), signal, value) };
}

/// Sets a real-time interval timer and stops it before it fires.
pub(super) fn interval_timer() -> io::Result<()> {
    let after = |seconds| libc::itimerval { it_interval: timeval(0), it_value: timeval(seconds) };
    for seconds in [100, 0] {
        let value = after(seconds);
        // SAFETY: the value outlives the call; no old value is requested.
        if unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const value, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn timeval(seconds: i64) -> libc::timeval {
    libc::timeval { tv_sec: seconds, tv_usec: 0 }
}

/// Makes a timer that sends no signal, sets it, reads it and deletes it.
pub(super) fn posix_timer() -> io::Result<()> {
    // SAFETY: all structures are initialised and outlive the calls; the timer is deleted before return.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_NONE;
        let mut timer: libc::timer_t = std::mem::zeroed();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
            return Err(io::Error::last_os_error());
        }
        let second = libc::timespec { tv_sec: 100, tv_nsec: 0 };
        let value = libc::itimerspec { it_interval: second, it_value: second };
        libc::timer_settime(timer, 0, &raw const value, ptr::null_mut());
        let mut left: libc::itimerspec = std::mem::zeroed();
        libc::timer_gettime(timer, &raw mut left);
        libc::timer_delete(timer);
    }
    Ok(())
}
