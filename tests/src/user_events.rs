//! The user-event operations of a program, from `include/uapi/linux/user_events.h`: the requests of both ABI
//! versions, writes, and the mapped page. In this library, only this file and `workload/raw.rs` contain unsafe
//! blocks.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fs::File,
    io::{self, IoSlice, Write as _},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rustix::mm::{MapFlags, MprotectFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, mprotect};

use crate::host;

/// `DIAG_IOCSREG`, `DIAG_IOCSDEL` and `DIAG_IOCSUNREG`.
pub const REGISTER: u32 = 0xc008_2a00;
/// See [`REGISTER`].
pub const DELETE: u32 = 0x4008_2a01;
/// See [`REGISTER`].
pub const UNREGISTER: u32 = 0x4008_2a02;

/// `USER_EVENT_REG_PERSIST`
pub const PERSIST: u16 = 1;
/// `USER_EVENT_REG_MULTI_FORMAT`
pub const MULTI_FORMAT: u16 = 2;

/// How long a change of events waits for programs (`engine::client_memory`).
const CHANGE: Duration = Duration::from_millis(100);
/// Time limit for an update of a program, on a real machine.
const LATE: Duration = Duration::from_secs(10);

/// The result of a call; the error is an errno.
pub type Answer<T = ()> = Result<T, i32>;

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

