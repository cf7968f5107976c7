//! Facts about a thread from `/proc/TID/status` (proc_pid_status(5)).
//!
//! A thread chooses its own name, and the kernel writes it into the file with only newlines and backslashes escaped.
//! The file is therefore read as bytes: a name that is not UTF-8 must not hide the other lines.

use std::io;

use crate::sys::process::privileges::CapabilitySet;

/// A thread's `status` file.
#[derive(Clone, Debug)]
pub struct ThreadStatus(Vec<u8>);

impl ThreadStatus {
    /// Reads the file of a thread, by its id in this process's pid namespace.
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
            SigBlk:\t0000000000000100\nCapEff:\t0000004000200000\n";
        let status = ThreadStatus(text.to_vec());
        assert_eq!(status.process(), Some(42));
        assert_eq!(status.effective(), CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN);
        assert!(status.is_interrupted());
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
        assert!(!status.is_interrupted());
        assert!(ThreadStatus::read(u32::MAX >> 1).is_err());
    }
}
