//! Facts about a thread: its process, and `/proc/TID/status` (proc_pid_status(5)).
//!
//! Some files of `/proc/TID` take a reference to the thread's address space while they are read (`get_task_mm()` in
//! fs/proc/array.c): `status`, `stat` and `statm`, and also `maps` and all others that show memory. If the process ends
//! meanwhile, the reader drops the last reference and tears down the address space (`exit_mmap()`). This writes shared
//! mappings of files back, and then the reader waits without a limit for a file system that the process may serve itself.
//! A kill does not end such a wait. `comm`, `task`, `syscall`, `stack`, `wchan` and `ns` take no reference.
//!
//! Therefore a thread that others wait for reads `status` or `stat` only of itself, or of a thread that cannot end
//! meanwhile because it waits for an answer from this process. FUSE does not end such a wait before the answer.

use std::{io, mem::MaybeUninit};

use rustix::fs::{Mode, OFlags, RawDir, open};

use crate::sys::process::privileges::CapabilitySet;

/// Bytes for directory entries: two dots and at least one thread id.
const ENTRIES: usize = 128;

/// The id of a thread's process, by the thread's id in this process's pid namespace. Takes no reference to the address
/// space.
///
/// The directory `/proc/TID/task` lists the threads of the process in the order of their creation (`first_tid()` in
/// fs/proc/base.c). The first one has the id of the process.
///
/// # Errors
/// If the directory cannot be read: `NotFound` or `ESRCH` if the thread is gone.
pub fn process_of(thread: u32) -> io::Result<u32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let task = open(format!("/proc/{thread}/task"), flags, Mode::empty())?;
    let mut space = [MaybeUninit::uninit(); ENTRIES];
    let mut entries = RawDir::new(task, &mut space);
    while let Some(entry) = entries.next() {
        if let Some(process) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
            return Ok(process);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// A thread's `status` file.
///
/// A thread chooses its own name, and the kernel writes it into the file with only newlines and backslashes escaped.
/// The file is therefore read as bytes: a name that is not UTF-8 must not hide the other lines.
#[derive(Clone, Debug)]
pub struct ThreadStatus(Vec<u8>);

impl ThreadStatus {
    /// Reads the file of a thread, by its id in this process's pid namespace. Takes a reference to the thread's address
    /// space; see the module.
    ///
    /// # Errors
    /// If it cannot be read: `NotFound` or `ESRCH` if the thread is gone.
    pub fn read(thread: u32) -> io::Result<Self> {
        std::fs::read(format!("/proc/{thread}/status")).map(Self)
    }

    /// The id of the thread's process.
    pub fn process(&self) -> Option<u32> {
        self.value("Tgid:")?.parse().ok()
    }

    /// Whether it sleeps until an event or a signal.
    pub fn is_asleep(&self) -> bool {
        self.value("State:").is_some_and(|state| state.starts_with('S'))
    }

    /// How often it has given up its CPU to wait.
    pub fn waits(&self) -> Option<u64> {
        self.value("voluntary_ctxt_switches:")?.parse().ok()
    }

    /// The capabilities in effect.
    pub fn effective(&self) -> CapabilitySet {
        CapabilitySet::from_bits_retain(self.mask("CapEff:"))
    }

    /// Whether a signal is pending that the thread does not block.
    pub fn is_interrupted(&self) -> bool {
        (self.mask("SigPnd:") | self.mask("ShdPnd:")) & !self.mask("SigBlk:") != 0
    }

    /// The value of the first line with this key.
    fn value(&self, key: &str) -> Option<&str> {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(key.as_bytes()))?;
        std::str::from_utf8(value).ok().map(str::trim)
    }

    /// A hexadecimal mask; 0 if there is no such line.
    fn mask(&self, key: &str) -> u64 {
        self.value(key).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_hides_no_other_line() {
        let text =
            b"Name:\t\xff\\nTgid:\t7\nTgid:\t42\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000001\n\
            SigBlk:\t0000000000000100\nCapEff:\t0000004000200000\nState:\tS (sleeping)\n\
            nonvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t150\n";
        let status = ThreadStatus(text.to_vec());
        assert_eq!(status.process(), Some(42));
        assert_eq!(status.effective(), CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN);
        assert!(status.is_interrupted() && status.is_asleep());
        assert_eq!(status.waits(), Some(150));
        let blocked = ThreadStatus(b"ShdPnd:\t0001\nSigBlk:\t0001\n".to_vec());
        assert!(!blocked.is_interrupted() && blocked.process().is_none());
    }

    #[test]
    fn a_thread_whose_name_is_not_text_has_a_status() {
        let read = || {
            rustix::thread::set_name(c"\xff\xfe").unwrap();
            ThreadStatus::read(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap()
        };
        let status = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
        assert_eq!(status.process(), Some(std::process::id()));
        assert!(!status.is_interrupted() && !status.is_asleep() && status.waits().is_some());
        assert!(ThreadStatus::read(u32::MAX >> 1).is_err());
    }

    #[test]
    fn each_thread_has_the_process_of_its_status() {
        let own = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let (send, receive) = std::sync::mpsc::channel();
        let threads: Vec<_> = (0..20)
            .map(|_| {
                let send = send.clone();
                let (end, ended) = std::sync::mpsc::channel::<()>();
                let thread = std::thread::spawn(move || {
                    send.send(own()).unwrap();
                    let _ = ended.recv();
                });
                (end, thread)
            })
            .collect();
        let mut children = vec![std::process::Command::new("sleep").arg("60").spawn().unwrap()];
        let ids = (0..threads.len()).map(|_| receive.recv().unwrap());
        for thread in ids.chain([own(), 1, children[0].id()]) {
            assert_eq!(Some(process_of(thread).unwrap()), ThreadStatus::read(thread).unwrap().process());
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for (end, thread) in threads {
            drop(end);
            thread.join().unwrap();
        }
        assert!(process_of(u32::MAX >> 1).is_err());
    }
}