/// A word with enable bits. It is leaked, because the kernel or the mirror may update it at any time after the
/// registration.
#[derive(Clone, Copy, Debug)]
pub struct Word(&'static AtomicU32);

impl Default for Word {
    fn default() -> Self {
        Self(Box::leak(Box::default()))
    }
}

impl Word {
    /// The value of the word.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Changes events by `change`, and checks that the word has this value when the change returns. The word may get it
    /// later only if the change has waited for the program as long as a change waits ([`CHANGE`]).
    ///
    /// # Errors
    /// The error of the change, or another value.
    pub fn becomes(&self, value: u32, change: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let start = Instant::now();
        change()?;
        let (took, now) = (start.elapsed(), self.get());
        ensure!(now == value || took >= CHANGE, "{now:#x} in place of {value:#x} after {took:?}");
        let start = Instant::now();
        while self.get() != value {
            ensure!(start.elapsed() < host::patience(LATE), "{:#x} in place of {value:#x}", self.get());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

/// An open `user_events_data`.
#[derive(Debug)]
pub struct Data {
    file: File,
}

impl Data {
    /// Opens `user_events_data` of a mirror or of tracefs.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(dir.join("user_events_data"))?;
        Ok(Self { file })
    }

    /// Opens the file read-only, as a member of the mirror's group may.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn open_to_read(dir: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(dir.join("user_events_data"))? })
    }

    /// Sends a request about any address. The kernel checks the address. The caller is responsible for a write to
    /// that address.
    ///
    /// # Errors
    /// The errno.
    pub fn ioctl(&self, request: u32, address: u64) -> Answer {
        // SAFETY: callers pass their own structures, or memory that nothing else uses.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::c_ulong::from(request) as _, address) };
        if done < 0 { Err(number(&io::Error::last_os_error())) } else { Ok(()) }
    }

    /// Registers with the ABI since 6.4 and returns the event's index in the file.
    ///
    /// # Errors
    /// The errno.
    pub fn register(&self, command: &str, word: &Word, bit: u8, flags: u16) -> Answer<u32> {
        self.register_at(command, word.address(), bit, 4, flags)
    }

    /// Does the same as [`Data::register`] with any address and any size.
    ///
    /// # Errors
    /// The errno.
    pub fn register_at(&self, command: &str, address: u64, bit: u8, size: u8, flags: u16) -> Answer<u32> {
        let text = CString::new(command).map_err(|_| libc::EINVAL)?;
        let mut structure = [0_u8; 28];
        structure[..4].copy_from_slice(&28_u32.to_ne_bytes());
        (structure[4], structure[5]) = (bit, size);
        structure[6..8].copy_from_slice(&flags.to_ne_bytes());
        structure[8..16].copy_from_slice(&address.to_ne_bytes());
        structure[16..24].copy_from_slice(&(text.as_ptr().expose_provenance() as u64).to_ne_bytes());
        structure[24..].copy_from_slice(&u32::MAX.to_ne_bytes());
        self.ioctl(REGISTER, structure.as_mut_ptr().expose_provenance() as u64)?;
        Ok(word(&structure, 24))
    }

    /// Registers with the ABI up to 6.3 and returns the event's bit in the page and its index in the file.
    ///
    /// # Errors
    /// The errno.
    pub fn register_first_age(&self, command: &str) -> Answer<(u32, u32)> {
        let text = CString::new(command).map_err(|_| libc::EINVAL)?;
        let mut structure = [0_u8; 20];
        structure[..4].copy_from_slice(&20_u32.to_ne_bytes());
        structure[4..12].copy_from_slice(&(text.as_ptr().expose_provenance() as u64).to_ne_bytes());
        self.ioctl(REGISTER, structure.as_mut_ptr().expose_provenance() as u64)?;
        Ok((word(&structure, 12), word(&structure, 16)))
    }

    /// Unregisters an enable bit.
    ///
    /// # Errors
    /// The errno.
    pub fn unregister(&self, word: &Word, bit: u8) -> Answer {
        self.unregister_at(word.address(), bit)
    }

    /// Does the same as [`Data::unregister`] with any address.
    ///
    /// # Errors
    /// The errno.
    pub fn unregister_at(&self, address: u64, bit: u8) -> Answer {
        let mut structure = [0_u8; 16];
        structure[..4].copy_from_slice(&16_u32.to_ne_bytes());
        structure[4] = bit;
        structure[8..].copy_from_slice(&address.to_ne_bytes());
        self.ioctl(UNREGISTER, structure.as_mut_ptr().expose_provenance() as u64)
    }

    /// Deletes an event.
    ///
    /// # Errors
    /// The errno.
    pub fn delete(&self, name: &str) -> Answer {
        let text = CString::new(name).map_err(|_| libc::EINVAL)?;
        self.ioctl(DELETE, text.as_ptr().expose_provenance() as u64)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The errno.
    pub fn write(&self, index: u32, payload: &[u8]) -> Answer<usize> {
        let index = index.to_ne_bytes();
        (&self.file)
            .write_vectored(&[IoSlice::new(&index), IoSlice::new(payload)])
            .map_err(|error| number(&error))
    }

    /// Writes bytes without an index in front.
    ///
    /// # Errors
    /// The errno.
    pub fn write_raw(&self, bytes: &[u8]) -> Answer<usize> {
        (&self.file).write(bytes).map_err(|error| number(&error))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

/// A page of memory.
#[derive(Debug)]
pub struct Page(*mut u8);

// SAFETY: the page is accessed by address as bytes and is not tied to a thread.
unsafe impl Send for Page {}

impl Page {
    /// Size in bytes.
    pub const SIZE: usize = 4096;

    /// Maps the page of bits in a mirror's `user_events_status`, as programs do.
    ///
    /// # Errors
    /// The errno.
    pub fn status(dir: &Path) -> Answer<Self> {
        let file =
            File::options().read(true).custom_flags(libc::O_CLOEXEC).open(dir.join("user_events_status"));
        let file = file.map_err(|error| number(&error))?;
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps nothing.
        let at = unsafe { mmap(ptr::null_mut(), Self::SIZE, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        at.map(|at| Self(at.cast())).map_err(rustix::io::Errno::raw_os_error)
    }

    /// Maps the first page of a file privately, read-only.
    ///
    /// # Errors
    /// The errno.
    pub fn of(file: &File) -> Answer<Self> {
        Self::part(file, 0)
    }

    /// Maps a page of a file at this offset, privately and read-only.
    ///
    /// # Errors
    /// The errno.
    pub fn part(file: &File, offset: u64) -> Answer<Self> {
        // SAFETY: as above.
        let at =
            unsafe { mmap(ptr::null_mut(), Self::SIZE, ProtFlags::READ, MapFlags::PRIVATE, file, offset) };
        at.map(|at| Self(at.cast())).map_err(rustix::io::Errno::raw_os_error)
    }

    /// Lists an open directory into the page; the number of bytes.
    ///
    /// # Errors
    /// The errno.
    pub fn list(&self, dir: &File) -> Answer<usize> {
        // SAFETY: the kernel checks the address.
        let done = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), self.0, Self::SIZE) };
        usize::try_from(done).map_err(|_| number(&std::io::Error::last_os_error()))
    }

    /// Maps a page of zeroes with these access rights.
    ///
    /// # Errors
    /// The errno.
    pub fn new(rights: ProtFlags) -> Answer<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), Self::SIZE, both, MapFlags::PRIVATE) };
        let at = at.map_err(rustix::io::Errno::raw_os_error)?;
        // SAFETY: the mapping was just made, and nothing refers to it yet.
        unsafe {
            at.cast::<u8>().write(0);
            mprotect(at, Self::SIZE, MprotectFlags::from_bits_retain(rights.bits()))
                .map_err(rustix::io::Errno::raw_os_error)?;
        }
        Ok(Self(at.cast()))
    }

    /// Maps a page at a chosen address and replaces any mapping there: zeroes, or a shared page of a file.
    ///
    /// # Errors
    /// The errno.
    pub fn fixed(address: u64, file: Option<&File>) -> Answer<Self> {
        let (at, both) =
            (ptr::with_exposed_provenance_mut(address as usize), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: this program has no other memory at the addresses that tests choose.
        let at = unsafe {
            match file {
                Some(file) => mmap(at, Self::SIZE, both, MapFlags::SHARED | MapFlags::FIXED, file, 0),
                None => mmap_anonymous(at, Self::SIZE, both, MapFlags::PRIVATE | MapFlags::FIXED),
            }
        };
        at.map(|at| Self(at.cast())).map_err(rustix::io::Errno::raw_os_error)
    }

    /// Writes the first bytes of the page to a file, in one write(2), which reads them from the page.
    ///
    /// # Errors
    /// The errno.
    pub fn write_to(&self, file: &File, length: usize) -> Answer<usize> {
        // SAFETY: only the kernel reads the memory, at most the page, which is still mapped.
        let done = unsafe { libc::write(file.as_raw_fd(), self.0.cast(), length.min(Self::SIZE)) };
        usize::try_from(done).map_err(|_| number(&io::Error::last_os_error()))
    }

    /// Writes a shared page back to its file (msync(2)).
    ///
    /// # Errors
    /// The errno.
    pub fn sync(&self) -> Answer<()> {
        // SAFETY: the page is still mapped.
        let done = unsafe { rustix::mm::msync(self.0.cast(), Self::SIZE, MsyncFlags::SYNC) };
        done.map_err(rustix::io::Errno::raw_os_error)
    }

    /// Whether every byte has this value.
    pub fn is_all(&self, byte: u8) -> bool {
        // SAFETY: inside the page, which is still mapped; others may change it, so the read is volatile.
        (0..Self::SIZE).all(|at| unsafe { self.0.add(at).read_volatile() } == byte)
    }

    /// Unmaps the page.
    pub fn unmap(&self) {
        // SAFETY: this program has nothing else in this page.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), Self::SIZE) };
    }

    /// The page that [`Page::fixed`] made at an address, in this process or in its parent before fork(2).
    pub fn at(address: u64) -> Self {
        Self(ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The address of the page.
    pub fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// Whether a bit is set.
    pub fn bit(&self, bit: u32) -> bool {
        // SAFETY: inside the page, which is still mapped; others may change it, so the read is volatile.
        let byte = unsafe { self.0.add(bit as usize / 8 % Self::SIZE).read_volatile() };
        byte >> (bit % 8) & 1 != 0
    }

    /// Writes bytes from an offset on; the page must be writable.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the page.
            unsafe { self.0.add((at + place) % Self::SIZE).write_volatile(*byte) };
        }
    }
}

/// The result of an operation; the error names the step.
///
/// # Errors
/// The operation's error.
pub fn in_step<T>(what: &str, done: Answer<T>) -> anyhow::Result<T> {
    done.map_err(io::Error::from_raw_os_error).with_context(|| what.to_owned())
}

/// Runs a function in a forked child without exec, waits for the child, and returns its exit code.
///
/// # Errors
/// The errno.
pub fn in_child(act: impl FnOnce() -> i32) -> Answer<i32> {
    // SAFETY: the child makes system calls and ends without running destructors.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(number(&io::Error::last_os_error()));
    }
    if child == 0 {
        let code = act();
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited < 0 { Err(number(&io::Error::last_os_error())) } else { Ok(libc::WEXITSTATUS(status)) }
}

/// Starts a function in a child process and returns the child's id. The child has its own memory (fork(2)) or shares
/// this process's memory (clone(2) with `CLONE_VM`). In shared memory the child has a separate stack, and the function
/// must not use more than that stack.
///
/// # Errors
/// The errno.
pub fn start_child(shares_memory: bool, act: extern "C" fn(*mut libc::c_void) -> i32) -> Answer<i32> {
    const STACK: usize = 64 << 10;
    // Callers start one child at a time and wait for it before the next, so one stack suffices.
    static STACK_OF_CHILD: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let mut flags = libc::SIGCHLD;
    let child = if shares_memory {
        flags |= libc::CLONE_VM;
        let top = STACK_OF_CHILD.get_or_init(|| {
            let stack = Box::leak(vec![0_u8; STACK].into_boxed_slice());
            (stack.as_mut_ptr().expose_provenance() + STACK) & !15
        });
        // SAFETY: nothing else uses the stack; the child makes system calls and ends.
        unsafe { libc::clone(act, ptr::with_exposed_provenance_mut(*top), flags, ptr::null_mut()) }
    } else {
        // SAFETY: the child makes system calls and ends without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = act(ptr::null_mut());
            // SAFETY: ends this process.
            unsafe { libc::_exit(code) };
        }
        child
    };
    if child < 0 { Err(number(&io::Error::last_os_error())) } else { Ok(child) }
}

/// Starts a function in a forked child and returns the child's id without waiting.
///
/// # Errors
/// The errno.
pub fn fork_with(act: impl FnOnce() -> i32) -> Answer<i32> {
    // SAFETY: the child makes system calls and ends without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = act();
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) };
    }
    if child < 0 { Err(number(&io::Error::last_os_error())) } else { Ok(child) }
}

/// Runs a function in a second thread after the process's first thread has ended, and ends the process with the
/// returned code. Use it only in a forked child.
pub fn outlive_first_thread(act: impl FnOnce() -> i32 + Send + 'static) -> ! {
    let own = rustix::process::getpid();
    let ended = move || {
        // The state of the first thread is `Z`.
        let stat = std::fs::read_to_string(format!("/proc/{0}/task/{0}/stat", own.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    };
    std::thread::spawn(move || {
        while !ended() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let code = act();
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) }
    });
    // SAFETY: ends this thread alone; no other thread refers to its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread that ended")
}

/// Starts a function in a forked child with this process id, which must be free. This process must be root.
///
/// # Errors
/// `EEXIST` if a process has the id, and other errors of clone3(2).
pub fn fork_as(pid: i32, act: impl FnOnce() -> i32) -> Answer<i32> {
    // `struct clone_args` up to `set_tid_size` (include/uapi/linux/sched.h).
    let ids = [pid];
    let mut arguments = [0_u64; 10];
    arguments[4] = libc::SIGCHLD as u64;
    arguments[8] = ids.as_ptr().expose_provenance() as u64;
    arguments[9] = ids.len() as u64;
    // SAFETY: as fork(2): the child makes system calls and ends without running destructors.
    let child = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    if child == 0 {
        let code = act();
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) };
    }
    if child < 0 { Err(number(&io::Error::last_os_error())) } else { Ok(child as i32) }
}

/// Enters a new user namespace that a uid of this one owns. This process must have one thread, and be root.
///
/// # Errors
/// The errors of the calls.
pub fn enter_user_namespace(owner: u32) -> rustix::io::Result<()> {
    use rustix::thread::{
        UnshareFlags, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid,
    };

    let all = capabilities(None)?;
    set_thread_res_gid(None, rustix::process::Gid::from_raw(owner), None)?;
    set_thread_res_uid(None, rustix::process::Uid::from_raw(owner), None)?;
    // Some hosts let only processes with capabilities have namespaces with capabilities.
    set_capabilities(None, all)?;
    // SAFETY: Of what a thread has, only its user namespace changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }
}

/// Waits for a child process and returns its exit code, or 128 plus the signal number.
///
/// # Errors
/// The errno.
pub fn wait_for(child: i32) -> Answer<i32> {
    let mut status = 0;
    // SAFETY: waits for a child.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match waited {
        ..0 => Err(number(&io::Error::last_os_error())),
        _ if libc::WIFEXITED(status) => Ok(libc::WEXITSTATUS(status)),
        _ => Ok(128 + libc::WTERMSIG(status)),
    }
}

/// A file of numbers, one per process.
#[derive(Debug)]
pub struct Tally(File);

impl Tally {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(File::options().read(true).write(true).create(true).truncate(false).open(path)?))
    }

    /// Stores the number of process `who`.
    ///
    /// # Errors
    /// The errors of pwrite(2).
    pub fn set(&self, who: u64, number: u64) -> io::Result<()> {
        self.0.write_all_at(&number.to_ne_bytes(), who * 8)
    }

    /// The number of process `who`; 0 when there is none.
    pub fn get(&self, who: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, who * 8).map_or(0, |()| u64::from_ne_bytes(bytes))
    }
}
